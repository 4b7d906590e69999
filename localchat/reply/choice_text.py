"""The texts of one choice in four channels: content, reasoning, refusal, and the transcript of its sound. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..events import AudioDelta, ContentDelta, ReasoningDelta, RefusalDelta, StreamEvent
from .text import SurrogateJoiner, ThinkSplitter

# The channels of text, each with the event of a piece.
_EVENTS: dict[str, Callable[[str, int, Any], StreamEvent]] = {
    "content": ContentDelta,
    "reasoning": ReasoningDelta,
    "refusal": RefusalDelta,
    "transcript": lambda text, index, raw: AudioDelta(transcript=text, choice_index=index, raw=raw),
}


class ChoiceText:
    """Collects the pieces of each channel of text, and makes an event of each piece.

    Args:
        choice_index: The index of the choice.
        think_tags: How to treat <think> in the content, see ThinkSplitter.
        emit: Called with each event.
        warn: Called with the text of each warning.
    """

    def __init__(
        self,
        choice_index: int,
        think_tags: str,
        emit: Callable[[StreamEvent], object],
        warn: Callable[[str], object],
    ) -> None:
        self._choice_index = choice_index
        self._emit_event = emit
        self._warn = warn
        self._pieces: dict[str, list[str]] = {channel: [] for channel in _EVENTS}
        self._joiners = {channel: SurrogateJoiner(warn) for channel in _EVENTS}
        # The content as received, with tags, and the splitter of the tags; None if the server separates the reasoning.
        self._content: list[str] = []
        self._splitter: ThinkSplitter | None = ThinkSplitter(think_tags)
        self._had_deltas = False  # Whether text came in deltas, which a complete message repeats.
        self.raw: Any = None  # The payload that is being added.

    def whole(self, channel: str) -> str:
        """The whole text of a channel."""
        pieces = self._pieces[channel]
        pieces[:] = ["".join(pieces)]
        return pieces[0]

    @property
    def n_characters(self) -> int:
        """The number of characters of the content."""
        return sum(map(len, self._pieces["content"]))

    def add(self, channel: str, text: str) -> None:
        """Add the text of a delta."""
        self._had_deltas = True
        self._add(channel, text)

    def add_whole(self, channel: str, text: str) -> bool:
        """Add the text of a complete message, of which only what the text before it lacks is emitted.

        before it           the message     emitted
        deltas "Hello"      "Hello you"     " you"
        deltas "Hello"      "Hello"         nothing: it repeats the deltas, or the beginning of them, as "Hel"
        deltas "Hello"      "Bye"           nothing, with a warning, and the method returns False
        message "Hello"     "Hello you"     " you": it has all of the text so far
        message "Hello"     "Hello"         nothing: it repeats the message
        message "Hello"     "Hel", "Bye"    all of it: this server sends the pieces of a text in messages
        """
        # The content of the message may have the tags or not, so it is compared with the content in both forms.
        known = [self._content, self._pieces["content"]] if channel == "content" else [self._pieces[channel]]
        parts = [self._missing_part("".join(pieces), text) for pieces in known]
        missing = next((part for part in parts if part is not None), None)
        if missing is None and self._had_deltas:
            self._warn(f"the {channel} of the last message differs from the {channel} before it, which is used")
            return False
        self._add(channel, text if missing is None else missing)  # Some servers send the pieces in messages.
        return True

    def _missing_part(self, seen: str, text: str) -> str | None:
        """The part of a message that the text before it lacks: "" if the message repeats it, None if they differ.

        Blanks at the ends do not count in a repetition.
        """
        stripped = text.strip()
        is_repeated = seen.strip().startswith(stripped) if self._had_deltas else seen.strip() == stripped
        if seen and is_repeated:
            return ""
        return text[len(seen) :] if text.startswith(seen) else None

    def _add(self, channel: str, text: str) -> None:
        if channel != "content":
            self._emit(channel, text)
            return
        self._content.append(text)
        if self._splitter is None or self._splitter.state == "text":
            self._emit("content", text)
            return
        for part, piece in self._splitter.feed(text):
            self._emit(part, piece)

    def _emit(self, channel: str, text: str, ended: bool = False) -> None:
        text = self._joiners[channel].feed(text, ended)
        if text:
            self._pieces[channel].append(text)
            self._emit_event(_EVENTS[channel](text, self._choice_index, self.raw))

    def separate_reasoning(self) -> None:
        """From now on the server separates the reasoning itself, so the content is not searched for tags."""
        if self._splitter is not None:
            self.release()
            self._splitter = None

    def release(self) -> None:
        """Emit the held text, which may have been the beginning of a tag or of a surrogate pair."""
        for channel, text in self._splitter.feed("", ended=True) if self._splitter is not None else ():
            self._emit(channel, text)
        for channel in self._joiners:
            self._emit(channel, "", ended=True)

    def close(self, keeps_reasoning: bool) -> None:
        """Add the end of the response. Reasoning whose tag is never closed becomes text.

        `keeps_reasoning`: it stays reasoning. The response was cut, calls tools, or ended for an unknown reason, so it
        need not have a text.
        """
        splitter = self._splitter
        if splitter is not None and splitter.state == "reasoning" and not keeps_reasoning:
            text = splitter.opening_text + self.whole("reasoning")
            self._pieces["reasoning"] = []
            self._emit("content", text)
            self._warn("the reasoning is never closed by </think>: all of the content is text")
        elif splitter is not None and splitter.state == "reasoning":
            self._warn("the text ends inside <think>: the reasoning may contain the answer")
        before, tag, _ = "".join(self._content).partition("</think>")
        if tag and not self.whole("reasoning") and "<think>" not in before:
            self._warn("the text has a </think> without <think>: is it a case for think_tags='prefilled'?")
