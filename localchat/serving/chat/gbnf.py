"""Converts a grammar in GBNF, the notation of llama.cpp, to the notation of llguidance.

llguidance splits a text into lexemes first, as long as possible ones. So every part of the grammar that is regular
becomes one regular expression, and only recursive rules remain rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

# The limit of characters of a regular expression: rules that are used in many places multiply.
_MAX_REGEX = 50_000

_TOKEN = re.compile(
    r"""(?P<space>[ \t]+|\#[^\r\n]*)|(?P<line>[\r\n]+)|(?P<rule>[\w-]+)\s*::=|(?P<name>[\w-]+)
    |"(?P<text>(?:\\.|[^"\\\r\n])*)"|\[(?P<chars>\^?(?:\\.|[^\]\\])*)\]|(?P<token>!?<[^<>\s"]+>)
    |\{(?P<count>\d+(?:,\d*)?)\}|(?P<sign>[.()|*+?])""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([\s\S]))|([\s\S])")
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t"}

Node = tuple[str, Any]
"""A kind and a value: a regular expression ("regex"), the name of a rule ("ref"), the index of a token ("token"), a
list of nodes ("seq", "alt"), or a node with a quantifier ("repeat")."""


def regex_literal(text: str) -> str:
    """The regular expression of exactly this text, for use between slashes."""
    return re.sub(r"([\\.+*?()|\[\]{}^$/&~#-])", r"\\\1", text).replace("\n", r"\n").replace("\0", r"\x00")


def gbnf_to_lark(grammar: str) -> tuple[str, tuple[str, ...]]:
    """The rules of a grammar, of which the first is `gbnf`, and the names of tokens: `token_0` refers to the first one.

    Raises:
        ValueError: The grammar is malformed, or has no rule `root`.
    """
    return _Grammar(grammar).lark()


