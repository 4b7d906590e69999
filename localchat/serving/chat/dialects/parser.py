r"""The streaming output parser: splits generated text into events for reasoning, content and tool calls.

`OutputParser` reads outputs with reasoning first, then text and calls, as most families generate them:

    <think>It is today.</think>\n\nLet me look.\n<tool_call>{"name": "f", "arguments": {}}</tool_call>
           reasoning                content                   a call of f, with the arguments {}

The text comes in pieces. How it is cut into pieces does not change the events, except where their texts are split. No
text is lost: text that begins like a tool call and is not one is content.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Callable, TypeVar, Union

from ...core.events import ContentDelta, Event, ReasoningDelta, ToolCallStart
from ...core.reasoning import ReasoningReader
from ...core.scan import Cursor, Emit, Markers, Mismatch, Reader
from .call_format import CallFormat
from .call_reader import read_calls, read_unmarked_call
from .calls import CallFound, CallProbe, Calls, new_call_id
from .raw_text import FormatText, RawText

if TYPE_CHECKING:
    from .dialect import Dialect, PromptEnd


ParserEvent = Union[Event, FormatText]
AnyEvent = TypeVar("AnyEvent", bound=ParserEvent)


class OutputParser:
    r"""Splits one choice's output into reasoning, content and tool calls.

    `dialect.parser(dialect)` makes the parser of a dialect. The methods from `_read` on are readers (see core/scan.py)
    of the text at the cursor. These read the parts of the output above, one after the other:

        <think>It is today.</think>\n\n    _first_reasoning
                                           _beginning_of_content: such as "all\n" in the family of Functionary
                                           _unmarked_call: {"name": "f", "arguments": {}} alone, without <tool_call>
        Let me look.\n<tool_call>...       _text_and_calls: _text, then _call_after for each opener
    """

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
        self.is_raw = is_raw
        self._dialect = dialect
        self._prompt_end = prompt_end or dialect.prompt_end(prompt="")
        self._is_constrained = is_constrained
        self._cursor = Cursor()
        self._events: list[ParserEvent] = []
        self._calls = Calls(tools, new_id, self._events.append)
        self._call_probe = CallProbe(tools, new_id, self._events.append)
        self._raw_text = RawText(self._cursor, self._calls, self._events.append, is_raw=is_raw)
        self._openers = dialect.openers if self._calls.names else ()
        is_open = self._prompt_end.reasoning == "open"
        markers = dialect.reasoning_markers(is_open=is_open, has_tools=bool(self._calls.names))
        self._reasoning = ReasoningReader(markers, self._cursor)
        # The markers that certainly end reasoning. After an opener, it may be found that reasoning goes on.
        self._certain_ends = Markers(*(end for end in markers.ends if end not in self._openers))
        # Whether there is no content so far, so that the rest of the output may be a call without markers.
        self._may_be_unmarked_call = bool(tools) and not (is_constrained or is_continued)
        self._reader = self._read()

    @property
    def has_tool_calls(self) -> bool:
        """Whether the output has a call so far."""
        return self._calls.n_begun > 0

    @property
    def inside_tool_call(self) -> bool:
        """Whether the text so far ends inside the arguments of a call."""
        return self._calls.is_open

    @property
    def reasoning_is_open(self) -> bool:
        """Whether the text so far ends inside reasoning."""
        return self._reasoning.is_open

    @property
    def reasoning_may_open(self) -> bool:
        """Whether reasoning is open or can still begin."""
        return self._reasoning.may_open

    @property
    def holds_text(self) -> bool:
        """Whether text is held back that may become a marker."""
        return self._cursor.done < len(self._cursor.text)

    def feed(self, text: str) -> list[ParserEvent]:
        """The events of the next piece of text. Text that may become a marker is held back."""
        self._raw_text.before_feed()
        self._cursor.feed(text)
        return self._next_events()

    def finish(self, *, is_cut: bool = False) -> list[ParserEvent]:
        """End the output, or with `is_cut`, note that a limit ended it. Returns the events of text held back."""
        self._cursor.ended, self._cursor.is_cut = True, is_cut
        return self._next_events()

    def _next_events(self) -> list[ParserEvent]:
        """Read the text up to where more is needed. Returns the events of it."""
        next(self._reader, None)
        self._raw_text.emit_until(self._cursor.done)
        events = merged(self._events)
        self._events.clear()
        return events

    # --- what the readers emit ---

    def _emit_content(self, text: str) -> None:
        """Emit text that was just read as content."""
        if text:
            self._emit_event(ContentDelta(text))
            self._may_be_unmarked_call = False

    def _emit_reasoning(self, text: str) -> None:
        """Emit text that was just read as reasoning."""
        if text:
            self._emit_event(ReasoningDelta(text))

    def _emit_event(self, event: ContentDelta | ReasoningDelta) -> None:
        self._raw_text.emit_until(self._cursor.at - len(event.text))
        self._events.append(event)
        self._raw_text.skip()

    # --- the output, from its beginning to its end ---

    def _read(self) -> Reader[None]:
        """Read the output: reasoning, the text that precedes content, then text and calls."""
        end = yield from self._first_reasoning()
        if not self.has_tool_calls:  # A call may have ended the reasoning.
            yield from self._beginning_of_content(end)
        yield from self._unmarked_call()
        yield from self._text_and_calls()

    def _first_reasoning(self) -> Reader[str | None]:
        """Read the reasoning at the beginning of the output. Returns the marker that ends it; None: there is none."""
        dialect = self._dialect
        if not self._reasoning.is_open:
            marker = yield from self._reasoning.read_start(dialect.no_reasoning)
            if not self._reasoning.is_open:
                if marker:
                    yield from self._space_after_reasoning()
                return None
        return (yield from self._open_reasoning())

    def _beginning_of_content(self, end: str | None) -> Reader[None]:
        r"""Read what precedes content after the marker `end` of reasoning, and a call that comes at once.

        In outputs of several families:

            all\nSure.                      "all\n", the first text of Functionary
            weather\n{"city": "Rome"}       a call of Functionary, which has no opener
            </think>\n\nSure.               nothing: the white space was read with the end tag
            <|START_RESPONSE|>Sure.        nothing: `_text_and_calls` drops the marker
            </think>\n\n{"a": 1}            in a constrained output, the white space of the family, and no more
        """
        cursor, dialect, starts = self._cursor, self._dialect, self._dialect.text_start
        start = starts.after_reasoning if end == dialect.reasoning.end else starts.first
        if not self._is_constrained:
            # A `start` of white space alone was read after the end tag, see `_space_after_reasoning`.
            if not start.isspace():
                yield from cursor.read_one_of(start)
            # A call with an opener is found in the text.
            yield from self._call_in(dialect.formats_without_opener)
            return
        if end in dialect.opening_markers:
            yield from cursor.read_run()
        yield from cursor.read_one_of(start)
        if not (yield from self._call_in(dialect.formats, *dialect.dropped)):
            # All text is that of the response format, which may contain the texts of markers.
            yield from cursor.emit_until(Markers(), self._emit_content)

    def _unmarked_call(self) -> Reader[None]:
        """Read the rest of the output if it is nothing but a call without the markers of the family."""
        if self._may_be_unmarked_call and not self.has_tool_calls:
            around = (*self._dialect.dropped, *self._dialect.text_tags)
            yield from self._attempt(read_unmarked_call(self._cursor, self._calls, *around), *around)

    def _text_and_calls(self) -> Reader[None]:
        """Read the rest of the output: text, calls, and reasoning in families that reason anywhere."""
        cursor, tags = self._cursor, self._dialect.reasoning
        in_text = (tags.start, tags.end) if self._dialect.reasons_anywhere else ()
        text_tags = self._dialect.text_tags
        is_tagged = bool(text_tags) and (yield from cursor.read_whole(text_tags[0]))
        ends = Markers(*self._dialect.dropped, *in_text, *(text_tags if is_tagged else ()))
        if is_tagged:
            yield from cursor.read_run()
        while marker := (yield from self._text(ends)):
            if marker in self._openers:  # A call was read.
                continue
            space = yield from cursor.read_run()
            if marker in in_text:  # The white space around reasoning is content.
                self._emit_content(space)
                cursor.take(len(marker))
                if marker == tags.start:  # An end tag without reasoning is dropped.
                    yield from self._open_reasoning()
            else:
                cursor.take(len(marker))
                yield from cursor.read_run()

    # --- text and reasoning, up to what ends them ---

    def _text(self, ends: Markers, *, holds_space: bool = True) -> Reader[str]:
        """Emit text up to a call, or up to one of the markers `ends`, which stays unread.

        Returns the opener of the call, which was read, or the marker; "" at the end of the output. Text that begins
        like a call and is not one is text.
        """
        markers = Markers(*ends.literals, *self._openers)
        while True:
            marker = yield from self._cursor.emit_until(markers, self._emit_content, holds_space=holds_space)
            if marker is None:
                return ""
            if marker not in self._openers or (yield from self._call_after(marker, self._emit_content)):
                return marker

    def _reasoning_text(self, *, holds_space: bool = True) -> Reader[str]:
        """Emit reasoning up to what ends it. Returns what `_text` does.

        A call inside reasoning that is closed later belongs to the reasoning.
        """
        while True:
            marker = yield from self._reasoning.read_text(self._emit_reasoning, holds_space=holds_space)
            if marker is None:
                return ""
            if marker in self._openers:
                if (yield from self._is_closed_later(marker)):
                    continue
                if not (yield from self._call_after(marker, self._emit_reasoning)):
                    continue
            self._reasoning.close()
            return marker

    def _open_reasoning(self) -> Reader[str]:
        """Read open reasoning and its end tag. Returns the marker that ends it; "" at the end of the output.

        Other markers than the end tag stay unread. A call also ends reasoning; it is read, and its opener returned.
        """
        self._reasoning.open()
        yield from self._cursor.read_run()
        marker = yield from self._reasoning_text()
        if marker == self._dialect.reasoning.end:
            yield from self._cursor.read_end(marker)
            yield from self._space_after_reasoning()
        return marker

    def _space_after_reasoning(self) -> Reader[None]:
        """Read white space, except in a constrained output, whose content may begin with it."""
        if not self._is_constrained:
            yield from self._cursor.read_run()

    def _is_closed_later(self, opener: str) -> Reader[bool]:
        """If a call is next and the end of the reasoning follows it, emit all up to this end as reasoning.

        Otherwise read nothing. Waits for the end of the reasoning or of the output.

            I could use <tool_call>{"name": "f"}</tool_call> here.</think>Hi   True: the model only thinks of the call
            I will look.<tool_call>{"name": "f"}</tool_call>                   False: the call ends the reasoning
            I will look.<tool_call> or not                                     False: no call is next
        """
        if not (yield from self._begins_call(opener)):
            return False
        cursor, ends, n_searched = self._cursor, self._certain_ends, 0
        while (end := ends.find(cursor.text, cursor.at + n_searched)) is None:
            if cursor.ended:
                return False
            n_searched = ends.safe_end(cursor.text, cursor.at) - cursor.at
            yield
        self._emit_reasoning(cursor.take(len(cursor.text[cursor.at : end[0]].rstrip())))
        return True

    # --- calls ---

    def _begins_call(self, opener: str) -> Reader[bool]:
        """Whether a call that begins with `opener` is next. It stays unread."""
        try:
            yield from self._call_in(self._dialect.formats_after(opener), calls=self._call_probe)
        except CallFound:
            self._cursor.rewind()
            return True
        return False

    def _call_after(self, opener: str, emit: Emit) -> Reader[bool]:
        """Read the call that begins with `opener`. If there is none, emit the first character of the opener."""
        if (yield from self._call_in(self._dialect.formats_after(opener))):
            return True
        emit((yield from self._cursor.read_run()) + self._cursor.take(1))
        return False

    def _call_in(
        self, formats: Iterable[CallFormat], *skipped: str, prefix: str = "", calls: Calls | None = None
    ) -> Reader[bool]:
        """Read a call in the first of these formats that matches. If none does, read nothing.

        The text `prefix` precedes the call, and then perhaps markers of `skipped`. `calls` takes the place of those of
        the output.
        """
        for format in formats if self._calls.names else ():
            reader = read_calls(format, self._cursor, calls or self._calls)
            if (yield from self._attempt(reader, *skipped, prefix=prefix)):
                return True
        return False

    def _attempt(self, call_reader: Reader[None], *skipped: str, prefix: str = "") -> Reader[bool]:
        """Run the reader of a call, and read the white space after the call. If it finds none, read nothing."""
        cursor = self._cursor
        with self._raw_text.of_call():
            cursor.checkpoint()
            cursor.take(len(prefix))
            try:
                while skipped and (yield from cursor.read_end(*skipped)):
                    pass
                yield from call_reader
            except Mismatch:
                cursor.rewind()
                return False
            cursor.commit()
            yield from cursor.read_run()
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
