"""The parsers of families whose markers around text also occur in ordinary text: Functionary 3.2 and Granite 3."""

from __future__ import annotations

from .call_reader import read_arguments
from .parser import OutputParser
from .scan import Markers, Reader, emit_until, has_text, read_marker, read_one_of, read_run

NEXT_PART = ">>>"
ALL = "all\n"
RESPONSE, RESPONSE_END = "<response>", "</response>"


class FunctionaryParser(OutputParser):
    """Parts with a recipient: `all` for text, or the name of a tool. Without a recipient, `>>>` is text."""

    def _read(self) -> Reader[None]:
        cursor = self._cursor
        self.reasoning_may_open = False
        names = {name + "\n": name for name in self._calls.schemas}
        marks = {NEXT_PART + recipient: recipient for recipient in (ALL, *names)}
        # Text of a response format extends to the end of the output, and may contain the text of a marker.
        text_markers = Markers(*(() if self._is_constrained else marks))
        # The prompt may end with the first marker and its recipient.
        mark = yield from read_one_of(cursor, *marks, *marks.values())
        while True:
            recipient = marks.get(mark, mark) if mark else None
            if recipient in names:
                mark = yield from read_arguments(cursor, self._calls, names[recipient], *marks)
                continue
            mark = yield from emit_until(cursor, text_markers, self._content, holds_space=not self._is_constrained)
            if mark is None:
                return
            read_marker(cursor, mark)


class GraniteParser(OutputParser):
    """`<response>text</response>`, then calls. The tags are dropped only around the whole text."""

    def _text_and_calls(self) -> Reader[None]:
        cursor = self._cursor
        cursor.begin()
        yield from read_run(cursor)
        is_opened = (yield from read_one_of(cursor, RESPONSE)) is not None
        yield from self._end_record(is_opened)
        # Without the start tag, an end tag belongs to the text.
        markers = Markers(*self._openers, *((RESPONSE_END,) if is_opened else ()))
        while True:
            marker = yield from emit_until(cursor, markers, self._content)
            if marker is None:
                return
            if marker != RESPONSE_END:
                yield from self._call(marker, self._content)
                continue
            cursor.begin()
            read_marker(cursor, marker)
            yield from read_run(cursor)
            is_last = not (yield from has_text(cursor))
            if is_last or (self._openers and (yield from self._any_call(self._dialect.styles))):
                yield from self._end_record(True)
            else:
                # An end tag that other text follows belongs to the text.
                self._content(cursor.end_record())
