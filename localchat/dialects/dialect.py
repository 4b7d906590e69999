"""What a format is, and the reader that most of them share: thinking first, then text and calls."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Callable

from ..prompt.fallbacks import CallsWriter, calls_text
from ..prompt.segments import Segment
from ..protocol.events import ContentDelta, Event, ReasoningDelta
from .call_layout import A_SPACE, CallLayout
from .calls import Calls
from .reasoning import THINK, ReasoningStart, ReasoningTags, reasoning_tags
from .scan import Cursor, Markers, Reader, is_next, one_of, read, space, stream

# Reads a call of which the opening marker was read; False if it is none and nothing was sent.
CallReader = Callable[[Cursor, Calls, str], Reader[bool]]


_GAPS = re.compile("[\x00-\x04]")


@dataclass(frozen=True)
class CallTexts(CallLayout):
    """One way in which a family writes calls, for whoever makes a model write them.

    Where arguments are written one by one the parser reads a JSON object in their place too.

    Attributes:
        opener: how calls begin, a text that gives them away; "" where only the name does.
        is_single: an answer has one call at most.
        is_native: the model writes calls so by itself; otherwise they are only read so.
        after_thought: what stands between thinking and calls.
        mark: a template without this text is of a model that writes calls otherwise.
        more: how calls after the first are written, if otherwise.
    """

    opener: str = ""
    is_single: bool = False
    is_native: bool = True
    after_thought: str = "\n\n"
    mark: str = ""
    more: CallTexts | None = None

    def bare(self, opener: str) -> CallTexts:
        """The same calls without what stands around all of them, as models forget to begin it."""
        return replace(self, opener=opener, begin="", end="")

    @property
    def fixed(self) -> tuple[str, ...]:
        """What is the same in all such calls, in pieces."""
        around = (self.begin, self.before_name, self.before_arguments, self.after_call, self.separator, self.end)
        return tuple(piece for text in (*around, self.after_thought) for piece in _GAPS.split(text) if piece)


def call_objects(
    opener: str,
    end: str,
    *,
    before_name: str = '{"name": "',
    before_arguments: str = '", "arguments": ',
    after_call: str = "}",
    line: str = "",
    indent: int | None = None,
) -> CallTexts:
    """Calls as a list of JSON objects between two texts, `line` parts them from the list."""
    return CallTexts(
        opener=opener,
        begin=f"{opener}{line}[{A_SPACE}",
        before_name=before_name,
        before_arguments=before_arguments,
        after_call=after_call,
        separator=f",{A_SPACE}",
        end=f"{A_SPACE}]{line}{end}",
        indent=indent,
    )


@dataclass(frozen=True)
class Dialect:
    """How one family writes its output.

    Attributes:
        name: for `--tool-format`.
        detected_by: sets of texts; a template that holds all of one set is of this family.
        openers: the markers that begin calls.
        read_call: reads what follows an opener.
        closers: the markers within and after a call.
        sections: markers that open the text or the calls of an output. They mean nothing more, but open reasoning
            ends where one of them comes.
        dropped: other markers around text or calls that mean nothing more.
        read_bare: reads a call without an opener where the answer begins with a brace.
        think: the tags around thinking.
        thinks_anywhere: reasoning may come again after text, and its end tag alone means nothing.
        no_thought: with what an answer begins that says that there is no thinking.
        write_calls: writes calls for a template that does not.
        text_start: what opens the text of an answer, and after thinking.
        text_end: what ends a text that calls follow, if anything has to.
        part_mark: where each part of an answer begins with what it is, text or a call: what stands between parts.
        call_texts: the ways in which calls may be written, the usual one first.
    """

    name: str
    detected_by: tuple[tuple[str, ...], ...]
    openers: tuple[str, ...] = ()
    read_call: CallReader | None = None
    closers: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    read_bare: CallReader | None = None
    think: ReasoningTags = THINK
    thinks_anywhere: bool = False
    no_thought: str = ""
    write_calls: CallsWriter = calls_text
    text_start: tuple[str, str] = ("", "\n\n")
    text_end: str = ""
    part_mark: str = ""
    call_texts: tuple[CallTexts, ...] = ()

    @property
    def thought_ends(self) -> tuple[str, ...]:
        """The markers that end reasoning. A call does so too, so that one in reasoning that was never closed counts."""
        return (self.think.end, *self.sections, *self.openers)

    @property
    def preserved(self) -> tuple[str, ...]:
        """The markers whose tokens must reach the parser as text, even where the vocabulary hides them."""
        around = (*self.sections, *self.dropped, *self.text_start, self.think.start, self.think.end)
        return (*self.openers, *self.closers, *around, *(text for texts in self.call_texts for text in texts.fixed))

    def fits(self, template: str) -> bool:
        """Whether a template is of this family."""
        return any(all(mark in template for mark in marks) for marks in self.detected_by)

    def for_template(self, template: str) -> Dialect:
        """This format with the thinking tags and the ways of calls that the template names, if it does."""
        named = tuple(texts for texts in self.call_texts if texts.mark in template)
        return replace(self, think=reasoning_tags(template) or self.think, call_texts=named or self.call_texts)

    def reasoning_start(self, prompt: str) -> ReasoningStart:
        """Where reasoning stands at the end of a prompt."""
        return self.think.start_state(prompt)

    def opened_thought(self, thought: str, prompt: str) -> list[Segment]:
        """What a prompt needs more to go on with this thinking (K24)."""
        start = [] if self.reasoning_start(prompt) is ReasoningStart.OPEN else [Segment(self.think.start + "\n", True)]
        return [*start, Segment(thought, False)]

    def opened_text(self, thought: str, text: str, prompt: str) -> list[Segment]:
        """What a prompt needs more to go on with this text after this thinking, if any (K24)."""
        if not thought and self.reasoning_start(prompt) is not ReasoningStart.OPEN:
            return [Segment(self.text_start[0], True), Segment(text, False)]
        end = Segment("\n" + self.think.end + self.text_start[1], True)
        return [*self.opened_thought(thought, prompt), end, Segment(text, False)]

    def read(
        self, cursor: Cursor, calls: Calls, prompt: str, reasoning: bool, *, has_form: bool = False
    ) -> Reader[None]:
        """Read a whole answer. With `has_form` it is calls, or a text of which every character counts."""
        calls.reasoning_is_open = self.reasoning_start(prompt) is ReasoningStart.OPEN
        end = yield from self._reasoning_first(cursor, calls, reasoning, has_form)
        is_call = calls.made > 0
        if has_form and not is_call:
            if end in self.sections:
                yield from space(cursor)
            opening = yield from one_of(cursor, self.text_start[end == self.think.end])
            if opening and opening.isspace() and not reasoning:
                yield ContentDelta(opening)
        if self.read_bare and calls.offered and not is_call:
            cursor.begin()
            yield from space(cursor)
            is_call = (yield from is_next(cursor, "{")) and (yield from self.read_bare(cursor, calls, ""))
            yield from self._after_first(cursor, is_call)
        if has_form and not is_call and not (yield from self._first_call(cursor, calls)):
            yield from stream(cursor, Markers(), ContentDelta)
        yield from self._text_and_calls(cursor, calls, reasoning)

    def _first_call(self, cursor: Cursor, calls: Calls) -> Reader[bool]:
        """Read a call, if one comes first; else nothing."""
        openers = self.openers if calls.offered else ()
        cursor.begin()
        marker: str | None = ""
        while marker is not None and marker not in openers:
            yield from space(cursor)
            marker = yield from one_of(cursor, *openers, *self.sections, *self.dropped)
        is_call = False
        if marker and self.read_call:
            is_call = yield from self.read_call(cursor, calls, marker)
        yield from self._after_first(cursor, is_call)
        return is_call

    def _after_first(self, cursor: Cursor, is_call: bool) -> Reader[None]:
        if is_call:
            yield from self._after(cursor, True)
        else:
            cursor.put_back()

    def _text_and_calls(self, cursor: Cursor, calls: Calls, reasoning: bool) -> Reader[None]:
        openers = self.openers if calls.offered else ()
        tags = (self.think.start, self.think.end) if self.thinks_anywhere else ()
        markers = Markers(*openers, *self.sections, *self.dropped, *tags)
        while True:
            marker = yield from stream(cursor, markers, ContentDelta)
            if marker is None:
                return
            if marker in tags:
                yield from self._reasoning_within(cursor, calls, reasoning, marker)
            elif marker in openers:
                yield from self._call_from(cursor, calls, marker, ContentDelta)
            else:
                read(cursor, marker)
                yield from space(cursor)

    def _call_from(self, cursor: Cursor, calls: Calls, opener: str, event: Callable[[str], Event]) -> Reader[bool]:
        """Read a call from its opener on. What only begins like one is sent as text, in such events."""
        cursor.begin()
        read(cursor, opener)
        is_call = self.read_call is not None and (yield from self.read_call(cursor, calls, opener))
        yield from self._after(cursor, is_call, event)
        return is_call

    def _after(self, cursor: Cursor, is_call: bool, event: Callable[[str], Event] = ContentDelta) -> Reader[None]:
        if is_call:
            cursor.commit()
            yield from space(cursor)
        else:
            yield event(cursor.recorded())

    def _reasoning_first(self, cursor: Cursor, calls: Calls, reasoning: bool, has_form: bool) -> Reader[str | None]:
        """Read reasoning at the start of the output, if it starts so or the prompt opened it.

        Returns the marker that ended it, "" at the end of the output; None if there is no reasoning.
        """
        cursor.begin()
        yield from space(cursor)
        if not calls.reasoning_is_open:
            start = yield from one_of(cursor, *filter(None, (self.think.start, self.no_thought)))
            if start is None:
                calls.reasoning_may_open = self.thinks_anywhere
                cursor.put_back()
                return None
            if start == self.no_thought:
                calls.reasoning_may_open = False
                yield from self._seam(cursor, reasoning, has_form)
                return None
        calls.reasoning_is_open = True
        yield from space(cursor)
        opening = cursor.recorded()
        if not reasoning and opening:
            yield ContentDelta(opening)
        end = yield from self._reasoning(cursor, calls, reasoning)
        if end == self.think.end:
            cursor.begin()
            read(cursor, end)
            yield from self._seam(cursor, reasoning, has_form)
        return end

    def _reasoning_within(self, cursor: Cursor, calls: Calls, reasoning: bool, tag: str) -> Reader[None]:
        """Read reasoning in the midst of text, or an end tag that ends none. The white space around is of the text."""
        before = cursor.text[cursor.at : cursor.text.index(tag, cursor.at)]
        if before:
            yield ContentDelta(before)
        read(cursor, tag)
        if tag == self.think.end:
            return
        calls.reasoning_is_open = True
        cursor.begin()
        yield from space(cursor)
        opening = tag + cursor.recorded()
        if not reasoning:
            yield ContentDelta(opening)
        end = yield from self._reasoning(cursor, calls, reasoning)
        if end == self.think.end:
            cursor.begin()
            read(cursor, end)
            closing = cursor.recorded()
            if not reasoning:
                yield ContentDelta(closing)

    def _reasoning(self, cursor: Cursor, calls: Calls, reasoning: bool) -> Reader[str]:
        """Read open reasoning up to the marker that ends it, which is not read yet; "" if the output ends first.

        A call ends it too, and its opener is the marker then. What only begins like a call is part of the reasoning.
        """
        event: Callable[[str], Event] = ReasoningDelta if reasoning else ContentDelta
        openers = self.openers if calls.offered else ()
        markers = Markers(self.think.end, *self.sections, *openers)
        while True:
            calls.reasoning_is_open = calls.reasoning_may_open = True
            marker = yield from stream(cursor, markers, event)
            if marker is None:
                return ""
            calls.reasoning_is_open = False
            if marker not in openers or (yield from self._call_from(cursor, calls, marker, event)):
                calls.reasoning_may_open = self.thinks_anywhere
                return marker

    def _seam(self, cursor: Cursor, reasoning: bool, has_form: bool) -> Reader[None]:
        """Read the white space after an end tag, which with the tag is content where thinking is.

        Before a form it may be part of that.
        """
        if not has_form:
            yield from space(cursor)
        closing = cursor.recorded()
        if not reasoning:
            yield ContentDelta(closing)
