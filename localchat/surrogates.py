"""Characters that a server has cut in two: halves of surrogate pairs in JSON are joined or replaced. No I/O.

JSON writes a character beyond the first 65,536 as two escapes. A server that cuts text between them sends each
half in a delta of its own, and Python reads each as a lone surrogate, which no UTF-8 can carry.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_LONE_HALF = "a half of a character came without the other; it is replaced by U+FFFD"


class HalfJoiner:
    """Joins the halves in the pieces of one text; `warn` is called with what is wrong when a lone one is replaced."""

    def __init__(self, warn: Callable[[str], object]) -> None:
        self._warn = warn
        # The first half of a character, whose second half the next piece has to bring.
        self._half = ""

    def feed(self, text: str) -> str:
        """The text that is certain by now."""
        if text.isascii() and not self._half:
            return text
        text = (self._half + text).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        self._half = text[-1:] if "\ud800" <= text[-1:] <= "\udbff" else ""
        return self._replaced(text[: len(text) - len(self._half)])

    def flush(self) -> str:
        """What is left when no piece follows."""
        half, self._half = self._half, ""
        return self._replaced(half)

    def _replaced(self, text: str) -> str:
        whole = re.sub("[\ud800-\udfff]", "\ufffd", text)
        if whole != text:
            self._warn(_LONE_HALF)
        return whole
