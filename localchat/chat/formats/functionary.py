"""Functionary 3.1 and 3.2.

3.1: <function=f>{"a": 1}</function>
3.2: all
text>>>f
{"a": 1}
"""

from __future__ import annotations

from dataclasses import replace

from ..calls import Calls
from ..events import Content
from ..scan import Cursor, Markers, Reader, one_of, read, stream
from .base import CallTexts, Format
from .named_json import json_arguments
from .tool_call import FUNCTION_TAGS

_TAGS = replace(FUNCTION_TAGS, sections=())

V31 = Format(
    "functionary-3.1",
    detected_by=(("<function=", "</function>"),),
    openers=_TAGS.openers,
    read_call=_TAGS.read_calls,
    closers=_TAGS.closers,
    call_texts=(
        CallTexts(
            opener=_TAGS.call,
            before_name=_TAGS.call,
            before_arguments=_TAGS.name_end,
            after_call=_TAGS.call_end,
            json_name=False,
        ),
    ),
)

_NEXT = ">>>"
_ALL = "all\n"


class _V32(Format):
    """Everything stands under a recipient: `all` for text, a name for a call."""

    def read(
        self, cursor: Cursor, calls: Calls, prompt: str, reasoning: bool, *, has_form: bool = False
    ) -> Reader[None]:
        yield from one_of(cursor, _NEXT)
        while cursor.left() or not cursor.ended:
            names = {name + "\n": name for name in calls.offered}
            recipient = yield from one_of(cursor, _ALL, *names)
            if recipient in names:
                yield from json_arguments(cursor, calls, names[recipient], _NEXT)
                continue
            # A form goes on to the end of the answer, and may hold the text of the mark.
            marks = () if has_form else (_NEXT,)
            marker = yield from stream(cursor, Markers(*marks), Content, seam=not has_form)
            if marker:
                read(cursor, marker)


V32 = _V32(
    "functionary-3.2",
    detected_by=((">>>all",), (">>>", "all\\n")),
    closers=(_NEXT,),
    text_start=(_ALL, _ALL),
    text_end=_NEXT,
    # Its prompt ends with the mark already.
    part_mark=_NEXT,
    call_texts=(
        CallTexts(
            before_name="",
            before_arguments="\n",
            after_call="",
            separator=_NEXT,
            json_name=False,
        ),
    ),
)
