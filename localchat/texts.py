"""Texts of servers, models and programs as parts of messages: cut, on one line, without control characters. No I/O.

    cut                 the beginning of a text
    excerpt             the beginning of a text, on one line
    visible             a text with escapes in place of characters that a terminal would not show, or would obey
    escaped             the beginning of a text, on one line and visible
    finite              the number that a text of JSON has

`Secrets.shown` (transport/secrets.py) and `Session.shown` (mcp/session.py) also mask secrets.
"""

from __future__ import annotations

import math

_EXCERPT_CHARS = 200


def cut(text: str, limit: int) -> str:
    """The beginning of a text, with dots in place of what is beyond the limit of characters."""
    return text if len(text) <= limit else text[:limit] + "..."


def excerpt(text: str, limit: int = _EXCERPT_CHARS) -> str:
    """The beginning of a text, on one line."""
    return cut(" ".join(text[: limit * 4].split()), limit)


def visible(text: str) -> str:
    """A text with escapes in place of control characters, and of others that are not seen or change what is seen."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def escaped(text: str, limit: int = _EXCERPT_CHARS) -> str:
    """The beginning of a text, on one line and visible."""
    return visible(excerpt(text, limit))


def finite(text: str) -> float:
    """The number that a text has. Raises ValueError for NaN and infinity, which `json.loads` takes for numbers."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a number of JSON, or larger than any float")
    return number
