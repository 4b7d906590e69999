"""Surrogate pairs that a server splits between two deltas: the halves are joined, or replaced by U+FFFD. No I/O.

JSON escapes a character above U+FFFF as a pair of surrogates. If a server cuts the text between the two, each delta
has a lone surrogate, which cannot be encoded as UTF-8.
"""

from __future__ import annotations

import re
from collections.abc import Callable


class SurrogateJoiner:
    """Joins surrogate pairs that are split between two pieces of a text. `warn` is called if one is replaced."""

    def __init__(self, warn: Callable[[str], object]) -> None:
        self._warn = warn
        # The first surrogate of a pair at the end of the last piece.
        self._held = ""

    def feed(self, text: str, ended: bool = False) -> str:
        """Take a piece and return the text without a split pair; `ended` releases a held surrogate, replaced."""
        if text.isascii() and not self._held:
            return text
        text = (self._held + text).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        self._held = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" and not ended else ""
        text = text[: len(text) - len(self._held)]
        replaced = re.sub("[\ud800-\udfff]", "\ufffd", text)
        if replaced != text:
            self._warn("a half of a character came without the other; it is replaced by U+FFFD")
        return replaced