class _Grammar:
    def __init__(self, grammar: str) -> None:
        self._items = list(_items(grammar))
        self._at = 0
        self._tokens: list[str] = []
        self._rules: dict[str, Node] = {}
        # The regular expressions of rules; None: the rule is not regular, or is being converted.
        self._regexes: dict[str, str | None] = {}
        while self._at < len(self._items):
            kind, name = self._next()
            if kind != "rule":
                raise ValueError(f"{name!r} stands where a rule, such as `root ::= ...`, must begin")
            self._rules[name] = self._alternatives(depth=0)
        if "root" not in self._rules:
            raise ValueError("the grammar has no rule named root")

    def lark(self) -> tuple[str, tuple[str, ...]]:
        names = {name: f"gbnf_{i}" for i, name in enumerate(self._rules)}
        lines, waiting, seen = [f"gbnf: {names['root']}"], ["root"], {"root"}
        while waiting:
            name = waiting.pop()
            used: list[str] = []
            lines.append(f"{names[name]}: {self._expr(self._rules[name], names, used)}")
            waiting += [other for other in dict.fromkeys(used) if other not in seen]
            seen.update(used)
        return "\n".join(lines) + "\n", tuple(self._tokens)

    # --- parsing ---

    def _peek(self) -> tuple[str, str]:
        return self._items[self._at] if self._at < len(self._items) else ("rule", "")

    def _next(self) -> tuple[str, str]:
        self._at += 1
        return self._items[self._at - 1]

    def _alternatives(self, depth: int) -> Node:
        options = [self._sequence(depth)]
        while self._peek() == ("sign", "|"):
            self._next()
            options.append(self._sequence(depth))
        return options[0] if len(options) == 1 else ("alt", options)

    def _sequence(self, depth: int) -> Node:
        if depth > 200:
            raise ValueError("it is nested too deeply")
        items: list[Node] = []
        while self._peek()[0] != "rule" and self._peek() not in (("sign", "|"), ("sign", ")")):
            kind, text = self._next()
            if kind == "count" or (text in ("*", "+", "?") and kind == "sign"):
                if not items:
                    raise ValueError(f"{text!r} repeats nothing")
                items[-1] = ("repeat", (items[-1], f"{{{text}}}" if kind == "count" else text))
            elif kind == "sign" and text == "(":
                items.append(self._alternatives(depth + 1))
                if self._at >= len(self._items) or self._next() != ("sign", ")"):
                    raise ValueError("a bracket is not closed")
            else:
                items.append(self._item(kind, text))
        if depth == 0 and self._peek() == ("sign", ")"):
            raise ValueError("a closing bracket has no opening one")
        return ("seq", items)

    def _item(self, kind: str, text: str) -> Node:
        if kind == "name":
            return ("ref", text)
        if kind == "token":
            if text not in self._tokens:
                self._tokens.append(text)
            return ("token", self._tokens.index(text))
        if kind == "text":
            return ("regex", "".join(regex_literal(char) for char in _chars(text)))
        if kind == "chars":
            is_other = text.startswith("^")
            inner = "".join(_class_char(char, is_escaped) for char, is_escaped in _escaped(text[is_other:]))
            return ("regex", f"[{'^' * is_other}{inner}]" if inner else "[^\\s\\S]")
        return ("regex", "(?s:.)")

    # --- conversion ---

    def _regex(self, node: Node) -> str | None:
        """The regular expression of a node; None if it is not regular."""
        kind, value = node
        if kind == "regex":
            return str(value)
        if kind == "token":
            return None
        if kind == "ref":
            if value not in self._rules:
                raise ValueError(f"the rule {value!r} is not defined")
            if value not in self._regexes:
                self._regexes[value] = None
                self._regexes[value] = self._regex(self._rules[value])
            return self._regexes[value]
        if kind == "repeat":
            item = self._regex(value[0])
            return None if item is None else f"(?:{item}){value[1]}"
        parts = [self._regex(item) for item in value]
        if any(part is None for part in parts):
            return None
        found = "".join(map(str, parts)) if kind == "seq" else f"(?:{'|'.join(map(str, parts))})"
        return found if len(found) <= _MAX_REGEX else None

    def _expr(self, node: Node, names: dict[str, str], used: list[str]) -> str:
        regex = self._regex(node)
        if regex is not None:
            return f"/{regex}/" if regex else '""'
        kind, value = node
        if kind == "token":
            return f"token_{value}"
        if kind == "ref":
            used.append(value)
            return names[value]
        if kind == "repeat":
            return f"({self._expr(value[0], names, used)}){value[1]}"
        if kind == "alt":
            return f"({' | '.join(self._expr(item, names, used) for item in value)})"
        parts: list[str] = []
        regular = ""  # of the adjacent regular items
        for item in (*value, None):
            regex = None if item is None else self._regex(item)
            if regex is not None:
                regular += regex
                continue
            if regular:
                parts.append(f"/{regular}/")
                regular = ""
            if item is not None:
                parts.append(self._expr(item, names, used))
        return " ".join(parts)


def _items(grammar: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(grammar):
        match = _TOKEN.match(grammar, at)
        if match is None:
            line = grammar.count("\n", 0, at) + 1
            raise ValueError(f"line {line}: {grammar[at : at + 20]!r} is not GBNF")
        at = match.end()
        kind = str(match.lastgroup)
        if kind not in ("space", "line"):
            yield kind, match[kind]


def _escaped(text: str) -> Iterator[tuple[str, bool]]:
    for match in _ESCAPE.finditer(text):
        code = match[1] or match[2] or match[3]
        if code:
            yield chr(int(code, 16)) if int(code, 16) < 0x110000 else "\ufffd", True
        elif match[4]:
            yield _ESCAPED.get(match[4], match[4]), True
        else:
            yield match[5], False


def _chars(text: str) -> Iterator[str]:
    return (char for char, _ in _escaped(text))


def _class_char(char: str, is_escaped: bool) -> str:
    """A character of a class. Between two others, `-` without a backslash is a range."""
    if char == "-" and not is_escaped:
        return "-"
    return rf"\x{{{ord(char):x}}}" if not char.isalnum() or not char.isascii() else char
