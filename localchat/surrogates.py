"""Characters that a server has cut in two: halves of surrogate pairs in JSON are joined or replaced. No I/O.

JSON writes a character beyond the first 65,536 as two escapes. A server that cuts text between them sends each
half in a delta of its own, and Python reads each as a lone surrogate, which no UTF-8 can carry.
"""

from __future__ import annotations

import re

_FIRST_HALF = re.compile(r"[\ud800-\udbff]\Z")
_HALF = re.compile(r"[\ud800-\udfff]")

HALF_CHARACTER = "a half of a character came without the other; it is replaced by U+FFFD"


def join_halves(text: str) -> tuple[str, str, bool]:
    """Text without halves, the first half at its end that the next text may complete, and whether one was replaced."""
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    half = text[-1:] if _FIRST_HALF.search(text) else ""
    whole, n_replaced = _HALF.subn("\ufffd", text[: len(text) - len(half)])
    return whole, half, n_replaced > 0
