"""Text that arrives in pieces: reasoning between tags in the content, and split surrogate pairs. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable

_TAGS = {"<think>": "</think>", "<thinking>": "</thinking>", "<thought>": "</thought>"}

_MAX_LEADING_BLANKS = 256  # A tag after more blanks than this is text.


def check_think_tags(mode: object) -> None:
    """Raise ValueError for an option `think_tags` that is no mode of a ThinkSplitter."""
    if mode not in ("auto", "prefilled", "off"):
        raise ValueError(f"think_tags must be one of auto, prefilled, off, not {mode!r}")


class ThinkSplitter:
    """Separates `<think>...</think>` at the start of the content from the rest, however the text is cut into pieces.

        pieces              pairs
        "<th"               none: it may be the beginning of a tag
        "ink>Two"           ("reasoning", "Two")
        " of</think>"       ("reasoning", " of")
        "\n\nHello"         ("content", "Hello")

    Modes: "auto" accepts an opening tag that only blanks precede. "prefilled" means that the chat template wrote the
    opening tag, so that the content begins with reasoning. "off" leaves the content unchanged. Any other tag is text.
    """

    def __init__(self, mode: str = "auto") -> None:
        check_think_tags(mode)
        self._prefilled = mode == "prefilled"
        # "start", "reasoning", "after reasoning" (blanks after the closing tag), or "text", which no tag can follow.
        self.state = "text" if mode == "off" else "start"
        self._closing_tag = "</think>"
        # The opening tag with the blanks around it, and whether reasoning followed.
        self.opening_text = ""
        self._has_reasoning = False
        self._pending = ""  # Text that may be a part of a tag, or blanks around one.

    def feed(self, text: str, ended: bool = False) -> list[tuple[str, str]]:
        """Take a piece and return pairs of "content" or "reasoning" and a text; `ended` releases the pending text."""
        pending, self._pending, out = self._pending + text, "", []
        if self.state == "start":
            pending = self._start(pending, ended)
        if self.state == "reasoning":
            reasoning, pending = self._reasoning(pending, ended)
            out = [("reasoning", reasoning)] if reasoning else []
        if self.state == "after reasoning":
            rest = pending.lstrip()
            last_line_end = pending.rfind("\n", 0, len(pending) - len(rest))
            pending = pending[last_line_end + 1 :]  # An indented first line stays indented.
            if not rest:
                self._pending = pending
                return out
            self.state = "text"
        return [*out, ("content", pending)] if pending and self.state == "text" else out

    def _start(self, pending: str, ended: bool) -> str:
        text = pending.lstrip()
        for tag, close in _TAGS.items():
            if text.startswith(tag):
                self.state, self._closing_tag = "reasoning", close
                self.opening_text = pending[: len(pending) - len(text) + len(tag)]
                return text[len(tag) :]
            if tag.startswith(text) and not ended and len(pending) <= _MAX_LEADING_BLANKS:
                self._pending = pending
                return ""
        # Blanks alone that end here are no reasoning, so that no text is lost.
        self.state = "reasoning" if self._prefilled and (text or not ended) else "text"
        return pending

    def _reasoning(self, pending: str, ended: bool) -> tuple[str, str]:
        """Reasoning, and the text after its closing tag."""
        if not self._has_reasoning:
            blanks = len(pending) - len(pending.lstrip())
            self.opening_text, pending = self.opening_text + pending[:blanks], pending[blanks:]
            self._has_reasoning = pending != ""
        end = pending.find(self._closing_tag)
        if end >= 0:
            self.state = "after reasoning"
            return pending[:end], pending[end + len(self._closing_tag) :]
        sizes = range(0 if ended else min(len(self._closing_tag) - 1, len(pending)), 0, -1)
        n_pending = next((size for size in sizes if self._closing_tag.startswith(pending[-size:])), 0)
        self._pending = pending[len(pending) - n_pending :]
        return pending[: len(pending) - n_pending], ""


class SurrogateJoiner:
    """Joins surrogate pairs of JSON escapes that are split between two pieces of a text.

    A lone surrogate, which UTF-8 cannot encode, is replaced by U+FFFD, and `warn` is called.
    """

    def __init__(self, warn: Callable[[str], object]) -> None:
        self._warn = warn
        self._pending = ""  # The first surrogate of a pair at the end of the last piece.

    def feed(self, text: str, ended: bool = False) -> str:
        """Take a piece and return the text without a split pair; `ended` releases a pending surrogate, replaced."""
        if text.isascii() and not self._pending:
            return text
        text = (self._pending + text).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        self._pending = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" and not ended else ""
        text = text[: len(text) - len(self._pending)]
        replaced = re.sub("[\ud800-\udfff]", "\ufffd", text)
        if replaced != text:
            self._warn("a half of a character came without the other; it is replaced by U+FFFD")
        return replaced
