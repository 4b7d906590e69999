"""The parser of outputs in channels: messages whose header marks them as reasoning, text or a call.

gpt-oss: <|channel|>analysis<|message|>text<|end|><|start|>assistant<|channel|>final<|message|>text
<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>
Muse Glimmer:  to=self<|message|>text<|eom|><|start|>assistant to=f<|message|><atem:function_calls>
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .call_reader import read_arguments
from .dialect import Dialect, ReasoningStart
from .parser import OutputParser
from .scan import Emit, Markers, Reader

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")


class ChannelParser(OutputParser):
    """Parses headers up to <|message|>, and bodies up to an end marker of the dialect or the next header."""

    _dialect: ChannelDialect

    def _read(self) -> Reader[None]:
        cursor = self._cursor
        header = open_header(self._prompt)
        while header is not None or (yield from cursor.has_text()):
            cursor.begin()
            if header is None:
                header = yield from self._header()
            if header is None:
                # Text without a header is content.
                self._content(cursor.end_record() or (yield from cursor.read_one_of(START)) or "")
                yield from cursor.emit_until(Markers(START, CHANNEL), self._content, holds_space=False)
            else:
                yield from self._message(header)
            header = None

    def _header(self) -> Reader[str | None]:
        """Read a header; None if the next text is not a complete header."""
        start = yield from self._cursor.read_one_of(START + "assistant", CHANNEL, " to=", "to=")
        if start is None:
            return None
        text, end = yield from self._cursor.read_until(MESSAGE)
        return start + text if end else None

    def _message(self, header: str) -> Reader[None]:
        """Read the body of a message, whose header marks it as reasoning, text or a call."""
        raw = self._cursor.end_record()
        match = _RECIPIENT.search(header)
        name = match[1] if match else "user"
        if name in self._calls.schemas:
            ends = self._dialect.also_dropped
            if not self._openers:
                yield from read_arguments(self._cursor, self._calls, name, *ends)
            elif (yield from self._any_call(self._dialect.styles)):
                yield from self._cursor.read_end(*ends)
            else:
                self._content(raw)
            return
        is_reasoning = self._dialect.is_reasoning(header)
        # The header is text if the recipient is a tool that is not offered.
        shows_header = name != "user" and not is_reasoning
        if shows_header:
            self._content(raw)
        # Text of a response format extends to the end of the output, and may contain the texts of markers.
        is_formatted = self._is_constrained and name == "user" and not is_reasoning
        end = yield from self._body(is_reasoning=is_reasoning, is_formatted=is_formatted)
        if end in self._dialect.also_dropped:
            self._cursor.take(len(end))
            if shows_header:
                self._content(end)

    def _body(self, *, is_reasoning: bool, is_formatted: bool) -> Reader[str]:
        """Emit a body. Returns the marker that ends it, which stays unread; "" after a call or at the end of output."""
        emit: Emit = self._reasoning_text if is_reasoning else self._content
        ends = Markers(*self._dialect.dropped)
        markers = Markers() if is_formatted else Markers(*ends.literals, *self._openers)
        while True:
            self.reasoning_is_open = is_reasoning
            marker = yield from self._cursor.emit_until(markers, emit, holds_space=False)
            self.reasoning_is_open = is_reasoning and marker is None
            if marker not in self._openers:
                return marker or ""
            if is_reasoning and (yield from self._is_closed_later(marker, ends)):
                continue
            if (yield from self._call(marker, emit)):
                yield from self._cursor.read_end(*self._dialect.also_dropped)
                return ""


@dataclass(frozen=True)
class ChannelDialect(Dialect):
    """A family whose output is messages with headers. `also_dropped` has the markers that end a message."""

    section_markers: tuple[str, ...] = (START, CHANNEL)
    calls_start: str = START + "assistant"
    reasoning_header: str = ""
    """A message is reasoning if its header contains this text."""
    reasons_anywhere: bool = True
    parser: type[OutputParser] = ChannelParser

    @property
    def reasoning_ends(self) -> tuple[str, ...]:
        return (*self.dropped, *self.openers)

    def is_reasoning(self, header: str) -> bool:
        """Whether the message with this header is reasoning."""
        return self.reasoning_header in header and "to=functions" not in header

    def reasoning_start(self, prompt: str) -> ReasoningStart:
        header = open_header(prompt)
        return "open" if header is not None and self.is_reasoning(header) else "possible"


def open_header(prompt: str) -> str | None:
    """The header of the unfinished message at the end of the prompt; None if there is none."""
    _, _, last = prompt.rpartition(START + "assistant")
    header, found, body = last.partition(MESSAGE)
    return header if found and "<|" not in body else None
