"""The text of a grammar for llama.cpp (GBNF): named rules, repetitions within its limits, and rendering.

`Rules` collects the rules of one grammar. Equal expressions get the same rule, so that a grammar can be composed of
parts. The result leaves out rules that match no text.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from .errors import GrammarError, errors_located
from .expressions import (
    EMPTY,
    NEVER,
    QUANTIFIERS,
    Alt,
    CharClass,
    Expr,
    Literal,
    Repeat,
    RuleRef,
    Seq,
    TokenRef,
    alt,
    references,
    seq,
    without_repeat,
)

# llama.cpp expands a repetition into one rule per item, and refuses more than 2000 items. A longer repetition is
# written as blocks of this many items, so that the number of rules grows with the square root of the count.
BLOCK = 100
MAX_NAME = 40

_T = TypeVar("_T")


class Rules:
    """The named rules of one grammar. Names are deterministic: the same calls give the same text."""

    def __init__(self, root: str = "root", *, prefix: str = ""):
        """`prefix` begins every name, so that the text can be appended to another grammar."""
        if not re.fullmatch(r"[A-Za-z0-9-]+", prefix + root):
            raise ValueError(f"the name of a rule has letters, digits and dashes, got {prefix + root!r}")
        self._root = root
        self._prefix = prefix
        # The bodies by the names of the rules; None for a rule that is declared and not yet defined.
        self._bodies: dict[str, Expr | None] = {root: None}
        # The rule of each body that `add` was called with.
        self._refs: dict[Expr, RuleRef] = {}
        # The names of the rules that another grammar defines.
        self._external: set[str] = set()
        # The last number appended to each name, so that a free name is found fast for thousands of rules with one hint.
        self._last_numbers: dict[str, int] = {}
        # The results of `once`.
        self._made: dict[Hashable, Any] = {}
        # The names of rules that match some finite text. Adding rules does not remove any.
        self._productive: set[str] = set()

    def once(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """The result of `make` for this key, made once, so that the tools of one grammar share rules."""
        if key not in self._made:
            self._made[key] = make()
        found: _T = self._made[key]
        return found

    def add(self, hint: str, body: Expr) -> RuleRef:
        """The rule with this body. A new rule is named after `hint`."""
        if body not in self._refs:
            self._refs[body] = self.declare(hint)
            self._bodies[self._refs[body].name] = body
        return self._refs[body]

    def declare(self, hint: str) -> RuleRef:
        """A new rule without a body, so that the body can refer to the rule. Call `define` later."""
        base = self._prefix + (re.sub("[^A-Za-z0-9]+", "-", hint).strip("-")[:MAX_NAME] or "rule")
        name, n = base, self._last_numbers.get(base, 1)
        while name in self._bodies:
            n += 1
            name = f"{base}-{n}"
        self._last_numbers[base] = n
        self._bodies[name] = None
        return RuleRef(name)

    def define(self, ref: RuleRef, body: Expr) -> None:
        """Give a declared rule its body."""
        assert self._bodies[ref.name] is None, ref.name
        self._bodies[ref.name] = body

    def external(self, name: str) -> RuleRef:
        """A rule of another grammar, the text of which will be appended to this grammar."""
        assert name not in self._bodies or name in self._external, name
        self._external.add(name)
        self._bodies[name] = EMPTY  # so that it counts as a rule that matches some text
        return RuleRef(name)

    def repeat(self, item: Expr, low: int, high: int | None) -> Expr:
        """The item `low` to `high` times (None: no limit), within the limits of llama.cpp.

        The item must not match the empty text. However long the repetition is, llama.cpp needs at most two parse
        stacks for it.
        """
        # Among these are repetitions with `low` above `high`, which llama.cpp would expand until memory runs out.
        simple = without_repeat(item, low, high)
        if simple is not None:
            return simple
        atom = item if isinstance(item, (RuleRef, CharClass, Literal)) else self.add("item", item)
        if max(low, high or 0) <= BLOCK:
            return Repeat(atom, low, high)
        more = Repeat(atom, 0, None) if high is None else self._up_to(atom, high - low)
        return seq(self._exactly(atom, low), more)

    def _exactly(self, atom: Expr, n: int) -> Expr:
        if n <= BLOCK:
            return _repeat(atom, n, n)
        blocks, rest = divmod(n, BLOCK)
        return seq(self._exactly(self._block(atom), blocks), _repeat(atom, rest, rest))

    def _up_to(self, atom: Expr, n: int) -> Expr:
        if n <= BLOCK:
            return _repeat(atom, 0, n)
        blocks, rest = divmod(n, BLOCK)
        # Either at most `rest` items, or more: then whole blocks follow, and the last block may be incomplete.
        whole = self._up_to(self._block(atom), blocks - 1)
        more = seq(_repeat(atom, rest + 1, rest + 1), whole, _repeat(atom, 0, BLOCK - 1))
        return alt(_repeat(atom, 0, rest), more)

    def _block(self, atom: Expr) -> RuleRef:
        return self.add("block", Repeat(atom, BLOCK, BLOCK))

    def is_satisfiable(self, expr: Expr) -> bool:
        """Whether the expression matches any finite text."""
        return _is_productive(expr, self._productive_rules())

    def render(self, body: Expr) -> str:
        """The grammar that matches `body`: the rules that it needs, without options that match no text.

        Raises:
            GrammarError: No text matches, or the expression is nested too deeply.
        """
        with errors_located("#"):
            bodies = self._without_unproductive({self._root: body})
            if bodies[self._root] == NEVER:
                raise GrammarError("#", "no text matches this grammar")
            names = [name for name in _reachable(bodies, self._root) if name not in self._external]
            return "".join(f"{name} ::= {_text(bodies[name], nested=False)}\n" for name in names)

    def _productive_rules(self) -> set[str]:
        """The names of the rules that match some finite text."""
        # A rule mostly refers to rules made before it (by `add`) or just after it, so few passes are needed.
        found = self._productive
        names = [name for name, body in self._bodies.items() if body is not None and name not in found]
        while True:
            n_before = len(found)
            for name in (*names, *reversed(names)):
                body = self._bodies[name]
                if name not in found and body is not None and _is_productive(body, found):
                    found.add(name)
            if len(found) == n_before:
                return found

    def _without_unproductive(self, roots: dict[str, Expr]) -> dict[str, Expr]:
        """The bodies of all rules and of `roots`, without the parts that match no text."""
        productive = self._productive_rules()
        bodies = {name: body for name, body in self._bodies.items() if body is not None} | roots
        if len(productive) == len(bodies) - len(roots):
            return bodies
        return {name: _pruned(body, productive) for name, body in bodies.items()}


def _repeat(atom: Expr, low: int, high: int) -> Expr:
    """The item `low` to `high` times, where `high` is within the limits of llama.cpp."""
    return Repeat(atom, low, high) if high else EMPTY


def _is_productive(expr: Expr, productive: set[str]) -> bool:
    """Whether the expression matches some text, given the rules that do."""
    if isinstance(expr, RuleRef):
        return expr.name in productive
    if isinstance(expr, Seq):
        return all(_is_productive(item, productive) for item in expr.items)
    if isinstance(expr, Alt):
        return any(_is_productive(option, productive) for option in expr.options)
    if isinstance(expr, Repeat):
        return expr.low == 0 or _is_productive(expr.item, productive)
    return not isinstance(expr, CharClass) or bool(expr.ranges)


def _pruned(expr: Expr, productive: set[str]) -> Expr:
    """The expression without the parts that match no text."""
    if isinstance(expr, Seq):
        return seq(*(_pruned(item, productive) for item in expr.items))
    if isinstance(expr, Alt):
        return alt(*(_pruned(option, productive) for option in expr.options))
    if isinstance(expr, Repeat) and not _is_productive(expr.item, productive):
        return NEVER if expr.low else EMPTY
    return expr if _is_productive(expr, productive) else NEVER


def _reachable(bodies: dict[str, Expr], root: str) -> list[str]:
    """The names of the rules that the root refers to, directly or indirectly, breadth first."""
    names = {root: None}
    todo = deque(names)
    while todo:
        new = [name for name in references(bodies[todo.popleft()]) if name not in names]
        todo += dict.fromkeys(new)
        names.update(dict.fromkeys(new))
    return list(names)


def _text(expr: Expr, nested: bool = True) -> str:
    """The expression in GBNF. An alternative within another expression (`nested`) is in parentheses."""
    if isinstance(expr, RuleRef):
        return expr.name
    if isinstance(expr, Literal):
        return '"' + "".join(_escaped(ord(char), "-[]^") for char in expr.text) + '"'
    if isinstance(expr, CharClass):
        return "[" + "".join(_range_text(*pair) for pair in expr.ranges) + "]"
    if isinstance(expr, Repeat):
        return _text(expr.item) + _count_text(expr.low, expr.high)
    if isinstance(expr, TokenRef):
        return ("!" if expr.is_excluded else "") + expr.name
    if isinstance(expr, Seq):
        return " ".join(map(_text, expr.items)) or '""'
    text = " | ".join(_text(option, nested=False) for option in expr.options)
    return f"({text})" if nested else text


_QUANTIFIERS = {counts: sign for sign, counts in QUANTIFIERS.items()}


def _count_text(low: int, high: int | None) -> str:
    exact = str(low) if low == high else f"{low},{'' if high is None else high}"
    return _QUANTIFIERS.get((low, high)) or f"{{{exact}}}"


def _range_text(first: int, last: int) -> str:
    return _escaped(first) if first == last else f"{_escaped(first)}-{_escaped(last)}"


_NAMED_ESCAPES = {9: "\\t", 10: "\\n", 13: "\\r", 0x22: '\\"', 0x5C: "\\\\"}


def _escaped(char: int, safe: str = "") -> str:
    """A character within quotes or brackets. Characters beyond ASCII or with a special meaning there are escaped."""
    if char in _NAMED_ESCAPES:
        return _NAMED_ESCAPES[char]
    if (char < 0x80 and chr(char).isalnum()) or chr(char) in " _{}():;,./<>=+*?!@#$%&'|~`" + safe:
        return chr(char)
    if char < 0x100:
        return f"\\x{char:02X}"
    return f"\\u{char:04X}" if char < 0x10000 else f"\\U{char:08X}"
