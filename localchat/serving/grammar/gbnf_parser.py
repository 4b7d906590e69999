"""Parses GBNF, the grammar notation of llama.cpp, into named rules as expressions.

Accepts every grammar that llama.cpp accepts. In addition a rule may span several lines without parentheses, and
repetition counts have no limit, since the matcher counts instead of expanding the repetitions.
"""

from __future__ import annotations

import re

from .budget import spend
from .errors import GrammarError
from .expressions import (
    ANY_CHAR,
    EMPTY,
    MAX_CODE_POINT,
    NEVER,
    QUANTIFIERS,
    Alt,
    Expr,
    Literal,
    Repeat,
    RuleRef,
    Seq,
    TokenRef,
    char_complement,
    chars,
)

MAX_GROUP_DEPTH = 100
"""Limit of groups within groups, since recursive functions process the expressions."""

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+|\#[^\r\n]*)
    |(?P<head>[A-Za-z0-9-]+[ \t]*::=)
    |(?P<literal>"(?:\\.|[^"\\])*")
    |(?P<class>\[(?:\\.|[^\]\\])*\])
    |(?P<token>!?<\[\d+\]>|!?<[^>]*>)
    |(?P<any>\.)
    |(?P<name>[A-Za-z0-9-]+)
    |(?P<count>[*+?]|\{\s*(?P<low>\d{1,9})\s*(?P<comma>,\s*(?P<high>\d{0,9})\s*)?\})
    |(?P<sign>[|()])""",
    re.VERBOSE | re.DOTALL,
)
_NOT_TEXT = re.compile("[\0\ud800-\udfff]")
_ESCAPES = {"t": 9, "r": 13, "n": 10, "\\": 0x5C, '"': 0x22, "[": 0x5B, "]": 0x5D}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_ESCAPED = re.compile(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)|[^\\]", re.DOTALL)


def parse_gbnf(text: str) -> dict[str, Expr]:
    """The rules of a grammar by their names. If a rule is defined twice, the last definition counts.

    Raises:
        GrammarError: The text is not a grammar.
    """
    found = _NOT_TEXT.search(text)
    if found:
        kind = "a NUL" if found[0] == "\0" else "half of a surrogate pair"
        raise GrammarError("", f"the grammar has {kind} at character {found.start()}: remove it")
    return _Parser(text).parse()


class _Parser:
    """Parses the rules one after the other. This parser does not recurse; MAX_GROUP_DEPTH protects later code."""

    def __init__(self, text: str):
        self._text = text
        self._rules: dict[str, Expr] = {}
        # One entry for the rule and one for each open group: the finished options, the items of the current option.
        self._groups: list[tuple[list[Expr], list[Expr]]] = []

    def parse(self) -> dict[str, Expr]:
        name, at = "", 0
        while at < len(self._text):
            match = _TOKEN.match(self._text, at)
            if match is None:
                raise GrammarError(
                    "", f"the grammar has a syntax error at character {at}: {self._text[at : at + 20]!r}"
                )
            at = match.end()
            spend()
            if match["head"]:
                self._end_rule(name)
                name, self._groups = match["head"][:-3].strip(), [([], [])]
            elif not match["space"]:
                self._take(match)
        self._end_rule(name)
        return self._rules

    def _end_rule(self, name: str) -> None:
        if len(self._groups) > 1:
            raise GrammarError("", f"the rule {name} has a `(` without its `)`")
        if self._groups:
            self._rules[name] = self._pop_group()

    def _take(self, match: re.Match[str]) -> None:
        if not self._groups:
            raise GrammarError("", "the grammar must begin with a rule: name ::= ...")
        options, items = self._groups[-1]
        if match["sign"] == "|":
            options.append(_sequence(items))
            items.clear()
        elif match["sign"] == "(":
            self._open()
        elif match["sign"] == ")":
            self._close()
        elif match["count"]:
            self._repeat(items, match)
        else:
            items.append(_item(match))

    def _open(self) -> None:
        if len(self._groups) > MAX_GROUP_DEPTH:
            raise GrammarError("", f"the grammar nests groups deeper than {MAX_GROUP_DEPTH}: write some as rules")
        self._groups.append(([], []))

    def _close(self) -> None:
        if len(self._groups) < 2:
            raise GrammarError("", "the grammar has a `)` without its `(`")
        group = self._pop_group()
        self._groups[-1][1].append(group)

    def _pop_group(self) -> Expr:
        options, items = self._groups.pop()
        return Alt((*options, _sequence(items))) if options else _sequence(items)

    def _repeat(self, items: list[Expr], match: re.Match[str]) -> None:
        if not items:
            raise GrammarError("", f"the grammar has {match['count']} with nothing before it to repeat")
        low, high = QUANTIFIERS.get(match["count"]) or (int(match["low"]), _high(match))
        if high is not None and high < low:
            raise GrammarError("", f"the grammar repeats {match['count']} times: write the smaller number first")
        items.append(Repeat(items.pop(), low, high))


def _sequence(items: list[Expr]) -> Expr:
    return items[0] if len(items) == 1 else Seq(tuple(items))


def _high(match: re.Match[str]) -> int | None:
    """The upper number of a count in braces; None: no limit."""
    if not match["comma"]:
        return int(match["low"])
    return int(match["high"]) if match["high"] else None


def _item(match: re.Match[str]) -> Expr:
    text = match[0]
    if match["name"]:
        return RuleRef(text)
    if match["any"]:
        return ANY_CHAR
    if match["token"]:
        return TokenRef(text.lstrip("!"), is_excluded=text[0] == "!")
    codes = _codes(text[1:-1], match.start())
    if match["class"]:
        return _class(codes)
    if any(0xD800 <= code < 0xE000 or code == 0 for code, _ in codes):
        return NEVER  # no text contains an unpaired surrogate or a NUL
    return Literal("".join(chr(code) for code, _ in codes)) if codes else EMPTY


def _codes(text: str, position: int) -> list[tuple[int, bool]]:
    """The code points of a literal or a class, each with whether it is escaped in the text."""
    if "\\" not in text:
        return [(ord(char), False) for char in text]
    codes = []
    for match in _ESCAPED.finditer(text):
        escape = match[1]
        if escape is None:
            codes.append((ord(match[0]), False))
        elif escape[0] in _HEX_DIGITS and len(escape) > 1:
            codes.append((int(escape[1:], 16), True))
        elif escape in _ESCAPES:
            codes.append((_ESCAPES[escape], True))
        else:
            known = '\\n, \\r, \\t, \\\\, \\", \\[, \\], \\xHH, \\uHHHH and \\UHHHHHHHH'
            raise GrammarError(
                "", f"the grammar has the unknown escape \\{escape} near character {position}: known are {known}"
            )
    if any(code > MAX_CODE_POINT for code, _ in codes):
        raise GrammarError("", f"the grammar has a character beyond U+10FFFF near character {position}")
    return codes


def _class(codes: list[tuple[int, bool]]) -> Expr:
    """A character class from the code points between its brackets."""
    is_excluding = codes[:1] == [(0x5E, False)]
    del codes[:is_excluding]
    if not codes:
        return EMPTY  # as llama.cpp reads an empty class
    pairs, at = [], 0
    while at < len(codes):
        is_range = codes[at + 1 : at + 2] == [(0x2D, False)] and at + 2 < len(codes)
        last = codes[at + 2 if is_range else at][0]
        pairs.append((codes[at][0], last))
        at += 3 if is_range else 1
    found = chars(*((first, last) for first, last in pairs if first <= last))
    return char_complement(found) if is_excluding else found
