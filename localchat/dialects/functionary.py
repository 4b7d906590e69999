"""Functionary 3.1 and 3.2.

3.1: <function=f>{"a": 1}</function>
3.2: all
text>>>f
{"a": 1}
Without a recipient `>>>` is text: Python's prompt looks the same.
"""

from __future__ import annotations

from dataclasses import replace

from ..protocol.events import ContentDelta
from .calls import Calls
from .dialect import CallTexts, Dialect
from .named_json import json_arguments
from .reasoning import ReasoningStart
from .scan import Cursor, Markers, Reader, one_of, read, stream
from .tool_call import FUNCTION_TAGS

_TAGS = replace(FUNCTION_TAGS, sections=())

V31 = Dialect(
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


class _V32(Dialect):
    """Everything stands under a recipient: `all` for text, a name for a call. There is no reasoning."""

    def reasoning_start(self, prompt: str) -> ReasoningStart:
        return ReasoningStart.CLOSED

    def read(
        self, cursor: Cursor, calls: Calls, prompt: str, reasoning: bool, *, has_form: bool = False
    ) -> Reader[None]:
        calls.reasoning_may_open = False
        names = {name + "\n": name for name in calls.offered}
        marks = {_NEXT + recipient: recipient for recipient in (_ALL, *names)}
        # A form goes on to the end of the answer, and may hold the text of a mark.
        text_markers = Markers(*(() if has_form else marks))
        # The prompt may have written the first mark up to its recipient.
        mark = yield from one_of(cursor, *marks, *marks.values())
        while True:
            recipient = marks.get(mark, mark) if mark else None
            if recipient in names:
                mark = yield from json_arguments(cursor, calls, names[recipient], *marks)
                continue
            mark = yield from stream(cursor, text_markers, ContentDelta, seam=not has_form)
            if mark is None:
                return
            read(cursor, mark)


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
