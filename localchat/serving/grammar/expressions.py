"""Expressions of a grammar as immutable values: literals, character classes, rule references and their combinations.

An expression is the right-hand side of a GBNF rule, or a part of one. Make compound expressions with `seq`, `alt` and
`Rules.repeat`: they remove nesting and options that match nothing. Knows nothing of JSON or schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, Union

from .budget import spend

MAX_CODE_POINT = 0x10FFFF
# The least and the greatest count of each quantifier of GBNF and of regular expressions; None: no limit.
QUANTIFIERS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}

_Class = TypeVar("_Class", bound=type)


def hash_once(cls: _Class) -> _Class:
    """Make a frozen dataclass compute its hash once: expressions are deep, and they are keys of many dictionaries."""
    compute: Callable[[Any], int] = cls.__hash__  # type: ignore[assignment]  # a method of the instances, unbound

    def cached_hash(self: Any) -> int:
        found: int | None = self.__dict__.get("_hash")
        if found is None:
            found = self.__dict__["_hash"] = compute(self)
        return found

    cls.__hash__ = cached_hash  # type: ignore[assignment,method-assign]
    return cls


@dataclass(frozen=True)
class Literal:
    """A text that is not empty."""

    text: str


@hash_once
@dataclass(frozen=True)
class CharClass:
    """One character of a set."""

    ranges: tuple[tuple[int, int], ...]
    """The first and the last code point of each range; sorted, and no two overlap or touch."""

    def __contains__(self, char: int) -> bool:
        return any(first <= char <= last for first, last in self.ranges)


@dataclass(frozen=True)
class RuleRef:
    """A reference to a rule."""

    name: str


@hash_once
@dataclass(frozen=True)
class Seq:
    """The items one after the other. Without items: the empty text."""

    items: tuple[Expr, ...]


@hash_once
@dataclass(frozen=True)
class Alt:
    """One of the options. Without options: no text at all."""

    options: tuple[Expr, ...]


@hash_once
@dataclass(frozen=True)
class Repeat:
    """The item at least `low` and at most `high` times."""

    item: Expr
    low: int
    high: int | None
    """None: no limit."""


@dataclass(frozen=True)
class TokenRef:
    """One token of the vocabulary, independently of its text."""

    name: str
    """The text of the token, such as `<|end|>`, or its number in brackets, such as `<[5]>`."""
    is_excluded: bool = False
    """Whether the expression matches every token but this one."""


Expr = Union[Literal, CharClass, RuleRef, Seq, Alt, Repeat, TokenRef]

EMPTY: Expr = Seq(())
NEVER: Expr = Alt(())


# Character classes


def chars(*ranges: str | tuple[int, int]) -> CharClass:
    """A character class. Each argument is a range of code points or a text: "az" for a range, "_" for one character."""
    pairs = (part if isinstance(part, tuple) else (ord(part[0]), ord(part[-1])) for part in ranges)
    return CharClass(tuple(_joined(sorted(pairs))))


def _joined(pairs: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Sorted ranges, with ranges that overlap or touch merged."""
    first, last = pairs[0] if pairs else (0, -1)
    for start, end in pairs[1:]:
        if start <= last + 1:
            last = max(last, end)
        else:
            yield first, last
            first, last = start, end
    if pairs:
        yield first, last


def char_complement(of: CharClass) -> CharClass:
    """All other characters, except surrogates (not characters) and NUL (the end of a text for llama.cpp)."""
    excluded = [(0, 0), *of.ranges, (0xD800, 0xDFFF), (MAX_CODE_POINT + 1, MAX_CODE_POINT + 1)]
    joined = list(_joined(sorted(excluded)))
    return CharClass(tuple((a + 1, b - 1) for (_, a), (b, _) in zip(joined, joined[1:])))


def char_intersection(left: CharClass, right: CharClass) -> CharClass:
    """The characters that are in both classes."""
    pairs = [(max(a, c), min(b, d)) for a, b in left.ranges for c, d in right.ranges]
    return CharClass(tuple(_joined(sorted((a, b) for a, b in pairs if a <= b))))


ANY_CHAR = char_complement(CharClass(()))


# Parts


def direct_parts(expr: Expr) -> tuple[Expr, ...]:
    """The items of a sequence, the options of an alternative, or the item of a repetition."""
    if isinstance(expr, Seq):
        return expr.items
    if isinstance(expr, Alt):
        return expr.options
    return (expr.item,) if isinstance(expr, Repeat) else ()


def all_parts(expr: Expr) -> Iterator[Expr]:
    """The expression and all expressions within it, in the order of the text."""
    todo = [expr]
    while todo:
        part = todo.pop()
        yield part
        todo += reversed(direct_parts(part))


def references(expr: Expr) -> Iterator[str]:
    """The names of the rules that an expression refers to."""
    return (part.name for part in all_parts(expr) if isinstance(part, RuleRef))


# Sequences and alternatives


def seq(*items: Expr) -> Expr:
    """The items one after the other, with nested sequences and neighbouring literals joined."""
    flat = list(_joined_literals(items))
    spend(len(flat) // 4 + 1)
    if NEVER in flat:
        return NEVER
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def _joined_literals(items: Iterable[Expr]) -> Iterator[Expr]:
    text = ""
    for item in _without_nesting(items):
        if isinstance(item, Literal):
            text += item.text
            continue
        if text:
            yield Literal(text)
            text = ""
        yield item
    if text:
        yield Literal(text)


def _without_nesting(items: Iterable[Expr]) -> Iterator[Expr]:
    for item in items:
        if isinstance(item, Seq):
            yield from item.items
        else:
            yield item


def without_repeat(item: Expr, low: int, high: int | None) -> Expr | None:
    """The item `low` to `high` times (None: no limit), if no `Repeat` is needed for this; otherwise None."""
    if high is not None and low > high:
        return NEVER
    if high == 0 or item == EMPTY:
        return EMPTY
    if item == NEVER:
        return NEVER if low else EMPTY
    return item if (low, high) == (1, 1) else None


def alt(*options: Expr) -> Expr:
    """One of the options, with nested alternatives joined and duplicates removed."""
    flat: dict[Expr, None] = {}
    for option in options:
        flat.update(dict.fromkeys(option.options if isinstance(option, Alt) else (option,)))
    spend(len(flat) // 4 + 1)
    return next(iter(flat)) if len(flat) == 1 else Alt(tuple(flat))


def left_factored(*options: Expr) -> Expr:
    """One of the options, with common prefixes factored out.

    The matcher keeps a parse stack for each option that still matches, so long lists match faster in this form.
    """
    groups: dict[str, list[tuple[str, Expr]]] = {}
    others = []
    for option in dict.fromkeys(options):
        items = option.items if isinstance(option, Seq) else (option,)
        if items and isinstance(items[0], Literal):
            groups.setdefault(items[0].text[0], []).append((items[0].text, seq(*items[1:])))
        else:
            others.append(option)
    return alt(*map(_factored_group, groups.values()), *others)


def _factored_group(options: list[tuple[str, Expr]]) -> Expr:
    prefix = _common_prefix([text for text, _ in options])
    rests = [seq(Literal(text[len(prefix) :]) if text != prefix else EMPTY, rest) for text, rest in options]
    return seq(Literal(prefix), left_factored(*rests) if len(rests) > 1 else rests[0])


def _common_prefix(texts: list[str]) -> str:
    first, last = min(texts), max(texts)
    n = next((n for n, (a, b) in enumerate(zip(first, last)) if a != b), len(first))
    return first[:n]
