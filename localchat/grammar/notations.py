"""Notations that some models use in place of JSON: the same values with other quotes. Each is read back as JSON.

Whoever reads them looks for the end of the calls first, so no text holds its mark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from .free_text import free_text
from .json_text import JsonRules, PlainEncoding
from .language import ANY_CHAR, ANY_TEXT, Encoding, Language, both, language_rules, other
from .rules import EMPTY, NEVER, Expr, Literal, Repeat, Rules, alt, chars, complement, seq

_QUOTE = '<|"|>'
# Of longer texts of any characters those that begin a mark are left out.
_MAX_EXACT = 20
_GEMMA_END, _LFM_END = "<tool_call|>", "<|tool_call_end|>"
# A line break may stand in a text as it is, which no Python would read: the parser does.
_NOT_IN_PYTHON = dict.fromkeys(map(chr, (*range(0x0A), *range(0x0B, 0x20), 0x7F)), NEVER)
_NAME_CHARS = chars("az", "AZ", "09", "_", ".", "-")
_BARE_NAME = re.compile(r"[^\s{}\[\],:<\"]+")


class GemmaRules(JsonRules):
    """Gemma 4: names without quotes and in their order, texts as they are between quotes of its own."""

    # Any text, made once.
    _text: Expr | None = None

    def name(self, name: str) -> Expr:
        return Literal(name) if _BARE_NAME.fullmatch(name) else super().exactly(name)

    def any_name(self, language: Language) -> Expr:
        quoted = super().string(language, "name")
        return alt(self.rules.repeat(_NAME_CHARS, 1, None), quoted) if language == ANY_TEXT else quoted

    def order(self, names: Iterable[str]) -> list[str]:
        return sorted(names, key=str.lower)

    def string(self, language: Language = ANY_TEXT, hint: str = "string") -> Expr:
        if language == ANY_TEXT:
            if self._text is None:
                self._text = seq(
                    Literal(_QUOTE), free_text(self.rules, {_QUOTE: EMPTY, _GEMMA_END: NEVER}, may_end=False)
                )
            return self._text
        inner = _without_marks(self.rules, language, (_QUOTE, _GEMMA_END), PlainEncoding(), hint)
        return seq(Literal(_QUOTE), inner, Literal(_QUOTE))

    def _inner(self, language: Language, hint: str) -> Expr:
        return _without_marks(self.rules, language, (_QUOTE, _GEMMA_END), self._encoding, hint)

    def exactly(self, value: Any) -> Expr:
        if isinstance(value, str) and _QUOTE not in value:
            return Literal(_QUOTE + value + _QUOTE)
        return super().exactly(value)


class PythonRules(JsonRules):
    """LFM2: Python's literals, of which strings have the escapes that mean the same in JSON."""

    # Any text, made once.
    _text: Expr | None = None

    def string(self, language: Language = ANY_TEXT, hint: str = "string") -> Expr:
        if language != ANY_TEXT:
            return super().string(language, hint)
        if self._text is None:
            self._text = alt(*(self._quoted(quote) for quote in "\"'"))
        return self._text

    def _inner(self, language: Language, hint: str) -> Expr:
        return _without_marks(self.rules, language, (_LFM_END,), self._encoding, hint)

    def _quoted(self, quote: str) -> Expr:
        text = self.rules.declare("string")
        escaped = seq(chars(quote, "\\", "b", "n", "r", "t"), text)
        marks = {quote: EMPTY, "\\": escaped, _LFM_END: NEVER, **_NOT_IN_PYTHON}
        self.rules.define(text, free_text(self.rules, marks, may_end=False))
        return seq(Literal(quote), text)

    def exactly(self, value: Any) -> Expr:
        if value is None or isinstance(value, bool):
            return Literal(str(value))
        return super().exactly(value)


def _without_marks(rules: Rules, language: Language, marks: tuple[str, ...], encoding: Encoding, hint: str) -> Expr:
    """The texts of a language in which no mark stands."""
    if (
        isinstance(language, Repeat)
        and language.item == ANY_CHAR
        and max(language.low, language.high or 0) > _MAX_EXACT
    ):
        # To count characters and to follow marks at once takes too many rules: no mark even begins then.
        unmarked = complement(chars(*(mark[0] for mark in marks)))
        return rules.repeat(encoding.chars(unmarked), language.low, language.high)
    return language_rules(rules, both(language, *map(without, marks)), encoding, hint)


def without(mark: str) -> Language:
    """The texts in which a mark does not stand."""
    return other(seq(ANY_TEXT, Literal(mark), ANY_TEXT))


NOTATIONS: dict[str, type[JsonRules]] = {"json": JsonRules, "gemma": GemmaRules, "python": PythonRules}
