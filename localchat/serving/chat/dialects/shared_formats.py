"""The formats of calls that several families share.

Three formats are written between <tool_call> and </tool_call>: a JSON object, function tags, and a name with key and
value tags. Models trained on one of them sometimes generate another one, so most of their families parse all three.
"""

from __future__ import annotations

from .call_layout import A_BREAK
from .json_calls import JsonCalls
from .tagged import TaggedCalls

_START, _END = "<tool_call>", "</tool_call>"

JSON_OBJECT = JsonCalls(opener=_START, end=_END, is_each=True, line="\n", separator=A_BREAK)

FUNCTION_TAGS = TaggedCalls(
    call="<function=",
    name_end=">",
    key="<parameter=",
    key_end=">",
    value_ends=("\n</parameter>", "</parameter>"),
    call_end="</function>",
    around=((_START, _END),),
    is_around_each=True,
    is_on_lines=True,
)

KEY_VALUE_TAGS = TaggedCalls(
    call=_START,
    name_end="",
    key="<arg_key>",
    key_end="</arg_key>",
    value="<arg_value>",
    value_ends=("</arg_value>",),
    call_end=_END,
)


def invoke_tags(prefix: str, around: str) -> TaggedCalls:
    """Calls in the tags <invoke> and <parameter>, with a prefix to their names, within a tag `around` all calls."""
    return TaggedCalls(
        call=f'<{prefix}invoke name="',
        name_end='">',
        key=f'<{prefix}parameter name="',
        key_end='">',
        value_ends=(f"</{prefix}parameter>",),
        call_end=f"</{prefix}invoke>",
        around=((f"<{around}>", f"</{around}>"),),
    )
