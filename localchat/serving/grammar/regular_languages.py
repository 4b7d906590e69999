"""Regular languages: expressions with intersection and complement, and the rules that match them.

A language is a set of texts: a plain expression (one without rule references), an `Intersection` of languages, or the
`Complement` of a language. GBNF has no intersection and no complement, so these are converted to an automaton, whose
states become rules. A state is a language, too: the texts that may still follow. The next state after a character is
the Brzozowski derivative of the language by this character. A `CharEncoding` defines how the text that the grammar
matches represents a character.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Protocol, Union

from .budget import spend
from .errors import TooLarge
from .expressions import (
    ANY_CHAR,
    EMPTY,
    NEVER,
    Alt,
    CharClass,
    Expr,
    Literal,
    Repeat,
    Seq,
    alt,
    char_intersection,
    chars,
    direct_parts,
    hash_once,
    seq,
    without_repeat,
)
from .gbnf import Rules

# Limit of states of one automaton. A pattern with a length needs a state per character of the length. This many small
# states take about 0.3 s.
MAX_STATES = 2000
# Limit of the parts of all states of an automaton together: a state is an expression, which may be large.
MAX_PARTS = 50_000


@hash_once
@dataclass(frozen=True)
class Intersection:
    """The texts that are in every part."""

    parts: tuple[Language, ...]


@hash_once
@dataclass(frozen=True)
class Complement:
    """The texts that are not in `language`."""

    language: Language


Language = Union[Expr, Intersection, Complement]

ANY_TEXT = Repeat(ANY_CHAR, 0, None)


class CharEncoding(Protocol):
    """How the text that the grammar matches represents the characters of a language."""

    def chars(self, chars: CharClass) -> Expr: ...

    def literal(self, text: str) -> Expr: ...


class PlainEncoding:
    """Every character represents itself."""

    def chars(self, chars: CharClass) -> Expr:
        return char_intersection(chars, ANY_CHAR)

    def literal(self, text: str) -> Expr:
        return Literal(text)


# Constructors


def repeated(item: Expr, low: int, high: int | None) -> Expr:
    """The item `low` to `high` times (None: no limit).

    An item that matches the empty text is replaced by one that does not, which gives the same texts.
    """
    if nullable(item):
        item, low = _without_empty(item), 0
    simple = without_repeat(item, low, high)
    return Repeat(item, low, high) if simple is None else simple


def _without_empty(node: Expr) -> Expr:
    """The same texts, except the empty text."""
    if not nullable(node):
        return node
    if isinstance(node, Alt):
        return alt(*map(_without_empty, node.options))
    if isinstance(node, Repeat):
        return repeated(node.item, 1, node.high)
    if isinstance(node, Seq) and node.items:
        first, rest = node.items[0], seq(*node.items[1:])
        return alt(seq(_without_empty(first), rest), _without_empty(rest))
    return NEVER


def intersection(*languages: Language) -> Language:
    """The texts that are in every language."""
    parts: dict[Language, None] = {}
    for language in languages:
        parts.update(dict.fromkeys(language.parts if isinstance(language, Intersection) else (language,)))
    parts.pop(ANY_TEXT, None)
    if NEVER in parts:
        return NEVER
    if len(parts) < 2:
        return next(iter(parts), ANY_TEXT)
    return Intersection(tuple(parts))


def complement(language: Language) -> Language:
    """The texts that are not in the language."""
    if isinstance(language, Complement):
        return language.language
    if language == NEVER:
        return ANY_TEXT
    return NEVER if language == ANY_TEXT else Complement(language)


def literals(texts: Iterable[str]) -> Expr:
    """Exactly these texts, each of which may be empty."""
    return alt(*(Literal(text) if text else EMPTY for text in texts))


# Membership


def nullable(language: Language) -> bool:
    """Whether the empty text is in the language."""
    if isinstance(language, Seq):
        return all(map(nullable, language.items))
    if isinstance(language, Alt):
        return any(map(nullable, language.options))
    if isinstance(language, Repeat):
        return language.low == 0
    if isinstance(language, Intersection):
        return all(map(nullable, language.parts))
    return isinstance(language, Complement) and not nullable(language.language)


def derivative(language: Language, char: int) -> Language:
    """The language of the texts that may follow the code point `char`."""
    spend()
    return _DERIVATIVES[type(language)](language, char)


def _derive_chars(node: CharClass, char: int) -> Language:
    return EMPTY if char in node else NEVER


def _derive_literal(node: Literal, char: int) -> Language:
    if ord(node.text[0]) != char:
        return NEVER
    return Literal(node.text[1:]) if len(node.text) > 1 else EMPTY


def _derive_seq(node: Seq, char: int) -> Language:
    if not node.items:
        return NEVER
    first, rest = node.items[0], _tail(node)
    after = _plain(derivative(first, char))
    # Computing an automaton spends most of its time in `seq`, so `seq` is not called where the result is known.
    if after == EMPTY:
        after = rest
    elif after != NEVER:
        after = seq(after, rest)
    return alt(after, _plain(derivative(rest, char))) if nullable(first) else after


def _tail(node: Seq) -> Expr:
    """The sequence without its first item. `seq` is not needed, since it made the sequence."""
    return node.items[1] if len(node.items) == 2 else Seq(node.items[1:])


def _derive_alt(node: Alt, char: int) -> Language:
    return alt(*(_plain(derivative(option, char)) for option in node.options))


def _derive_repeat(node: Repeat, char: int) -> Language:
    high = None if node.high is None else node.high - 1
    after = _plain(derivative(node.item, char))
    if after == NEVER:
        return NEVER
    rest = repeated(node.item, max(node.low - 1, 0), high)
    return rest if after == EMPTY else seq(after, rest)


def _derive_intersection(node: Intersection, char: int) -> Language:
    return intersection(*(derivative(part, char) for part in node.parts))


def _derive_complement(node: Complement, char: int) -> Language:
    return complement(derivative(node.language, char))


def _plain(language: Language) -> Expr:
    assert not isinstance(language, (Intersection, Complement))
    return language


_DERIVATIVES: dict[type, Callable[..., Language]] = {
    CharClass: _derive_chars,
    Literal: _derive_literal,
    Seq: _derive_seq,
    Alt: _derive_alt,
    Repeat: _derive_repeat,
    Intersection: _derive_intersection,
    Complement: _derive_complement,
}


def contains(language: Language, text: str) -> bool:
    """Whether the text is in the language."""
    if language == ANY_TEXT:
        return True  # saves a derivative per character for the long texts of an enum
    for char in text:
        language = derivative(language, ord(char))
        if language == NEVER:
            return False
    return nullable(language)


# Lengths


def lengths(language: Language) -> tuple[int, float]:
    """A lower and an upper bound of the lengths of the texts in characters."""
    if isinstance(language, Literal):
        return len(language.text), len(language.text)
    if isinstance(language, CharClass):
        return 1, 1
    if isinstance(language, Repeat):
        low, high = lengths(language.item)
        return low * language.low, inf if language.high is None else high * language.high
    if isinstance(language, Complement):
        return 0, inf
    bounds = [lengths(part) for part in parts_of(language)]
    lows, highs = [low for low, _ in bounds], [high for _, high in bounds]
    if isinstance(language, Seq):
        return sum(lows), sum(highs)
    if isinstance(language, Alt):
        return min(lows, default=0), max(highs, default=0)
    return max(lows), min(highs)


def parts_of(language: Language) -> tuple[Language, ...]:
    """The languages of which a language is composed: those of an intersection, or the parts of an expression."""
    if isinstance(language, Complement):
        return (language.language,)
    return language.parts if isinstance(language, Intersection) else direct_parts(language)


def with_length(language: Language, low: int, high: int | None) -> Language:
    """The texts of `low` to `high` characters (None: no limit). The language is unchanged if it implies the bounds."""
    if high is not None and low > high:
        return NEVER
    shortest, longest = lengths(language)
    if shortest >= low and (high is None or longest <= high):
        return language
    if isinstance(language, Repeat) and lengths(language.item) == (1, 1):
        highs = [n for n in (high, language.high) if n is not None]
        return with_length(repeated(language.item, max(low, language.low), min(highs, default=None)), low, high)
    return intersection(language, repeated(ANY_CHAR, low, high))


# Automata


def is_empty(language: Language) -> bool:
    """Whether no text is in the language. Raises TooLarge."""
    return all(_is_dead(state) for state in automaton(language))


def _is_dead(state: Language) -> bool:
    """Whether a text may not end in this state. A plain expression matches some text unless it is NEVER."""
    return not nullable(state) if isinstance(state, (Intersection, Complement)) else state == NEVER


def automaton(language: Language) -> dict[Language, dict[Language, CharClass]]:
    """The states, the initial state first, each with the characters that lead to other states. Raises TooLarge."""
    states: dict[Language, dict[Language, CharClass]] = {}
    todo, n_parts = [language], 0
    while todo:
        state = todo.pop()
        if state in states:
            continue
        if len(states) >= MAX_STATES:
            raise TooLarge(
                f"pattern, lengths and other constraints together need an automaton of more than {MAX_STATES} states, "
                "which is the limit: allow fewer characters or make the pattern simpler"
            )
        n_parts += _n_parts(state)
        if n_parts > MAX_PARTS:
            raise TooLarge(
                f"pattern, lengths and other constraints together need an automaton of more than {MAX_PARTS} parts, "
                "which is the limit: make the pattern simpler"
            )
        # A plain expression is converted directly and needs no further states.
        states[state] = dict(_transitions(state)) if isinstance(state, (Intersection, Complement)) else {}
        todo += reversed(states[state])
    return states


def _n_parts(language: Language) -> int:
    """The number of expressions and languages within a language, with the language itself."""
    n, todo = 0, [language]
    while todo:
        n += 1
        todo += parts_of(todo.pop())
    return n


def _transitions(state: Language) -> Iterator[tuple[Language, CharClass]]:
    """The next states, each with the characters that lead to it."""
    ranges: dict[Language, list[tuple[int, int]]] = {}
    for sample, part in _partition(state):
        ranges.setdefault(derivative(state, sample), []).extend(part)
    for after, pairs in ranges.items():
        if after != NEVER:
            yield after, chars(*pairs)


def _partition(state: Language) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Groups of characters by which the state has the same derivative: one character and the ranges of each group."""
    classes = list(dict.fromkeys(_first_chars(state)))
    edges = {cut for a, b in ANY_CHAR.ranges for cut in (a, b + 1)}
    cuts = sorted(edges | {cut for first in classes for a, b in first.ranges for cut in (a, b + 1)})
    groups: dict[tuple[bool, ...], list[tuple[int, int]]] = {}
    for a, b in zip(cuts, cuts[1:]):
        # All characters from one cut to the next are in the same classes.
        if a in ANY_CHAR:
            groups.setdefault(tuple(a in first for first in classes), []).append((a, b - 1))
    for part in groups.values():
        yield part[0][0], part


