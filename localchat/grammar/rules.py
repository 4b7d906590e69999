"""Grammars as values: expressions, named rules, and their text for llama.cpp's grammar engine (GBNF).

Expressions are frozen and are made by `seq`, `alt` and `Rules.repeat`, which keep them simple. `Rules`
gives names to expressions, the same name to the same expression, so that grammars can be composed of
parts. Knows nothing of JSON or schemas.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Union

# The engine writes a repetition out as that many rules, and refuses more than 2000 at once. Longer
# ones are made of blocks of this many: then the number of rules grows with the square root.
BLOCK = 100
MAX_NAME = 40
MAX_CODE_POINT = 0x10FFFF


@dataclass(frozen=True)
class Literal:
    """This text."""

    text: str


@dataclass(frozen=True)
class Chars:
    """One character in one of the ranges of code points, which are sorted and do not touch."""

    ranges: tuple[tuple[int, int], ...]

    def __contains__(self, char: int) -> bool:
        return any(first <= char <= last for first, last in self.ranges)


@dataclass(frozen=True)
class Ref:
    """A rule by its name."""

    name: str


@dataclass(frozen=True)
class Seq:
    """One after the other; without items the empty text."""

    items: tuple[Expr, ...]


@dataclass(frozen=True)
class Alt:
    """One of the options; without options nothing at all matches."""

    options: tuple[Expr, ...]


@dataclass(frozen=True)
class Repeat:
    """The item `low` to `high` times; None is without limit."""

    item: Expr
    low: int
    high: int | None


Expr = Union[Literal, Chars, Ref, Seq, Alt, Repeat]

EMPTY: Expr = Seq(())
NEVER: Expr = Alt(())


class Impossible(ValueError):
    """No text at all matches the grammar."""


def chars(*ranges: str | tuple[int, int]) -> Chars:
    """A class of characters: each argument is a range of code points, or a text like "az" or "_" for one."""
    pairs = (part if isinstance(part, tuple) else (ord(part[0]), ord(part[-1])) for part in ranges)
    return Chars(tuple(_joined(sorted(pairs))))


def _joined(pairs: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    while pairs:
        first, last = pairs.pop(0)
        while pairs and pairs[0][0] <= last + 1:
            last = max(last, pairs.pop(0)[1])
        yield first, last


def complement(of: Chars) -> Chars:
    """Every other character: without surrogates, which are no characters, and NUL, which the engine cannot see."""
    taken = [(0, 0), *of.ranges, (0xD800, 0xDFFF), (MAX_CODE_POINT + 1, MAX_CODE_POINT + 1)]
    joined = list(_joined(sorted(taken)))
    return Chars(tuple((a + 1, b - 1) for (_, a), (b, _) in zip(joined, joined[1:])))


def common(left: Chars, right: Chars) -> Chars:
    """The characters that are in both classes."""
    pairs = [(max(a, c), min(b, d)) for a, b in left.ranges for c, d in right.ranges]
    return Chars(tuple(_joined(sorted((a, b) for a, b in pairs if a <= b))))


def seq(*items: Expr) -> Expr:
    flat = list(_flat_items(items))
    if NEVER in flat:
        return NEVER
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def _flat_items(items: Iterable[Expr]) -> Iterator[Expr]:
    """The items without nesting, neighbouring literals joined."""
    text = ""
    for item in _unnested(items):
        if isinstance(item, Literal):
            text += item.text
            continue
        if text:
            yield Literal(text)
            text = ""
        yield item
    if text:
        yield Literal(text)


def _unnested(items: Iterable[Expr]) -> Iterator[Expr]:
    for item in items:
        if isinstance(item, Seq):
            yield from item.items
        else:
            yield item


def alt(*options: Expr) -> Expr:
    flat: dict[Expr, None] = {}
    for option in options:
        flat.update(dict.fromkeys(option.options if isinstance(option, Alt) else (option,)))
    return next(iter(flat)) if len(flat) == 1 else Alt(tuple(flat))


def factored(*options: Expr) -> Expr:
    """One of the options, those that begin with the same text told apart only where they differ.

    The engine follows all options that are still open at once, so long lists are faster like this.
    """
    groups: dict[str, list[tuple[str, Expr]]] = {}
    others = []
    for option in dict.fromkeys(options):
        items = option.items if isinstance(option, Seq) else (option,)
        if items and isinstance(items[0], Literal):
            groups.setdefault(items[0].text[0], []).append((items[0].text, seq(*items[1:])))
        else:
            others.append(option)
    return alt(*map(_group, groups.values()), *others)


def _group(members: list[tuple[str, Expr]]) -> Expr:
    start = _common_start([text for text, _ in members])
    rests = [seq(Literal(text[len(start) :]) if text != start else EMPTY, rest) for text, rest in members]
    return seq(Literal(start), factored(*rests) if len(rests) > 1 else rests[0])


def _common_start(texts: list[str]) -> str:
    first, last = min(texts), max(texts)
    n = next((n for n, (a, b) in enumerate(zip(first, last)) if a != b), len(first))
    return first[:n]


class Rules:
    """Named rules on the way to one grammar. Names are deterministic: the same calls give the same text.

    With a `prefix` to every name the text can stand beside another grammar's.
    """

    def __init__(self, root: str = "root", *, prefix: str = ""):
        if not re.fullmatch(r"[A-Za-z0-9-]+", prefix + root):
            raise ValueError(f"a rule's name has letters, digits and dashes, got {prefix + root!r}")
        self._root = root
        self._prefix = prefix
        self._elsewhere: set[str] = set()
        # A name that is declared and not yet defined has no body.
        self._bodies: dict[str, Expr | None] = {root: None}
        self._names: dict[Expr, Ref] = {}
        # The newest number behind each name: thousands of rules may come from one hint.
        self._numbers: dict[str, int] = {}

    def add(self, hint: str, body: Expr) -> Ref:
        """The rule with that body, named after `hint` if it is new."""
        if body not in self._names:
            self._names[body] = self.declare(hint)
            self._bodies[self._names[body].name] = body
        return self._names[body]

    def declare(self, hint: str) -> Ref:
        """A name to refer to before its body is known, for rules that contain themselves."""
        base = self._prefix + (re.sub("[^A-Za-z0-9]+", "-", hint).strip("-")[:MAX_NAME] or "rule")
        name, n = base, self._numbers.get(base, 1)
        while name in self._bodies:
            n += 1
            name = f"{base}-{n}"
        self._numbers[base] = n
        self._bodies[name] = None
        return Ref(name)

    def elsewhere(self, name: str) -> Ref:
        """A rule that another grammar has, of which the text will stand beside this one's."""
        assert name not in self._bodies or name in self._elsewhere, name
        self._elsewhere.add(name)
        self._bodies[name] = EMPTY  # so that it counts as one that ends
        return Ref(name)

    def define(self, ref: Ref, body: Expr) -> None:
        assert self._bodies[ref.name] is None, ref.name
        self._bodies[ref.name] = body

    def repeat(self, item: Expr, low: int, high: int | None) -> Expr:
        """The item `low` to `high` times, written so that the engine takes it and stays fast.

        The item must not match the empty text. At any point of the text at most two ways to go on
        are open, however long the repetition is.
        """
        if high is not None and low > high:
            return NEVER  # the engine would count up from there until the memory is full
        if high == 0 or item == EMPTY:
            return EMPTY
        if item == NEVER:
            return NEVER if low else EMPTY
        if (low, high) == (1, 1):
            return item
        atom = item if isinstance(item, (Ref, Chars, Literal)) else self.add("item", item)
        if max(low, high or 0) <= BLOCK:
            return Repeat(atom, low, high)
        more = Repeat(atom, 0, None) if high is None else self._up_to(atom, high - low)
        return seq(self._times(atom, low), more)

    def _times(self, atom: Expr, n: int) -> Expr:
        if n <= BLOCK:
            return _few(atom, n, n)
        blocks, rest = divmod(n, BLOCK)
        return seq(self._times(self._block(atom), blocks), _few(atom, rest, rest))

    def _up_to(self, atom: Expr, n: int) -> Expr:
        if n <= BLOCK:
            return _few(atom, 0, n)
        blocks, rest = divmod(n, BLOCK)
        # Either at most `rest`, or more: then whole blocks, and the last one may stay incomplete.
        more = seq(_few(atom, rest + 1, rest + 1), self._up_to(self._block(atom), blocks - 1), _few(atom, 0, BLOCK - 1))
        return alt(_few(atom, 0, rest), more)

    def _block(self, atom: Expr) -> Ref:
        return self.add("block", Repeat(atom, BLOCK, BLOCK))

    def is_possible(self, expr: Expr) -> bool:
        """Whether any text matches: not if every way leads around in circles for ever."""
        return _ends(expr, self._ending())

    def render(self, body: Expr) -> str:
        """The text of the grammar that matches `body`: only what it needs, and no way without an end.

        Raises Impossible when nothing at all matches.
        """
        bodies = self._without_dead_ends({self._root: body})
        if bodies[self._root] == NEVER:
            raise Impossible("no text matches this grammar")
        names = (name for name in _reachable(bodies, self._root) if name not in self._elsewhere)
        lines = (f"{name} ::= {_text(bodies[name], nested=False)}" for name in names)
        return "\n".join(lines) + "\n"

    def _ending(self) -> set[str]:
        """The names of the rules that some finite text matches."""
        # A rule mostly refers to rules made before it (by `add`) or just after it, so few turns are needed.
        names = [name for name, body in self._bodies.items() if body is not None]
        found: set[str] = set()
        while True:
            n_before = len(found)
            for name in (*names, *reversed(names)):
                body = self._bodies[name]
                if name not in found and body is not None and _ends(body, found):
                    found.add(name)
            if len(found) == n_before:
                return found

    def _without_dead_ends(self, roots: dict[str, Expr]) -> dict[str, Expr]:
        live = self._ending()
        bodies = {name: body for name, body in self._bodies.items() if body is not None} | roots
        if len(live) == len(bodies) - len(roots):
            return bodies
        return {name: _pruned(body, live) for name, body in bodies.items()}


