"""Grammar rules for JSON text: any value, strings, and the white space between tokens.

The rules allow compact JSON with at most one space after `:` and `,`, and optionally line breaks and bounded
indentation. Other notations of values are subclasses (call_notations.py). schema_rules.py converts schemas.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from .decimal_rules import any_number
from .expressions import (
    ANY_CHAR,
    CharClass,
    Expr,
    Literal,
    Repeat,
    RuleRef,
    alt,
    char_complement,
    char_intersection,
    chars,
    seq,
)
from .gbnf import Rules
from .regular_languages import ANY_TEXT, Language, language_expr

_ESCAPES = {0x22: '\\"', 0x5C: "\\\\", 8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}
_CONTROLS = chars((0x00, 0x1F), (0x7F, 0x7F))
_UNESCAPED = char_intersection(char_complement(chars('"', "\\", (0x00, 0x1F), (0x7F, 0x7F))), ANY_CHAR)
_HEX = chars("09", "AF", "af")


class JsonEncoding:
    """Represents each character of a JSON string by exactly one text.

    With a second text for a character, such as \\u0061 for a, a name that the schema excludes could be generated.
    """

    def chars(self, chars: CharClass) -> Expr:
        return _json_chars(chars)

    def literal(self, text: str) -> Expr:
        return Literal("".join(map(_json_char, text)))


@lru_cache(maxsize=1024)
def _json_chars(allowed: CharClass) -> Expr:
    options: list[Expr] = []
    unescaped = char_intersection(allowed, _UNESCAPED)
    if unescaped.ranges:
        options.append(unescaped)
    escapes = list(_escapes(allowed))
    if escapes:
        options.append(seq(Literal("\\"), alt(*escapes)))
    return alt(*options)


def _escapes(allowed: CharClass) -> Iterator[Expr]:
    """The escapes of the allowed characters, without the backslash."""
    short = [text[1] for char, text in _ESCAPES.items() if char in allowed]
    if short:
        yield chars(*short)
    # Control characters without a short escape are written as \u00XY. All of them have X = 0, 1 or 7.
    for row in (0, 1, 7):
        codes = range(16 * row, 16 * row + 16)
        found = [code for code in codes if code in allowed and code in _CONTROLS and code not in _ESCAPES]
        if found:
            yield seq(Literal(f"u00{row:x}"), chars(*(f"{code % 16:x}" for code in found)))


def _json_char(char: str) -> str:
    code = ord(char)
    # An unpaired surrogate has no UTF-8 encoding, but a JSON string may contain its escape.
    return _ESCAPES.get(code) or (f"\\u{code:04x}" if code in _CONTROLS or 0xD800 <= code < 0xE000 else char)


class JsonNotation:
    """The rules for JSON values within one grammar."""

    def __init__(self, rules: Rules, indent: int | None, end_marker: str):
        """Add the rules for commas and colons.

        Args:
            indent: Allow a line break and up to this many spaces wherever an indented document has them. None:
                documents are on one line.
            end_marker: The text at which the parser ends the tool calls. JSON ignores it; in the notations of
                call_notations.py no string contains it. "": there is none.
        """
        self.rules = rules
        self._encoding = JsonEncoding()
        self._strings: dict[Language, Expr] = {}
        self._value: RuleRef | None = None
        one_space = rules.repeat(Literal(" "), 0, 1)
        # The text after an opening bracket and before a closing one.
        self._gap = self._line_break(indent)
        after_comma = one_space if indent is None else alt(Literal(" "), self._gap)
        self.comma = rules.add("comma", seq(Literal(","), after_comma))
        self._colon = rules.add("colon", seq(Literal(":"), one_space))

    def _line_break(self, indent: int | None) -> Expr:
        if indent is None:
            return seq()
        return self.rules.repeat(seq(Literal("\n"), self.rules.repeat(Literal(" "), 0, indent)), 0, 1)

    def wrap(self, opening: str, inner: Expr, closing: str) -> Expr:
        """An object or an array: its brackets and what is between them."""
        return seq(Literal(opening), self._gap, inner, self._gap, Literal(closing))

    def _char(self) -> RuleRef:
        """One character of a string, unescaped or in any of its escapes. Beyond U+FFFF these are surrogate pairs."""
        two, three = self.rules.repeat(_HEX, 2, 2), self.rules.repeat(_HEX, 3, 3)
        single = alt(seq(chars("09", "AC", "EF", "ac", "ef"), three), seq(chars("D", "d"), chars("07"), two))
        pair = seq(
            chars("D", "d"), chars("89", "AB", "ab"), two, Literal("\\u"), chars("D", "d"), chars("CF", "cf"), two
        )
        escape = alt(chars('"', "\\", "/", "b", "f", "n", "r", "t"), seq(Literal("u"), alt(single, pair)))
        return self.rules.add("char", alt(_UNESCAPED, seq(Literal("\\"), escape)))

    def string(self, language: Language = ANY_TEXT, hint: str = "string") -> Expr:
        """The strings of the language. Raises TooLarge."""
        if language not in self._strings:
            self._strings[language] = self._new_string(language, hint)
        return self._strings[language]

    def _new_string(self, language: Language, hint: str) -> Expr:
        content = self._string_content(language, hint)
        return self.rules.add(hint, seq(Literal('"'), content, Literal('"')))

    def _string_content(self, language: Language, hint: str) -> Expr:
        if isinstance(language, Repeat) and language.item == ANY_CHAR:
            return self.rules.repeat(self._char(), language.low, language.high)
        return language_expr(self.rules, language, self._encoding, hint)

    def constant(self, value: Any) -> Expr:
        """This value, with the names of an object in the order given."""
        if isinstance(value, str):
            return seq(Literal('"'), self._encoding.literal(value), Literal('"'))
        if isinstance(value, list):
            return self._listed("[", [self.constant(item) for item in value], "]")
        if isinstance(value, dict):
            return self._listed("{", [self.pair(self.name(key), self.constant(value[key])) for key in value], "}")
        return Literal(json.dumps(value, allow_nan=False))

    def name(self, name: str) -> Expr:
        """This name of an object's property."""
        return self.constant(name)

    def any_name(self, language: Language) -> Expr:
        """The names of the language. Raises TooLarge."""
        return self.string(language, "name")

    def order(self, names: Iterable[str]) -> list[str]:
        """The names in the order in which the properties are written."""
        return list(names)

    def pair(self, name: Expr, value: Expr) -> Expr:
        """A property: its name and its value."""
        return seq(name, self._colon, value)

    def _listed(self, opening: str, items: list[Expr], closing: str) -> Expr:
        if not items:
            return Literal(opening + closing)
        rest = [part for item in items[1:] for part in (self.comma, item)]
        return self.wrap(opening, seq(items[0], *rest), closing)

    def _many(self, opening: str, item: Expr, closing: str) -> Expr:
        """Zero or more of an item, between brackets and separated by commas."""
        more = self.rules.repeat(seq(self.comma, item), 0, None)
        return alt(Literal(opening + closing), self.wrap(opening, seq(item, more), closing))

    def value(self) -> RuleRef:
        """Any value."""
        # The rules for values, objects and arrays refer to each other, so this one is declared before its body is made.
        if self._value is None:
            self._value = self.rules.declare("value")
            kinds = (self.object(), self.array(), self.string(), any_number(self.rules))
            self.rules.define(self._value, alt(*kinds, *map(self.constant, (True, False, None))))
        return self._value

    def array(self) -> RuleRef:
        """Any array."""
        return self.rules.add("array", self._many("[", self.value(), "]"))

    def object(self) -> RuleRef:
        """Any object."""
        pair = self.rules.add("pair", self.pair(self.any_name(ANY_TEXT), self.value()))
        return self.rules.add("object", self._many("{", pair, "}"))
