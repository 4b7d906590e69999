"""What stands between <tool_call> and </tool_call>, of which there are three forms in use.

A JSON object, function tags, or a name with key and value tags. The body tells by its first
character which it is, and models trained on one form do write another now and then.
"""

from __future__ import annotations

from .calls import Calls
from .json_calls import json_calls
from .scan import Cursor, Reader, more, space
from .tagged import Tags

START, END = "<tool_call>", "</tool_call>"

FUNCTION_TAGS = Tags(
    call="<function=",
    name_end=">",
    key="<parameter=",
    key_end=">",
    value_ends=("\n</parameter>", "</parameter>"),
    call_end="</function>",
    sections=((START, END),),
    is_section_each=True,
    is_on_lines=True,
)

KEY_VALUE_TAGS = Tags(
    call=START,
    name_end="",
    key="<arg_key>",
    key_end="</arg_key>",
    value="<arg_value>",
    value_ends=("</arg_value>",),
    call_end=END,
)

_read_json = json_calls(END)


def read_tool_call(cursor: Cursor, calls: Calls, opener: str) -> Reader[bool]:
    """Read what follows <tool_call>, or <function= without it (K37)."""
    if opener == FUNCTION_TAGS.call:
        return (yield from FUNCTION_TAGS.read_calls(cursor, calls, opener))
    yield from space(cursor)
    first = cursor.peek() if (yield from more(cursor)) else ""
    if first in ("{", "["):
        return (yield from _read_json(cursor, calls, opener))
    tags = FUNCTION_TAGS if first == "<" else KEY_VALUE_TAGS
    return (yield from tags.read_calls(cursor, calls, opener))
