"""The streaming output parser: splits generated text into events for reasoning, content and tool calls.

`OutputParser` reads outputs with reasoning first, then text and calls, as most families generate them. The text comes
in pieces. How it is cut into pieces does not change the events, except where their texts are split. No text is lost:
text that begins like a tool call and is not one is content.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, TypeVar, Union

from ...core.events import ContentDelta, Event, ReasoningDelta, ToolCallStart
from ...core.scan import Cursor, Emit, Markers, Mismatch, Reader
from .call_reader import read_calls, read_sole_call
from .calls import CallFound, Calls, new_call_id

if TYPE_CHECKING:
    from .dialect import Dialect, PromptEnd


@dataclass(frozen=True)
class FormatText:
    """Text of the format in a raw output, such as tags. `chat/runs/` makes content of it; it has no stop texts."""

    text: str


ParserEvent = Union[Event, FormatText]
AnyEvent = TypeVar("AnyEvent", bound=ParserEvent)


class OutputParser:
    """Splits one choice's output into reasoning, content and tool calls.

    `OutputParser(dialect)` is an object of the class that the dialect declares. The methods from `_read` on are readers
    (see core/scan.py) of the text at the cursor.
    """

    def __new__(cls, dialect: Dialect, **options: Any) -> OutputParser:
        return object.__new__(dialect.parser)

    def __init__(
        self,
        dialect: Dialect,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        prompt_end: PromptEnd | None = None,
        is_constrained: bool = False,
        is_continued: bool = False,
        is_raw: bool = False,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        """Without `tools`, no text is a call.

        `prompt_end` is that of the rendered prompt; None: an empty prompt. `is_constrained`: the request has a response
        format, so the text after reasoning is calls or content. `is_continued`: the prompt ends with the beginning of
        the content. `is_raw`: emit all text outside calls as it is, also that of the format.
        """
        self._prompt_end = prompt_end or dialect.prompt_end("")
        # Whether the text so far ends inside reasoning, and whether reasoning can still begin.
        self.reasoning_is_open = self._prompt_end.reasoning == "open"
        self.reasoning_may_open = True
        self.is_raw = is_raw
        self._events: list[ParserEvent] = []
        self._dialect = dialect
        self._cursor = Cursor()
        self._calls = Calls(tools, new_id, self._events.append)
        self._is_constrained = is_constrained
        self._openers = dialect.openers if self._calls.schemas else ()
        # Whether the rest of the output may be the only text, and so be a call without the markers of the family.
        self._may_be_sole_call = bool(tools) and not (is_constrained or is_continued)
        self._is_in_call = False  # Whether the next text may belong to a call.
        self._reader = self._read()

    @property
    def has_tool_calls(self) -> bool:
        """Whether the output has a call so far."""
        return self._calls.n_begun > 0

    @property
    def inside_tool_call(self) -> bool:
        """Whether the text so far ends inside the arguments of a call."""
        return self._calls.is_open

    def feed(self, text: str) -> list[ParserEvent]:
        """The events of the next piece of text. Text that may become a marker is held back."""
        self._cursor.feed(text)
        return self._next_events()

    def finish(self) -> list[ParserEvent]:
        """End the output. Returns the events of the text that was held back."""
        self._cursor.ended = True
        return self._next_events()

    def _next_events(self) -> list[ParserEvent]:
        """Read the text up to where more is needed. Returns the events of it."""
        next(self._reader, None)
        self._emit_format(self._cursor.done)
        events = merged(self._events)
        self._events.clear()
        return events

    def _emit(self, text: str, *, is_reasoning: bool = False) -> None:
        """Emit text that was just read, as content or reasoning."""
        if text:
            self._emit_format(self._cursor.at - len(text))
            self._events.append(ReasoningDelta(text) if is_reasoning else ContentDelta(text))
            self._cursor.shown = self._cursor.at
            self._may_be_sole_call = self._may_be_sole_call and is_reasoning

    def _emit_format(self, end: int) -> None:
        """In a raw output, emit the text before `end` that was not emitted, unless it belongs to a call."""
        cursor = self._cursor
        if self.is_raw and not self._is_in_call and cursor.shown < end:
            self._events.append(FormatText(cursor.text[cursor.shown : end]))
            cursor.shown = end

    def _read(self) -> Reader[None]:
        """Read the output: reasoning, the text that precedes content, then text and calls."""
        cursor, dialect = self._cursor, self._dialect
        end = yield from self._first_reasoning()
        # A call may have ended the reasoning.
        if not self.has_tool_calls:
            if self._is_constrained and end in dialect.section_markers:
                yield from cursor.read_run()
            starts = dialect.text_start
            start = starts.after_reasoning if end == dialect.reasoning.end else starts.first
            # White space belongs to the format only if the constraint requires it.
            if self._is_constrained or not start.isspace():
                yield from cursor.read_one_of(start)
            # In a constrained output the call may have any format, in others only one without opener.
            opener, skipped = (None, dialect.dropped) if self._is_constrained else ("", ())
            is_call = yield from self._any_call(opener, *skipped)
            if self._is_constrained and not is_call:
                yield from cursor.emit_until(Markers(), self._emit)
        yield from self._sole_call()
        yield from self._text_and_calls()

    def _any_call(self, opener: str | None, *skipped: str) -> Reader[bool]:
        """Read a call in the first format that matches, and the white space after it. If none does, read nothing.

        `opener` is the marker of the formats to try; "": those without; None: all. The markers `skipped` may precede
        the call.
        """
        for format in self._dialect.formats if self._calls.schemas else ():
            if opener is not None and not (format.opener.startswith(opener) if opener else not format.opener):
                continue
            if (yield from self._is_call(read_calls(format, self._cursor, self._calls), *skipped)):
                return True
        return False

    def _is_call(self, reader: Reader[None], *skipped: str) -> Reader[bool]:
        """Read a call, which is what `reader` reads, and the white space after it. If it is none, read nothing."""
        cursor = self._cursor
        with self._text_of_call():
            cursor.begin()
            try:
                while skipped and (yield from cursor.read_end(*skipped)):
                    pass
                yield from reader
            except Mismatch:
                cursor.put_back()
                return False
            cursor.end_record()
            yield from cursor.read_run()
            return True

    @contextlib.contextmanager
    def _text_of_call(self, n_before: int = 0) -> Iterator[None]:
        """If a call begins in this block, what the block reads is its text, as are the `n_before` characters before."""
        self._emit_format(self._cursor.at - n_before)
        n_calls, was_in_call = self._calls.n_begun, self._is_in_call
        self._is_in_call = True
        try:
            yield
        finally:
            self._is_in_call = was_in_call
            if self._calls.n_begun > n_calls:
                self._cursor.shown = self._cursor.at

    def _sole_call(self) -> Reader[None]:
        """Read the rest of the output if it is nothing but a call without the markers of the family."""
        if self._may_be_sole_call and not self.has_tool_calls:
            around = (*self._dialect.dropped, *self._dialect.text_tags)
            yield from self._is_call(read_sole_call(self._cursor, self._calls, *around), *around)

    def _part(self, ends: Markers, *, is_reasoning: bool = False, holds_space: bool = True) -> Reader[str]:
        """Emit text or reasoning up to a call, or up to one of the markers `ends`, which stays unread.

        Returns the opener of the call, which was read, or the marker; "" at the end of the output. Text that begins
        like a call and is not one belongs to the part, and so does a call inside reasoning that is closed later.
        """
        emit: Emit = partial(self._emit, is_reasoning=True) if is_reasoning else self._emit
        markers = Markers(*ends.literals, *self._openers)
        while True:
            # At the end of the output, reasoning stays open.
            self.reasoning_is_open = self.reasoning_is_open or is_reasoning
            marker = yield from self._cursor.emit_until(markers, emit, holds_space=holds_space)
            if marker is None:
                return ""
            self.reasoning_is_open = False
            if marker not in self._openers:
                return marker
            if is_reasoning and (yield from self._is_closed_later(marker, ends)):
                continue
            if (yield from self._any_call(marker)):
                return marker
            # It is none after all.
            emit((yield from self._cursor.read_run()) + self._cursor.take(1))

    def _text_and_calls(self) -> Reader[None]:
        """Read the rest of the output: text, calls, and reasoning in families that reason anywhere."""
        cursor, tags = self._cursor, self._dialect.reasoning
        in_text = (tags.start, tags.end) if self._dialect.reasons_anywhere else ()
        text_tags = self._dialect.text_tags
        is_tagged = bool(text_tags) and (yield from cursor.read_whole(text_tags[0]))
        ends = Markers(*self._dialect.dropped, *in_text, *(text_tags if is_tagged else ()))
        if is_tagged:
            yield from cursor.read_run()
        while marker := (yield from self._part(ends)):
            if marker in self._openers:
                continue
            space = yield from cursor.read_run()
            # The white space around reasoning is content. An end tag without reasoning is dropped.
            self._emit(space if marker in in_text else "")
            cursor.take(len(marker))
            if marker not in in_text:
                yield from cursor.read_run()
            elif marker == tags.start:
                yield from self._reasoning()

    def _first_reasoning(self) -> Reader[str | None]:
        """Read the reasoning at the beginning of the output. Returns what `_reasoning` does; None: there is none."""
        dialect = self._dialect
        if not self.reasoning_is_open:
            start = yield from self._cursor.read_whole(dialect.reasoning.start, dialect.no_reasoning)
            self.reasoning_may_open = dialect.reasons_anywhere or start == dialect.reasoning.start
            if start != dialect.reasoning.start:
                if start:
                    yield from self._space_after_reasoning()
                return None
        return (yield from self._reasoning())

    def _reasoning(self) -> Reader[str]:
        """Read open reasoning and its end tag. Returns the marker that ends it; "" at the end of the output.

        Other markers than the end tag stay unread. A call also ends reasoning; it is read, and its opener returned.
        """
        self.reasoning_is_open, dialect = True, self._dialect
        yield from self._cursor.read_run()
        marker = yield from self._part(Markers(dialect.reasoning.end, *dialect.section_markers), is_reasoning=True)
        self.reasoning_may_open = dialect.reasons_anywhere
        if marker == dialect.reasoning.end:
            yield from self._cursor.read_end(marker)
            yield from self._space_after_reasoning()
        return marker

    def _space_after_reasoning(self) -> Reader[None]:
        """Read white space, except in a constrained output, whose content may begin with it."""
        if not self._is_constrained:
            yield from self._cursor.read_run()

    def _is_closed_later(self, opener: str, ends: Markers) -> Reader[bool]:
        """If a call is next and the end of the reasoning follows it, emit all up to this end as reasoning.

        Otherwise read nothing. Waits for the end of the reasoning or of the output.
        """
        cursor, n_searched = self._cursor, 0
        self._calls.is_trial = True
        try:
            yield from self._any_call(opener)
            return False
        except CallFound:
            cursor.put_back()
        finally:
            self._calls.is_trial = False
        while (end := ends.find(cursor.text, cursor.at + n_searched)) is None:
            if cursor.ended:
                return False
            n_searched = ends.safe_end(cursor.text, cursor.at) - cursor.at
            yield
        self._emit(cursor.take(len(cursor.text[cursor.at : end[0]].rstrip())), is_reasoning=True)
        return True


def merged(events: list[AnyEvent]) -> list[AnyEvent]:
    """The same events, with the texts of adjacent events of one kind joined."""
    if len(events) < 2:
        return events[:]
    result: list[Any] = []
    for event in events:
        last = result[-1] if result else None
        differs = type(last) is not type(event) or getattr(last, "index", 0) != getattr(event, "index", 0)
        if last is None or differs or isinstance(event, ToolCallStart) or isinstance(last, ToolCallStart):
            result.append(event)
        else:
            result[-1] = replace(event, text=last.text + event.text)
    return result
