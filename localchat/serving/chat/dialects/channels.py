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
# The recipient of a message. Without the prefix of functions, a role is no tool, even if a tool has its name: the
# message is text.
_RECIPIENT = re.compile(r"\bto=(?:functions\.|(?!(?:user|assistant|all)(?:[\s<]|$)))([^\s<]+)")


class ChannelParser(OutputParser):
    """Parses headers up to <|message|>, and bodies up to an end marker of the dialect or the next header."""

    _dialect: ChannelDialect

    def _read(self) -> Reader[None]:
        cursor = self._cursor
        if self._prompt_end.header is not None:
            yield from self._message(self._prompt_end.header, "")
        while (yield from cursor.has_text()):
            cursor.checkpoint()
            header = yield from self._header()
            text = cursor.commit()
            if header is not None:
                cursor.unread(text)
                yield from self._message(header, text)
                continue
            # Text without a header is content, or a call that is the whole output.
            self._emit_content(text)
            yield from self._unmarked_call()
            if not text:
                self._emit_content((yield from cursor.read_one_of(START)) or "")
            yield from cursor.emit_until(Markers(*self._dialect.dropped), self._emit_content, holds_space=False)
            yield from cursor.read_one_of(*self._dialect.closing_markers)

    def _header(self) -> Reader[str | None]:
        """Read a header up to its end, <|message|>. Returns it without this end; None if it has no end.

        Without the end, what was read is text, up to the next message.
        """
        start = yield from self._cursor.read_one_of(START + "assistant", CHANNEL, " to=", "to=")
        if start is None:
            return None
        text, end = yield from self._cursor.read_until(MESSAGE, START, *self._dialect.closing_markers, *self._openers)
        if end == MESSAGE:
            return start + text
        self._cursor.unread(end or "")
        return None

    def _message(self, header: str, generated: str) -> Reader[None]:
        """Read a message, whose header marks it as reasoning, text or a call.

        `generated` is the text of the header, which is unread; "" if the prompt has the header.
        """
        match = _RECIPIENT.search(header)
        name = match[1] if match else None  # None: the message is for the user.
        if name is not None and name in self._calls.names and (yield from self._calls_of(name, generated)):
            return
        self._cursor.take(len(generated))
        if self._dialect.is_reasoning(header):
            end = yield from self._reasoning_text(holds_space=False)
            yield from self._end_of_message(end)
        elif name is None:
            end = yield from self._text_for_user()
            yield from self._end_of_message(end)
        else:
            # The recipient is a tool that is not offered, or no call follows: the whole message is text.
            self._emit_content(generated)
            end = yield from self._text(Markers(*self._dialect.dropped), holds_space=False)
            yield from self._end_of_message(end, is_text=True)

    def _calls_of(self, name: str, header: str) -> Reader[bool]:
        """Read a message that calls the tool `name`, with its header. If it has no call, read nothing."""
        ends = self._dialect.closing_markers
        with self._raw_text.of_call():
            if not self._openers:  # The header is that of a call.
                self._cursor.take(len(header))
                yield from read_arguments(self._cursor, self._calls, name, *ends)
                return True
            is_call = yield from self._call_in(self._dialect.formats, prefix=header)
            if is_call:
                yield from self._cursor.read_end(*ends)
            return is_call

    def _text_for_user(self) -> Reader[str]:
        """Emit the text of a message for the user, up to a marker. Returns the marker; "": the output ends."""
        markers = Markers(*self._dialect.dropped)
        if self._is_constrained:
            # Text of a response format extends to the end of the output, and may contain the texts of markers.
            markers = Markers()
        else:
            # Calls have recipients of their own. In a text for the user, only its beginning can be a call.
            yield from self._unmarked_call()
            if self._openers:
                yield from self._call_in(self._dialect.formats)
        return (yield from self._cursor.emit_until(markers, self._emit_content, holds_space=False)) or ""

    def _end_of_message(self, marker: str, *, is_text: bool = False) -> Reader[None]:
        """Read the marker at the end of a message, after a call if `marker` is its opener. `is_text`: emit it."""
        ends = self._dialect.closing_markers
        if marker in self._openers:
            yield from self._cursor.read_end(*ends)
        elif marker in ends:
            self._cursor.take(len(marker))
            if is_text:
                self._emit_content(marker)


@dataclass(frozen=True)
class ChannelDialect(Dialect):
    """A family whose output is messages with headers.

    The header of reasoning has the text before <|message|> in its start tag.
    """

    opening_markers: tuple[str, ...] = (START, CHANNEL)
    calls_start: str = START + "assistant"
    reasons_anywhere: bool = True
    parser: type[OutputParser] = ChannelParser

    @property
    def reasoning_ends(self) -> tuple[str, ...]:
        return (*self.dropped, *self.openers)

    def is_reasoning(self, header: str) -> bool:
        """Whether the message with this header is reasoning."""
        mark = re.escape(self.reasoning.start.removesuffix(MESSAGE))
        return re.search(rf"{mark}(?:[\s<]|$)", header) is not None and "to=functions" not in header

    def prompt_end(self, prompt: str) -> PromptEnd:
        _, _, message = prompt.rpartition(START + "assistant")
        header, marker, body = message.partition(MESSAGE)
        if not marker or "<|" in body:
            return PromptEnd()
        return PromptEnd("open" if self.is_reasoning(header) else "possible", header)
