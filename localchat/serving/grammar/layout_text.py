"""Expressions for the texts around the parts of tool calls: literal text with the placeholders of call_layout.py."""

from __future__ import annotations

import re

from ..chat.dialects.call_layout import A_BREAK, A_NUMBER, A_SPACE, AN_ID, THE_NAME
from .expressions import Expr, Literal, chars, seq
from .gbnf import Rules

_PLACEHOLDERS = re.compile(f"([{A_NUMBER}{A_BREAK}{A_SPACE}{AN_ID}])")
# Limits of the spaces of an indentation and of the characters of an id. No chat template writes as many.
_MAX_INDENT, _MAX_ID = 16, 64


def layout_text(rules: Rules, text: str, name: str = "") -> Expr:
    """The expression for a text with placeholders. `name` replaces the placeholder for a name."""
    return seq(*(_part(rules, part) for part in _PLACEHOLDERS.split(text.replace(THE_NAME, name)) if part))


def _part(rules: Rules, part: str) -> Expr:
    if part == A_NUMBER:
        return rules.repeat(chars("09"), 1, 3)
    if part == A_BREAK:
        return rules.repeat(Literal("\n"), 0, 2)
    if part == A_SPACE:
        return seq(rules.repeat(Literal("\n"), 0, 1), rules.repeat(Literal(" "), 0, _MAX_INDENT))
    return rules.repeat(chars("az", "AZ", "09", "_", "-"), 1, _MAX_ID) if part == AN_ID else Literal(part)