def _few(atom: Expr, low: int, high: int) -> Expr:
    return Repeat(atom, low, high) if high else EMPTY


def _ends(expr: Expr, live: set[str]) -> bool:
    if isinstance(expr, Ref):
        return expr.name in live
    if isinstance(expr, Seq):
        return all(_ends(item, live) for item in expr.items)
    if isinstance(expr, Alt):
        return any(_ends(option, live) for option in expr.options)
    if isinstance(expr, Repeat):
        return expr.low == 0 or _ends(expr.item, live)
    return not isinstance(expr, Chars) or bool(expr.ranges)


def _pruned(expr: Expr, live: set[str]) -> Expr:
    if isinstance(expr, Seq):
        return seq(*(_pruned(item, live) for item in expr.items))
    if isinstance(expr, Alt):
        return alt(*(_pruned(option, live) for option in expr.options))
    if isinstance(expr, Repeat) and not _ends(expr.item, live):
        return NEVER if expr.low else EMPTY
    return expr if _ends(expr, live) else NEVER


def _reachable(bodies: dict[str, Expr], root: str) -> Iterator[str]:
    todo, seen = [root], {root}
    while todo:
        name = todo.pop(0)
        yield name
        new = [ref for ref in dict.fromkeys(_references(bodies[name])) if ref not in seen]
        seen.update(new)
        todo += new


