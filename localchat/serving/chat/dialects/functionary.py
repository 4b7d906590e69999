"""Functionary 3.2.

all
text>>>f
{"a": 1}
Without a recipient, `>>>` is text, such as Python's prompt.
"""

from __future__ import annotations

from ...core.events import ContentDelta
from .call_format import CallFormat
from .dialect import Dialect
from .json_calls import json_arguments
from .reader import OutputReader
from .reasoning import ReasoningStart
from .scan import Markers, Reader, emit_until, read_marker, read_one_of

_NEXT = ">>>"
_ALL = "all\n"


class _Reader(OutputReader):
    def read(self) -> Reader[None]:
        cursor = self._cursor
        self.reasoning_may_open = False
        names = {name + "\n": name for name in self._calls.offered}
        marks = {_NEXT + recipient: recipient for recipient in (_ALL, *names)}
        # Text of a response format extends to the end of the output, and may contain the text of a marker.
        text_markers = Markers(*(() if self._is_constrained else marks))
        # The prompt may end with the first marker and its recipient.
        mark = yield from read_one_of(cursor, *marks, *marks.values())
        while True:
            recipient = marks.get(mark, mark) if mark else None
            if recipient in names:
                mark = yield from json_arguments(cursor, self._calls, names[recipient], *marks)
                continue
            mark = yield from emit_until(cursor, text_markers, ContentDelta, holds_space=not self._is_constrained)
            if mark is None:
                return
            read_marker(cursor, mark)


class _V32(Dialect):
    """Each part has a recipient: `all` for text, the name of a tool for a call. There is no reasoning."""

    def reasoning_start(self, prompt: str) -> ReasoningStart:
        return ReasoningStart.CLOSED


FUNCTIONARY_32 = _V32(
    "functionary-3.2",
    detected_by=((">>>all",), (">>>", "all\\n")),
    reader=_Reader,
    text_start=(_ALL, _ALL),
    text_end=_NEXT,
    # No layout begins with the marker: the prompt ends with it.
    part_mark=_NEXT,
    layouts=CallFormat("$name\n$args", separator=_NEXT, opener="").layouts,
)
