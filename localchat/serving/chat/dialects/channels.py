"""The parser of outputs in channels: messages whose header marks them as reasoning, text or a call.

gpt-oss: <|channel|>analysis<|message|>text<|end|><|start|>assistant<|channel|>final<|message|>text
<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>
Muse Glimmer:  to=self<|message|>text<|eom|><|start|>assistant to=f<|message|><atem:function_calls>
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Callable

from ...core.events import ContentDelta, Event, ReasoningDelta
from .call_layout import call_layouts
from .dialect import Dialect
from .json_calls import read_arguments
from .parser import OutputParser
from .reasoning import ReasoningStart, ReasoningTags
from .scan import Markers, Reader, Silent, emit_until, has_text, read_end, read_marker, read_one_of, read_until

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")


class ChannelParser(OutputParser):
    """Parses headers up to <|message|>, and bodies up to an end marker of the dialect or the next header."""

    _dialect: ChannelDialect

    def _read(self) -> Reader[None]:
        cursor = self._cursor
        header = open_header(self._prompt)
        while header is not None or (yield from has_text(cursor)):
            cursor.begin()
            if header is None:
                header = yield from self._header()
            if header is None:
                yield from self._loose_text()
            else:
                yield from self._message(header)
            header = None

    def _header(self) -> Silent[str | None]:
        """Read a header; None if the next text is not a complete header."""
        start = yield from read_one_of(self._cursor, START + "assistant", CHANNEL, " to=", "to=")
        if start is None:
            return None
        text, end = yield from read_until(self._cursor, MESSAGE)
        return start + text if end else None

    def _loose_text(self) -> Reader[None]:
        """Emit text without a header as content, up to the next header."""
        raw = self._cursor.end_record() or (yield from read_one_of(self._cursor, START))
        if raw:
            yield ContentDelta(raw)
        yield from emit_until(self._cursor, Markers(START, CHANNEL), ContentDelta, holds_space=False)

    def _message(self, header: str) -> Reader[None]:
        """Read the body of a message, whose header marks it as reasoning, text or a call."""
        cursor, raw = self._cursor, self._cursor.end_record()
        match = _RECIPIENT.search(header)
        name = match[1] if match else "user"
        if self._calls.may_call(name):
            yield from self._message_call(name, raw)
            return
        is_reasoning = self._dialect.is_reasoning(header)
        splits = is_reasoning and self._splits_reasoning
        # The header is text if the recipient is a tool that is not offered, or if reasoning is part of the content.
        is_text = name == "user" and not is_reasoning
        shows_header = not is_text and not splits
        if shows_header and raw:
            yield ContentDelta(raw)
        event: Callable[[str], Event] = ReasoningDelta if splits else ContentDelta
        # Text of a response format extends to the end of the output, and may contain the texts of markers.
        is_formatted = self._is_constrained and is_text
        end = yield from self._body(event, is_reasoning=is_reasoning, is_formatted=is_formatted)
        if end in self._dialect.ends:
            read_marker(cursor, end)
            if shows_header:
                yield ContentDelta(end)

    def _body(self, event: Callable[[str], Event], *, is_reasoning: bool, is_formatted: bool) -> Reader[str]:
        """Emit a body. Returns the marker that ends it, which stays unread; "" after a call or at the end of output."""
        ends = (*self._dialect.ends, START, CHANNEL)
        markers = Markers() if is_formatted else Markers(*ends, *self._openers)
        while True:
            self.reasoning_is_open = is_reasoning
            marker = yield from emit_until(self._cursor, markers, event, holds_space=False)
            self.reasoning_is_open = is_reasoning and marker is None
            if marker not in self._openers:
                return marker or ""
            if is_reasoning and (yield from self._is_closed_later(marker, Markers(*ends), event)):
                continue
            if (yield from self._call(marker, event)):
                yield from read_end(self._cursor, *self._dialect.ends)
                return ""

    def _message_call(self, name: str, raw: str) -> Reader[None]:
        """Read the body of a call of the tool `name`: JSON, or tags with the name. `raw` is the header."""
        cursor = self._cursor
        if not self._openers:
            yield from read_arguments(cursor, self._calls, name, *self._dialect.ends)
            return
        cursor.begin()
        if (yield from self._any_call(self._dialect.styles)):
            cursor.end_record()
            yield from read_end(cursor, *self._dialect.ends)
        else:
            yield ContentDelta(raw + cursor.end_record())


@dataclass(frozen=True)
class ChannelDialect(Dialect):
    """A family whose output is messages with headers."""

    ends: tuple[str, ...] = ()
    """The markers that end a message."""
    reasoning_header: str = ""
    """A message is reasoning if its header contains this text."""
    reasons_anywhere: bool = True
    parser: type[OutputParser] = ChannelParser

    @property
    def reasoning_ends(self) -> tuple[str, ...]:
        return (*self.ends, START, CHANNEL, *self.openers)

    @property
    def preserved(self) -> tuple[str, ...]:
        return (START, CHANNEL, MESSAGE, "<|constrain|>", *self.ends)

    def is_reasoning(self, header: str) -> bool:
        """Whether the message with this header is reasoning."""
        return self.reasoning_header in header and "to=functions" not in header

    def reasoning_start(self, prompt: str) -> ReasoningStart:
        header = open_header(prompt)
        is_open = header is not None and self.is_reasoning(header)
        return ReasoningStart.OPEN if is_open else ReasoningStart.POSSIBLE

    def adapted_to(self, template: str, known_tags: Iterable[ReasoningTags]) -> Dialect:
        return self


def open_header(prompt: str) -> str | None:
    """The header of the unfinished message at the end of the prompt; None if there is none."""
    _, _, last = prompt.rpartition(START + "assistant")
    header, found, body = last.partition(MESSAGE)
    return header if found and "<|" not in body else None


_FINAL = CHANNEL + "final" + MESSAGE
HARMONY = ChannelDialect(
    "harmony",
    detected_by=((START, CHANNEL, MESSAGE),),
    reasoning=ReasoningTags(CHANNEL + "analysis" + MESSAGE, "<|end|>"),
    ends=("<|end|>", "<|call|>", "<|return|>"),
    reasoning_header=CHANNEL + "analysis",
    text_start=(_FINAL, START + "assistant" + _FINAL),
    text_end=f"<|end|>{START}assistant",
    # Models generate the parts of the header in several orders. Only the whole header distinguishes a call.
    layouts=call_layouts(
        *(
            f"@({text}{MESSAGE}$args)<|end|>{START}assistant@"
            for text in (
                f"{CHANNEL}commentary to=functions.$name <|constrain|>json",
                f"{CHANNEL}commentary to=functions.$name json",
                f" to=functions.$name{CHANNEL}commentary <|constrain|>json",
                f" to=functions.$name{CHANNEL}commentary json",
            )
        ),
        opener="",
        after_reasoning=START + "assistant",
    ),
)

_MUSE_TEXT_END = f"<|eom|>{START}assistant"
_MUSE_CALL = '<atem:invoke name="$name">*(~<atem:parameter name="$key">$value</atem:parameter>)*~</atem:invoke>'
_MUSE_TAGS = call_layouts(f"<atem:function_calls>~@({_MUSE_CALL})~@~</atem:function_calls>")
# A required call begins with its header. If the model calls on its own, the header comes before the first opener.
_MUSE_MESSAGES = call_layouts(
    f"@( to=$name{MESSAGE}<atem:function_calls>\n{_MUSE_CALL}~</atem:function_calls>){_MUSE_TEXT_END}@",
    opener="",
    is_native=False,
    after_reasoning=START + "assistant",
)
MUSE = ChannelDialect(
    "muse",
    detected_by=((START,),),
    calls=_MUSE_TAGS,
    reasoning=ReasoningTags("to=self" + MESSAGE, "<|eom|>"),
    ends=("<|eom|>", "<|eot|>"),
    reasoning_header="to=self",
    text_start=(" to=user" + MESSAGE, START + "assistant to=user" + MESSAGE),
    text_end=_MUSE_TEXT_END,
    layouts=(*_MUSE_MESSAGES, *(replace(layout, more=_MUSE_MESSAGES[0]) for layout in _MUSE_TAGS)),
)
