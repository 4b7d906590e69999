"""Parses regular expressions of ECMA-262, as in JSON Schema's `pattern`, into expressions.

`parse_pattern` parses a pattern that may match anywhere in the text, `parse_full` one that must match the whole text.
Lookaround and backreferences raise PatternError. `\\d`, `\\w` and `\\s` are those of ECMA-262: ASCII digits, ASCII
letters with digits and `_`, and Unicode's white space.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NoReturn

from .errors import PatternError
from .expressions import (
    ANY_CHAR,
    EMPTY,
    NEVER,
    QUANTIFIERS,
    CharClass,
    Expr,
    Literal,
    alt,
    char_complement,
    char_intersection,
    chars,
    seq,
)
from .regular_languages import ANY_TEXT, nullable, repeated

DIGIT = chars("09")
WORD = chars("az", "AZ", "09", "_")
SPACE = chars("\t\r", " ", "\u00a0", "\u1680", "\u2000\u200a", "\u2028\u2029", "\u202f", "\u205f", "\u3000", "\ufeff")
CLASSES = {
    "d": DIGIT,
    "w": WORD,
    "s": SPACE,
    "D": char_complement(DIGIT),
    "W": char_complement(WORD),
    "S": char_complement(SPACE),
}
DOT = char_complement(chars("\n", "\r", "\u2028\u2029"))
CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
MAX_COUNT = 100_000
# Limit of characters. The time to parse a pattern grows with the square of its length: about 0.1 s for this length.
MAX_PATTERN = 5000

# An expression with anchors, as one expression without anchors for each case: (whether the text that it matches must be
# at the start of the whole text, whether it must be at the end).
Variants = dict[tuple[bool, bool], Expr]


@lru_cache(maxsize=256)
def parse_pattern(pattern: str) -> Expr:
    """The texts in which the pattern matches somewhere. Raises PatternError."""
    variants = _Parser(pattern).parse()
    return alt(
        *(
            seq(EMPTY if at_start else ANY_TEXT, node, EMPTY if at_end else ANY_TEXT)
            for (at_start, at_end), node in variants.items()
        )
    )


def parse_full(pattern: str) -> Expr:
    """The texts that the pattern matches as a whole. Raises PatternError."""
    return alt(*_Parser(pattern).parse().values())


def _sequence(left: Variants, right: Variants) -> Variants:
    """Two expressions one after the other. Only the empty text may precede ^ or follow $."""
    result: Variants = {}
    for (left_at_start, left_at_end), first in left.items():
        for (right_at_start, right_at_end), second in right.items():
            if (right_at_start and not nullable(first)) or (left_at_end and not nullable(second)):
                continue
            node = seq(EMPTY if right_at_start else first, EMPTY if left_at_end else second)
            _include(result, (left_at_start or right_at_start, left_at_end or right_at_end), node)
    return result


def _include(variants: Variants, key: tuple[bool, bool], node: Expr) -> None:
    """Add an alternative for a case."""
    variants[key] = alt(variants.get(key, NEVER), node)


class _Parser:
    """Recursive descent over one pattern; `_at` is the index of the next character."""

    def __init__(self, pattern: str):
        if len(pattern) > MAX_PATTERN:
            raise PatternError(f"the pattern has {len(pattern)} characters, the limit is {MAX_PATTERN}: shorten it")
        self._pattern = pattern
        self._at = 0

    def parse(self) -> Variants:
        result = self._alternatives()
        if self._at < len(self._pattern):
            self._fail("has a `)` without its `(`")
        return result

    def _alternatives(self) -> Variants:
        result: Variants = {}
        while True:
            for key, node in self._terms().items():
                _include(result, key, node)
            if not self._take("|"):
                return result

    def _terms(self) -> Variants:
        result: Variants = {(False, False): EMPTY}
        while self._peek() not in ("", "|", ")"):
            result = _sequence(result, self._term())
        return result

    def _term(self) -> Variants:
        if self._take("^"):
            return {(True, False): EMPTY}
        if self._take("$"):
            return {(False, True): EMPTY}
        atom = self._group() if self._take("(") else {(False, False): self._atom()}
        count = self._quantifier()
        return atom if count is None else self._counted(atom, *count)

    def _counted(self, atom: Variants, low: int, high: int | None) -> Variants:
        if set(atom) == {(False, False)}:
            return {key: repeated(node, low, high) for key, node in atom.items()}
        if high != 1:
            self._fail("has an anchor inside a repetition: move it out")
        result = dict(atom)
        if low == 0:
            _include(result, (False, False), EMPTY)
        return result

    def _quantifier(self) -> tuple[int, int | None] | None:
        count = QUANTIFIERS.get(self._peek())
        if count is not None:
            self._at += 1
        else:
            count = self._braces()
        if count is not None:
            self._take("?")  # a lazy quantifier matches the same texts
            if self._peek() and self._peek() in "*+?":
                self._fail("has two quantifiers in a row")
        return count

    def _braces(self) -> tuple[int, int | None] | None:
        if self._peek() != "{":
            return None
        inside, closing, _ = self._pattern[self._at + 1 :].partition("}")
        low, comma, high = inside.partition(",")
        if not closing or not _is_number(low) or not (high == "" or _is_number(high)):
            self._fail("has a `{` that starts no {m,n}: write \\{ for the character")
        self._at += len(inside) + 2
        count = int(low), (int(high) if high else None) if comma else int(low)
        if max(count[0], count[1] or 0) > MAX_COUNT:
            self._fail(f"repeats {high or low} times, the limit is {MAX_COUNT}")
        if count[1] is not None and count[0] > count[1]:
            self._fail(f"has a repetition of {low} to {high} times: write the smaller number first")
        return count

    def _group(self) -> Variants:
        if self._take("?"):
            self._group_kind()
        result = self._alternatives()
        if not self._take(")"):
            self._fail("has a `(` without its `)`")
        return result

    def _group_kind(self) -> None:
        """Parse the text after `(?`. Only non-capturing and named groups are supported."""
        if self._take(":"):
            return
        self._take("P")
        if not self._take("<") or self._peek() in ("=", "!"):
            self._fail("looks ahead or behind, or sets flags: no grammar can do that, so leave it out")
        name, closing, _ = self._pattern[self._at :].partition(">")
        if not closing or not name.isidentifier():
            self._fail("has a group with `(?<` and no name that is an identifier: write (...) for a plain group")
        self._at += len(name) + 1

    def _atom(self) -> Expr:
        char = self._next()
        if char == ".":
            return DOT
        if char == "[":
            return self._class()
        if char in "*+?{":
            self._fail(f"has a `{char}` with nothing before it to repeat")
        found = self._escape() if char == "\\" else chars(char)
        code = _single(found)
        if code is not None and code not in ANY_CHAR:
            self._fail("has a NUL or half of a surrogate pair: those cannot be generated")
        return found if code is None else Literal(chr(code))

    def _class(self) -> CharClass:
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        while not self._take("]"):
            ranges += self._class_ranges()
        found = chars(*ranges)
        if not ranges and not negated:
            self._fail("has an empty class []: it matches no character")
        # Surrogates and NUL cannot be generated.
        return char_complement(found) if negated else char_intersection(found, ANY_CHAR)

    def _class_ranges(self) -> tuple[tuple[int, int], ...]:
        first = self._class_char()
        if self._peek() != "-" or self._pattern[self._at + 1 : self._at + 2] in ("]", ""):
            return first.ranges
        self._at += 1
        last = self._class_char()
        low, high = _single(first), _single(last)
        if low is None or high is None or low > high:
            self._fail("has a range in a class that is not of two characters in ascending order, such as a-z")
        return ((low, high),)

    def _class_char(self) -> CharClass:
        if self._peek() == "":
            self._fail("has a `[` without its `]`")
        char = self._next()
        if char != "\\":
            return chars(char)
        return chars("\b") if self._take("b") else self._escape()

    def _escape(self) -> CharClass:
        char = self._next()
        if char in CLASSES:
            return CLASSES[char]
        if char in CONTROLS:
            return chars((CONTROLS[char],) * 2)
        if char == "x":
            return self._hex(2)
        if char == "u":
            return self._braced_hex() if self._take("{") else self._surrogates(self._hex(4))
        if char == "c" and self._peek().isascii() and self._peek().isalpha():
            return chars((ord(self._next()) % 32,) * 2)
        if char.isalnum() or char == "":
            self._fail(f"has \\{char}, which is unknown or which no grammar can do")
        return chars(char)

    def _hex(self, n: int) -> CharClass:
        digits = self._pattern[self._at : self._at + n]
        if len(digits) < n or not set(digits) <= set("0123456789abcdefABCDEF"):
            self._fail(f"needs {n} hexadecimal digits after its \\x or \\u")
        self._at += n
        return chars((int(digits, 16),) * 2)

    def _braced_hex(self) -> CharClass:
        digits = self._pattern[self._at :].partition("}")[0]
        found = self._hex(len(digits) or 1)
        if not self._take("}") or (_single(found) or 0) > 0x10FFFF:
            self._fail("has a \\u{...} beyond \\u{10FFFF} or without its `}`")
        return found

    def _surrogates(self, high: CharClass) -> CharClass:
        """The character of two escapes that are a surrogate pair; `high` itself if no second escape follows."""
        first = _single(high) or 0
        if not 0xD800 <= first < 0xDC00 or self._pattern[self._at : self._at + 2] != "\\u":
            return high
        self._at += 2
        second = _single(self._hex(4)) or 0
        return chars((0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00),) * 2)

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _next(self) -> str:
        char = self._peek()
        self._at += 1
        return char

    def _take(self, char: str) -> bool:
        taken = self._peek() == char
        self._at += taken
        return taken

    def _fail(self, what: str) -> NoReturn:
        raise PatternError(f"the pattern {self._pattern!r} {what} (at character {min(self._at, len(self._pattern))})")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _single(found: CharClass) -> int | None:
    """The code point of a class of one character; None for other classes."""
    (first, last), *more = found.ranges
    return first if first == last and not more else None