def _first_chars(language: Language) -> Iterator[CharClass]:
    """The classes of the characters that a text may start with."""
    if isinstance(language, CharClass):
        yield language
    elif isinstance(language, Literal):
        yield CharClass(((ord(language.text[0]),) * 2,))
    else:
        for part in parts_of(language):
            yield from _first_chars(part)
            if isinstance(language, Seq) and not nullable(part):
                return


def language_expr(rules: Rules, language: Language, encoding: CharEncoding, hint: str) -> Expr:
    """An expression that matches the language. Raises TooLarge."""
    if isinstance(language, (Intersection, Complement)):
        return rules.once((language, type(encoding)), lambda: _automaton_expr(rules, language, encoding, hint))
    return _plain_expr(rules, language, encoding)


def _plain_expr(rules: Rules, node: Expr, encoding: CharEncoding) -> Expr:
    if isinstance(node, CharClass):
        return encoding.chars(node)
    if isinstance(node, Literal):
        return encoding.literal(node.text)
    if isinstance(node, Repeat):
        return rules.repeat(_plain_expr(rules, node.item, encoding), node.low, node.high)
    if isinstance(node, Seq):
        return seq(*(_plain_expr(rules, item, encoding) for item in node.items))
    assert isinstance(node, Alt)
    return alt(*(_plain_expr(rules, option, encoding) for option in node.options))


def _automaton_expr(rules: Rules, language: Language, encoding: CharEncoding, hint: str) -> Expr:
    states = automaton(language)
    refs = {state: rules.declare(hint) for state in states if isinstance(state, (Intersection, Complement))}
    bodies: dict[Language, Expr] = {
        state: refs[state] if isinstance(state, (Intersection, Complement)) else _plain_expr(rules, state, encoding)
        for state in states
    }
    for state, ref in refs.items():
        moves = [seq(encoding.chars(part), bodies[after]) for after, part in states[state].items()]
        rules.define(ref, alt(*moves, *([EMPTY] if nullable(state) else [])))
    return bodies[language]
