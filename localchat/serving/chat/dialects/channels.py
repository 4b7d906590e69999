"""The parser of outputs in channels: messages whose header marks them as reasoning, text or a call.

gpt-oss: <|channel|>analysis<|message|>text<|end|><|start|>assistant<|channel|>final<|message|>text
<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>
Muse Glimmer:  to=self<|message|>text<|eom|><|start|>assistant to=f<|message|><atem:function_calls>
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...core.scan import Markers, Reader
from .call_reader import read_arguments
from .dialect import Dialect, PromptEnd
from .parser import OutputParser

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")

_ROLES = ("user", "assistant", "all")  # Recipients that are no tools: their messages are text.


class ChannelParser(OutputParser):
    """Parses headers up to <|message|>, and bodies up to an end marker of the dialect or the next header."""

    _dialect: ChannelDialect

    def _read(self) -> Reader[None]:
        cursor = self._cursor
        header = self._prompt_end.header
        if header is not None:
            yield from self._message(header)
        while (yield from cursor.has_text()):
            cursor.begin()
            header = yield from self._header()
            if header is not None:
                yield from self._message(header)
                continue
            # Text without a header is content, or a call that is the whole output.
            self._emit_content(cursor.end_record())
            yield from self._sole_call()
            self._emit_content((yield from cursor.read_one_of(START)) or "")
            yield from cursor.emit_until(Markers(*self._dialect.dropped), self._emit_content, holds_space=False)
            yield from cursor.read_one_of(*self._dialect.also_dropped)

    def _header(self) -> Reader[str | None]:
        """Read a header; None if the next text is not a complete header."""
        start = yield from self._cursor.read_one_of(START + "assistant", CHANNEL, " to=", "to=")
        if start is None:
            return None
        text, end = yield from self._cursor.read_until(MESSAGE)
        return start + text if end else None

    def _message(self, header: str) -> Reader[None]:
        """Read the body of a message, whose header marks it as reasoning, text or a call."""
        raw, ends = self._cursor.end_record(), self._dialect.also_dropped
        match = _RECIPIENT.search(header)
        name = match[1] if match and match[1] not in _ROLES else "user"
        if name in self._calls.schemas:
            with self._text_of_call(len(raw)):
                if not self._openers:
                    yield from read_arguments(self._cursor, self._calls, name, *ends)
                    return
                if (yield from self._call_in(self._dialect.formats)):
                    yield from self._cursor.read_end(*ends)
                    return
        is_reasoning = self._dialect.is_reasoning(header)
        # The header is text if the recipient is a tool that is not offered, or if no call follows.
        shows_header = name != "user" and not is_reasoning
        if shows_header:
            self._emit_content(raw)
        markers = Markers(*self._dialect.dropped)
        end: str | None
        if is_reasoning:
            end = yield from self._reasoning_text(holds_space=False)
        elif name != "user":
            end = yield from self._text(markers, holds_space=False)
        elif self._is_constrained:
            # Text of a response format extends to the end of the output, and may contain the texts of markers.
            end = yield from self._cursor.emit_until(Markers(), self._emit_content)
        else:
            # Calls have recipients of their own. In a text for the user, only its beginning can be a call.
            yield from self._sole_call()
            if self._openers:
                yield from self._call_in(self._dialect.formats)
            end = yield from self._cursor.emit_until(markers, self._emit_content, holds_space=False)
        if end in self._openers:
            yield from self._cursor.read_end(*ends)
        elif end and end in ends:
            self._cursor.take(len(end))
            if shows_header:
                self._emit_content(end)


@dataclass(frozen=True)
class ChannelDialect(Dialect):
    """A family whose output is messages with headers.

    The header of reasoning has the text before <|message|> in its start tag. `also_dropped` has the markers that end a
    message.
    """

    section_markers: tuple[str, ...] = (START, CHANNEL)
    calls_start: str = START + "assistant"
    reasons_anywhere: bool = True
    parser: type[OutputParser] = ChannelParser

    @property
    def reasoning_ends(self) -> tuple[str, ...]:
        return (*self.dropped, *self.openers)

    def is_reasoning(self, header: str) -> bool:
        """Whether the message with this header is reasoning."""
        return self.reasoning.start.removesuffix(MESSAGE) in header and "to=functions" not in header

    def prompt_end(self, prompt: str) -> PromptEnd:
        _, _, message = prompt.rpartition(START + "assistant")
        header, marker, body = message.partition(MESSAGE)
        if not marker or "<|" in body:
            return PromptEnd()
        return PromptEnd("open" if self.is_reasoning(header) else "possible", header)
