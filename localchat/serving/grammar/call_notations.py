"""Notations of tool arguments other than JSON: those of Gemma 4 and LFM2.

They differ from JSON in quotes, names and constants. Their parsers search for the marker at the end of the calls before
they parse the values, so no string may contain this marker.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ..chat.dialects.call_layout import GEMMA_QUOTE
from .excluded_markers import without_markers
from .expressions import EMPTY, NEVER, Expr, Literal, alt, chars, seq
from .free_text import free_text
from .gbnf import Rules
from .json_notation import JsonNotation
from .regular_languages import ANY_TEXT, Language, PlainEncoding, language_expr

_UNQUOTED_NAME = re.compile(r"[^\s{}\[\],:<\"]+")
_NAME_CHARS = chars("az", "AZ", "09", "_", ".", "-")
# Characters that string literals may not contain. The parser accepts a line break, unlike Python.
_NOT_IN_PYTHON = dict.fromkeys(map(chr, (*range(0x0A), *range(0x0B, 0x20), 0x7F)), NEVER)


class _WithoutMarkers(JsonNotation):
    """A notation in which no string contains a marker."""

    def __init__(self, rules: Rules, indent: int | None, end_marker: str):
        super().__init__(rules, indent, end_marker)
        self._markers: tuple[str, ...] = (end_marker,) if end_marker else ()

    def _string_content(self, language: Language, hint: str) -> Expr:
        return language_expr(self.rules, without_markers(language, self._markers), self._encoding, hint)


class GemmaNotation(_WithoutMarkers):
    """Gemma 4: names are unquoted and sorted; strings have special quotes and no escapes."""

    def __init__(self, rules: Rules, indent: int | None, end_marker: str):
        super().__init__(rules, indent, end_marker)
        self._markers = (GEMMA_QUOTE, *self._markers)

    def name(self, name: str) -> Expr:
        return Literal(name) if _UNQUOTED_NAME.fullmatch(name) else super().constant(name)

    def any_name(self, language: Language) -> Expr:
        quoted = super()._new_string(language, "name")  # with the quotes and escapes of JSON
        return alt(self.rules.repeat(_NAME_CHARS, 1, None), quoted) if language == ANY_TEXT else quoted

    def order(self, names: Iterable[str]) -> list[str]:
        return sorted(names, key=str.lower)

    def _new_string(self, language: Language, hint: str) -> Expr:
        if language == ANY_TEXT:
            markers = {**dict.fromkeys(self._markers, NEVER), GEMMA_QUOTE: EMPTY}
            return seq(Literal(GEMMA_QUOTE), free_text(self.rules, markers, may_end=False))
        content = without_markers(language, self._markers)
        inner = language_expr(self.rules, content, PlainEncoding(), hint)
        return seq(Literal(GEMMA_QUOTE), inner, Literal(GEMMA_QUOTE))

    def constant(self, value: Any) -> Expr:
        if isinstance(value, str) and GEMMA_QUOTE not in value:
            return Literal(GEMMA_QUOTE + value + GEMMA_QUOTE)
        return super().constant(value)


class PythonNotation(_WithoutMarkers):
    """LFM2: Python literals. Strings only use the escapes that Python and JSON share."""

    def _new_string(self, language: Language, hint: str) -> Expr:
        if language == ANY_TEXT:
            return alt(*(self._quoted(quote) for quote in "\"'"))
        return super()._new_string(language, hint)

    def _quoted(self, quote: str) -> Expr:
        """The strings of any text between two of these quotation marks."""
        text = self.rules.declare("string")
        escaped = seq(chars(quote, "\\", "b", "n", "r", "t"), text)
        markers = {quote: EMPTY, "\\": escaped, **dict.fromkeys(self._markers, NEVER), **_NOT_IN_PYTHON}
        self.rules.define(text, free_text(self.rules, markers, may_end=False))
        return seq(Literal(quote), text)

    def constant(self, value: Any) -> Expr:
        if value is None or isinstance(value, bool):
            return Literal(str(value))
        return super().constant(value)


# The notations by the names in the layouts of dialects/call_layout.py.
NOTATIONS: dict[str, type[JsonNotation]] = {"json": JsonNotation, "gemma": GemmaNotation, "python": PythonNotation}


def notation_of(rules: Rules, name: str, indent: int | None, end_marker: str) -> JsonNotation:
    """The notation with these properties. Each grammar has one."""
    key = ("notation", name, indent, end_marker)
    return rules.once(key, lambda: NOTATIONS[name](rules, indent, end_marker))
