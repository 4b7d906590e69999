"""Texts with gaps, as they stand around the parts of calls."""

from __future__ import annotations

import re

from .rules import Expr, Literal, Rules, chars, seq

# Stand in a text for a number of one to three digits, the name that the text is about, up to two line breaks,
# any indentation, and an id.
NUMBER, NAME, BREAK, SPACE, ID = "\x00", "\x01", "\x02", "\x03", "\x04"
_GAPS = re.compile(f"([{NUMBER}{BREAK}{SPACE}{ID}])")
# More than any template writes.
_MAX_INDENT, _MAX_ID = 16, 64


def written(rules: Rules, text: str, name: str = "") -> Expr:
    """What such a text matches."""
    return seq(*(_part(rules, part) for part in _GAPS.split(text.replace(NAME, name)) if part))


def _part(rules: Rules, part: str) -> Expr:
    if part == NUMBER:
        return rules.repeat(chars("09"), 1, 3)
    if part == BREAK:
        return rules.repeat(Literal("\n"), 0, 2)
    if part == SPACE:
        return seq(rules.repeat(Literal("\n"), 0, 1), rules.repeat(Literal(" "), 0, _MAX_INDENT))
    return rules.repeat(chars("az", "AZ", "09", "_", "-"), 1, _MAX_ID) if part == ID else Literal(part)