def _references(expr: Expr) -> Iterator[str]:
    if isinstance(expr, Ref):
        yield expr.name
    elif isinstance(expr, Repeat):
        yield from _references(expr.item)
    elif isinstance(expr, (Seq, Alt)):
        for part in expr.items if isinstance(expr, Seq) else expr.options:
            yield from _references(part)


def _text(expr: Expr, nested: bool = True) -> str:
    if isinstance(expr, Ref):
        return expr.name
    if isinstance(expr, Literal):
        return '"' + "".join(_escaped(ord(char), "-[]^") for char in expr.text) + '"'
    if isinstance(expr, Chars):
        return "[" + "".join(_range_text(*pair) for pair in expr.ranges) + "]"
    if isinstance(expr, Repeat):
        return _text(expr.item) + _count_text(expr.low, expr.high)
    if isinstance(expr, Seq):
        return " ".join(map(_text, expr.items)) or '""'
    text = " | ".join(_text(option, nested=False) for option in expr.options)
    return f"({text})" if nested else text


_COUNTS = {(0, 1): "?", (0, None): "*", (1, None): "+"}


def _count_text(low: int, high: int | None) -> str:
    exact = str(low) if low == high else f"{low},{'' if high is None else high}"
    return _COUNTS.get((low, high)) or f"{{{exact}}}"


def _range_text(first: int, last: int) -> str:
    return _escaped(first) if first == last else f"{_escaped(first)}-{_escaped(last)}"


_NAMED_ESCAPES = {9: "\\t", 10: "\\n", 13: "\\r", 0x22: '\\"', 0x5C: "\\\\"}


def _escaped(char: int, safe: str = "") -> str:
    """A character within quotes or brackets: ASCII alone, and nothing that means something there."""
    if char in _NAMED_ESCAPES:
        return _NAMED_ESCAPES[char]
    if (char < 0x80 and chr(char).isalnum()) or chr(char) in " _{}():;,./<>=+*?!@#$%&'|~`" + safe:
        return chr(char)
    if char < 0x100:
        return f"\\x{char:02X}"
    return f"\\u{char:04X}" if char < 0x10000 else f"\\U{char:08X}"
