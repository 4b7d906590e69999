"""Notations that some models use in place of JSON: the same values with other quotes. Each is read back as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Optional

from .free_text import free_text
from .json_text import JsonRules, PlainEncoding
from .language import ANY_CHAR, ANY_TEXT, Language, both, language_rules, other
from .rules import EMPTY, Expr, Literal, alt, chars, common, complement, seq

_QUOTE = '<|"|>'
_NAME_CHARS = chars("az", "AZ", "09", "_", ".", "-")
_BARE_NAME = re.compile(r"[^\s{}\[\],:<\"]+")


class GemmaRules(JsonRules):
    """Gemma 4: names without quotes and in their order, texts as they are between quotes of its own."""

    # Any text, made once.
    _text: Optional[Expr] = None

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
                self._text = seq(Literal(_QUOTE), free_text(self.rules, {_QUOTE: EMPTY}, may_end=False))
            return self._text
        inner = language_rules(self.rules, both(language, without(_QUOTE)), PlainEncoding(), hint)
        return seq(Literal(_QUOTE), inner, Literal(_QUOTE))

    def exactly(self, value: Any) -> Expr:
        if isinstance(value, str) and _QUOTE not in value:
            return Literal(_QUOTE + value + _QUOTE)
        return super().exactly(value)


class PythonRules(JsonRules):
    """LFM2: Python's literals, of which strings have the escapes that mean the same in JSON."""

    def string(self, language: Language = ANY_TEXT, hint: str = "string") -> Expr:
        if language != ANY_TEXT:
            return super().string(language, hint)
        return alt(*(self._quoted(quote) for quote in "\"'"))

    def _quoted(self, quote: str) -> Expr:
        # A line break may stand as it is, which no Python would read: the parser does.
        raw = common(complement(chars(quote, "\\", (0x00, 0x09), (0x0B, 0x1F), (0x7F, 0x7F))), ANY_CHAR)
        escape = seq(Literal("\\"), chars(quote, "\\", "b", "n", "r", "t"))
        inner = self.rules.repeat(self.rules.add("char", alt(raw, escape)), 0, None)
        return self.rules.add("string", seq(Literal(quote), inner, Literal(quote)))

    def exactly(self, value: Any) -> Expr:
        if value is None or isinstance(value, bool):
            return Literal(str(value))
        return super().exactly(value)


def without(mark: str) -> Language:
    """The texts in which a mark does not stand."""
    return other(seq(ANY_TEXT, Literal(mark), ANY_TEXT))


NOTATIONS: dict[str, type[JsonRules]] = {"json": JsonRules, "gemma": GemmaRules, "python": PythonRules}
