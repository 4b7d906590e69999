"""How JSON is written: the rules for values of any kind, for strings, and for the space between tokens.

Compact JSON with at most one space after `:` and `,`, or with line breaks and bounded indentation too.
Knows nothing of schemas.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .language import ANY_CHAR, ANY_TEXT, Language, language_rules
from .numbers import Interval, decimals
from .rules import Chars, Expr, Literal, Ref, Repeat, Rules, alt, chars, common, complement, seq

_ESCAPES = {0x22: '\\"', 0x5C: "\\\\", 8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}
_CONTROLS = chars((0x00, 0x1F), (0x7F, 0x7F))
_RAW = common(complement(chars('"', "\\", (0x00, 0x1F), (0x7F, 0x7F))), ANY_CHAR)
_HEX = chars("09", "AF", "af")


@dataclass(frozen=True)
class Spacing:
    """The space that may stand between the tokens of a document, beside one after `:` and `,`.

    With `indent`, a line break and up to that many spaces may stand wherever an indented document has
    them. None keeps everything on one line.
    """

    indent: int | None = None


class JsonEncoding:
    """Characters as they stand inside the quotes: each in one spelling only, so that no name has two."""

    def chars(self, chars: Chars) -> Expr:
        return _spelled(chars)

    def literal(self, text: str) -> Expr:
        return Literal("".join(map(_encoded, text)))


@lru_cache(maxsize=1024)
def _spelled(chars: Chars) -> Expr:
    raw, short = common(chars, _RAW), "".join(text[1] for char, text in _ESCAPES.items() if char in chars)
    escapes: list[Expr] = [_letters(short)] if short else []
    escapes += [seq(Literal(f"u00{row:x}"), _letters(found)) for row in (0, 1, 7) if (found := _codes(chars, row))]
    return alt(*([raw] if raw.ranges else []), *([seq(Literal("\\"), alt(*escapes))] if escapes else []))


def _codes(chars: Chars, row: int) -> str:
    """The last digits of the control characters of the class that have no short escape."""
    codes = (char for char in range(16 * row, 16 * row + 16) if char in _CONTROLS and char not in _ESCAPES)
    return "".join(f"{char % 16:x}" for char in codes if char in chars)


def _letters(text: str) -> Chars:
    return chars(*text)


def _encoded(char: str) -> str:
    code = ord(char)
    # A lone surrogate is no character, but JSON can name one.
    return _ESCAPES.get(code) or (f"\\u{code:04x}" if code in _CONTROLS or 0xD800 <= code < 0xE000 else char)


class PlainEncoding:
    """Characters as they are."""

    def chars(self, chars: Chars) -> Expr:
        return common(chars, ANY_CHAR)

    def literal(self, text: str) -> Expr:
        return Literal(text)


class JsonRules:
    """The common rules of JSON within one set of rules."""

    def __init__(self, rules: Rules, spacing: Spacing = Spacing()):
        self.rules = rules
        self._encoding = JsonEncoding()
        self._strings: dict[Language, Expr] = {}
        self._value: Ref | None = None
        one_space = rules.repeat(Literal(" "), 0, 1)
        self.gap = self._gap(spacing.indent)
        after_comma = one_space if spacing.indent is None else alt(Literal(" "), self.gap)
        self.comma = rules.add("comma", seq(Literal(","), after_comma))
        self.colon = rules.add("colon", seq(Literal(":"), one_space))

    def _gap(self, indent: int | None) -> Expr:
        if indent is None:
            return seq()
        return self.rules.repeat(seq(Literal("\n"), self.rules.repeat(Literal(" "), 0, indent)), 0, 1)

    def wrap(self, opening: str, inner: Expr, closing: str) -> Expr:
        return seq(Literal(opening), self.gap, inner, self.gap, Literal(closing))

    def char(self) -> Ref:
        """One character in any spelling. Beyond U+FFFF escapes come in pairs: one alone is no character."""
        two, three = self.rules.repeat(_HEX, 2, 2), self.rules.repeat(_HEX, 3, 3)
        single = alt(seq(chars("09", "AC", "EF", "ac", "ef"), three), seq(chars("D", "d"), chars("07"), two))
        pair = seq(
            chars("D", "d"), chars("89", "AB", "ab"), two, Literal("\\u"), chars("D", "d"), chars("CF", "cf"), two
        )
        escape = alt(chars('"', "\\", "/", "b", "f", "n", "r", "t"), seq(Literal("u"), alt(single, pair)))
        return self.rules.add("char", alt(_RAW, seq(Literal("\\"), escape)))

    def string(self, language: Language = ANY_TEXT, hint: str = "string") -> Expr:
        """A string of the language. Raises TooLarge."""
        if language not in self._strings:
            inner = self._inner(language, hint)
            self._strings[language] = self.rules.add(hint, seq(Literal('"'), inner, Literal('"')))
        return self._strings[language]

    def _inner(self, language: Language, hint: str) -> Expr:
        if isinstance(language, Repeat) and language.item == ANY_CHAR:
            return self.rules.repeat(self.char(), language.low, language.high)
        return language_rules(self.rules, language, self._encoding, hint)

    def exactly(self, value: Any) -> Expr:
        """One value, its keys in the order given."""
        if isinstance(value, str):
            return seq(Literal('"'), self._encoding.literal(value), Literal('"'))
        if isinstance(value, list):
            return self.listed("[", [self.exactly(item) for item in value], "]")
        if isinstance(value, dict):
            return self.listed("{", [self.pair(self.name(key), self.exactly(value[key])) for key in value], "}")
        return Literal(json.dumps(value, allow_nan=False))

    def name(self, name: str) -> Expr:
        """The name of a member."""
        return self.exactly(name)

    def any_name(self, language: Language) -> Expr:
        """A name of the language. Raises TooLarge."""
        return self.string(language, "name")

    def order(self, names: Iterable[str]) -> list[str]:
        """Names in the order in which the members come."""
        return list(names)

    def pair(self, name: Expr, value: Expr) -> Expr:
        return seq(name, self.colon, value)

    def listed(self, opening: str, items: list[Expr], closing: str) -> Expr:
        if not items:
            return Literal(opening + closing)
        rest = [part for item in items[1:] for part in (self.comma, item)]
        return self.wrap(opening, seq(items[0], *rest), closing)

    def many(self, opening: str, item: Expr, closing: str) -> Expr:
        """Any number of an item."""
        more = self.rules.repeat(seq(self.comma, item), 0, None)
        return alt(Literal(opening + closing), self.wrap(opening, seq(item, more), closing))

    def number(self) -> Expr:
        return decimals(self.rules, Interval())

    def value(self) -> Ref:
        """Any value."""
        # The three rules refer to each other: declared in one place, they are made only once.
        if self._value is None:
            self._value = self.rules.declare("value")
            kinds = (self.object(), self.array(), self.string(), self.number())
            self.rules.define(self._value, alt(*kinds, *map(self.exactly, (True, False, None))))
        return self._value

    def array(self) -> Ref:
        return self.rules.add("array", self.many("[", self.value(), "]"))

    def object(self) -> Ref:
        pair = self.rules.add("pair", self.pair(self.any_name(ANY_TEXT), self.value()))
        return self.rules.add("object", self.many("{", pair, "}"))
