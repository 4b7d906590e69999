"""The parser of outputs with reasoning first, then text and tool calls: the format of most families."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

from ...core.events import ContentDelta, Event, ReasoningDelta
from .calls import Calls
from .reasoning import ReasoningStart
from .scan import Cursor, Markers, Reader, emit_until, is_next, read_marker, read_one_of, read_space

if TYPE_CHECKING:
    from .dialect import Dialect


class OutputReader:
    """Parses one output. Its methods are readers (see scan.py) of the text at the cursor.

    Attributes:
        reasoning_is_open: Whether the text read so far ends inside reasoning.
        reasoning_may_open: Whether reasoning can still begin.
    """

    def __init__(
        self,
        dialect: Dialect,
        cursor: Cursor,
        calls: Calls,
        prompt: str,
        *,
        splits_reasoning: bool,
        is_constrained: bool,
    ) -> None:
        """Start before the first character of an output. See OutputParser for the arguments."""
        self.reasoning_is_open = dialect.reasoning_start(prompt) is ReasoningStart.OPEN
        self.reasoning_may_open = True
        self._dialect = dialect
        self._cursor = cursor
        self._calls = calls
        self._prompt = prompt
        self._splits_reasoning = splits_reasoning
        self._is_constrained = is_constrained
        # Without tools, no text is a call.
        self._openers = dialect.openers if calls.offered else ()

    def read(self) -> Reader[None]:
        """Read the whole output."""
        end = yield from self._first_reasoning()
        # A call may have ended the reasoning.
        is_call = self._calls.made > 0
        if self._is_constrained and not is_call:
            yield from self._text_start(end)
        if not is_call:
            is_call = yield from self._bare_call()
        if self._is_constrained and not is_call and not (yield from self._first_call()):
            yield from emit_until(self._cursor, Markers(), ContentDelta)
        yield from self._text_and_calls()

    def _text_start(self, end: str | None) -> Reader[None]:
        """Read the text that the grammar has before the content. `end` is the marker that ended reasoning."""
        dialect = self._dialect
        if end in dialect.section_markers:
            yield from read_space(self._cursor)
        text = yield from read_one_of(self._cursor, dialect.text_start[end == dialect.reasoning.end])
        if text and text.isspace() and not self._splits_reasoning:
            yield ContentDelta(text)

    # Calls

    def _bare_call(self) -> Reader[bool]:
        """Read a call at the beginning of the output, if the family has calls without an opener."""
        style = next((style for style in self._dialect.calls if not style.openers), None)
        if style is None or not self._calls.offered:
            return False
        self._cursor.begin()
        yield from read_space(self._cursor)
        is_call = (yield from is_next(self._cursor, "{")) and (yield from style.read(self._cursor, self._calls, ""))
        yield from self._accept_or_put_back(is_call)
        return is_call

    def _first_call(self) -> Reader[bool]:
        """Read a call, if the next text is one; else nothing."""
        self._cursor.begin()
        marker: str | None = ""
        while marker is not None and marker not in self._openers:
            yield from read_space(self._cursor)
            marker = yield from read_one_of(self._cursor, *self._openers, *self._dialect.dropped)
        is_call = marker is not None and (yield from self._styles(marker))
        yield from self._accept_or_put_back(is_call)
        return is_call

    def _accept_or_put_back(self, is_call: bool) -> Reader[None]:
        """End the record of an attempt to read a call: if it was none, its text is unread again."""
        if is_call:
            yield from self._accept()
        else:
            self._cursor.put_back()

    def _call(self, opener: str, event: Callable[[str], Event]) -> Reader[bool]:
        """Read a call, beginning with its opener. Text that is not a call after all is emitted with `event`."""
        self._cursor.begin()
        read_marker(self._cursor, opener)
        is_call = yield from self._styles(opener)
        yield from self._accept_or_emit(is_call, event)
        return is_call

    def _styles(self, opener: str, calls: Calls | None = None) -> Reader[bool]:
        """Try the call formats with this opener in order. Returns whether the text is a call in one of them."""
        n_read = self._cursor.n_recorded
        for style in self._dialect.styles:
            if opener in style.openers:
                if (yield from style.read(self._cursor, calls or self._calls, opener)):
                    return True
                self._cursor.put_back(n_read)
        return False

    def _accept_or_emit(self, is_call: bool, event: Callable[[str], Event]) -> Reader[None]:
        """End the record of an attempt to read a call: if it was none, its text is emitted."""
        if is_call:
            yield from self._accept()
        else:
            yield event(self._cursor.end_record())

    def _accept(self) -> Reader[None]:
        """Drop the record of a call, and read the white space after the call."""
        self._cursor.drop_record()
        yield from read_space(self._cursor)

    # Text

    def _text_and_calls(self) -> Reader[None]:
        tags = self._dialect.reasoning
        in_text = (tags.start, tags.end) if self._dialect.reasons_anywhere else ()
        markers = Markers(*self._openers, *self._dialect.dropped, *in_text)
        while True:
            marker = yield from emit_until(self._cursor, markers, ContentDelta)
            if marker is None:
                return
            if marker in in_text:
                yield from self._reasoning_in_text(marker)
            elif marker in self._openers:
                yield from self._call(marker, ContentDelta)
            else:
                read_marker(self._cursor, marker)
                yield from read_space(self._cursor)

    # Reasoning

    def _first_reasoning(self) -> Reader[str | None]:
        """Read the reasoning at the beginning of the output.

        Returns the marker that ended the reasoning, "" at the end of the output; None if there is no reasoning.
        """
        cursor, dialect = self._cursor, self._dialect
        cursor.begin()
        yield from read_space(cursor)
        if not self.reasoning_is_open:
            start = yield from read_one_of(cursor, *filter(None, (dialect.reasoning.start, dialect.no_reasoning)))
            if start is None:
                self.reasoning_may_open = dialect.reasons_anywhere
                cursor.put_back()
                return None
            if start == dialect.no_reasoning:
                self.reasoning_may_open = False
                yield from self._after_end_tag()
                return None
        self.reasoning_is_open = True
        yield from read_space(cursor)
        yield from self._tag(cursor.end_record())
        end = yield from self._reasoning()
        if end == dialect.reasoning.end:
            cursor.begin()
            read_marker(cursor, end)
            yield from self._after_end_tag()
        return end

    def _after_end_tag(self) -> Reader[None]:
        """Read the white space after an end tag, except in a constrained output, whose content may begin with it."""
        if not self._is_constrained:
            yield from read_space(self._cursor)
        yield from self._tag(self._cursor.end_record())

    def _reasoning_in_text(self, tag: str) -> Reader[None]:
        """Read reasoning after text, or an end tag without reasoning. The white space around it is content."""
        cursor = self._cursor
        before = cursor.text[cursor.at : cursor.text.index(tag, cursor.at)]
        if before:
            yield ContentDelta(before)
        read_marker(cursor, tag)
        if tag == self._dialect.reasoning.end:
            return
        self.reasoning_is_open = True
        cursor.begin()
        yield from read_space(cursor)
        yield from self._tag(tag + cursor.end_record())
        end = yield from self._reasoning()
        if end == self._dialect.reasoning.end:
            cursor.begin()
            read_marker(cursor, end)
            yield from self._tag(cursor.end_record())

    def _tag(self, text: str) -> Reader[None]:
        """Emit a tag and the white space around it, if reasoning is part of the content."""
        if text and not self._splits_reasoning:
            yield ContentDelta(text)

    def _reasoning(self) -> Reader[str]:
        """Read open reasoning. Returns the marker that ends it, which stays unread; "" at the end of the output.

        A call also ends reasoning; it is read, and the marker returned is its opener. Text that begins like a call and
        is not one is part of the reasoning.
        """
        dialect = self._dialect
        event: Callable[[str], Event] = ReasoningDelta if self._splits_reasoning else ContentDelta
        ends = Markers(dialect.reasoning.end, *dialect.reasoning_sections)
        markers = Markers(*ends.literals, *self._openers)
        while True:
            self.reasoning_is_open = self.reasoning_may_open = True
            marker = yield from emit_until(self._cursor, markers, event)
            if marker is None:
                return ""
            self.reasoning_is_open = False
            is_call = marker in self._openers
            if is_call and (yield from self._is_closed_later(marker, ends, event)):
                continue
            if not is_call or (yield from self._call(marker, event)):
                self.reasoning_may_open = dialect.reasons_anywhere
                return marker

    def _is_closed_later(self, opener: str, ends: Markers, event: Callable[[str], Event]) -> Reader[bool]:
        """Emit the open reasoning up to its end, if a call is next and the end follows. Otherwise read nothing.

        A call inside closed reasoning is reasoning, so it waits for the end of the reasoning or of the output.
        """
        cursor = self._cursor
        cursor.begin()
        read_marker(cursor, opener)
        is_call = False
        for found in self._styles(opener, self._calls.trial()):
            is_call = found is not None
            if is_call:
                break
            yield None
        cursor.put_back()
        n_searched = 0
        while is_call:
            hit = ends.find(cursor.text, cursor.at + n_searched)
            if hit:
                yield event(cursor.take(len(cursor.text[cursor.at : hit[0]].rstrip())))
                return True
            if cursor.ended:
                break
            n_searched = ends.safe_end(cursor.text, cursor.at) - cursor.at
            yield None
        return False
