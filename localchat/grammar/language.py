"""Sets of texts: regular expressions with intersection and complement, and the rules that match them.

A language is an expression without references, or `Both` (all of several languages), or `Other` (what
is not in one). Languages without the last two become rules as they stand. The others are worked out as
automata by derivatives: the derivative by a character is what may follow after it. Nothing here knows
how a character is written down: `Encoding` says that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, Union

from .errors import TooLarge
from .rules import EMPTY, NEVER, Alt, Chars, Expr, Literal, Repeat, Rules, Seq, alt, chars, complement, seq

# Counting a length beside a pattern takes a state per character. This many take about 0.2 s, if they are small:
# a state is an expression, and all of them together may be of so many parts.
MAX_STATES = 2000
MAX_PARTS = 50_000


@dataclass(frozen=True)
class Both:
    """The texts that are in every part."""

    parts: tuple[Language, ...]


@dataclass(frozen=True)
class Other:
    """The texts that are not in `language`."""

    language: Language


Language = Union[Expr, Both, Other]

ANY_CHAR = complement(Chars(()))
ANY_TEXT = Repeat(ANY_CHAR, 0, None)


class Encoding(Protocol):
    """How the characters of a language are written in the text that the grammar matches."""

    def chars(self, chars: Chars) -> Expr: ...

    def literal(self, text: str) -> Expr: ...


def repeated(item: Expr, low: int, high: int | None) -> Expr:
    """The item `low` to `high` times, in the normal form in which the item is never empty."""
    if nullable(item):
        item, low = _without_empty(item), 0
    if high is not None and low > high:
        return NEVER
    if high == 0 or item == EMPTY:
        return EMPTY
    if item == NEVER:
        return NEVER if low else EMPTY
    return item if (low, high) == (1, 1) else Repeat(item, low, high)


def _without_empty(node: Expr) -> Expr:
    """The same texts but the empty one."""
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


def both(*languages: Language) -> Language:
    parts: dict[Language, None] = {}
    for language in languages:
        parts.update(dict.fromkeys(language.parts if isinstance(language, Both) else (language,)))
    parts.pop(ANY_TEXT, None)
    if NEVER in parts:
        return NEVER
    if len(parts) < 2:
        return next(iter(parts), ANY_TEXT)
    return Both(tuple(parts))


def other(language: Language) -> Language:
    if isinstance(language, Other):
        return language.language
    if language == NEVER:
        return ANY_TEXT
    return NEVER if language == ANY_TEXT else Other(language)


def words(texts: Iterable[str]) -> Expr:
    """Exactly these texts."""
    return alt(*(Literal(text) if text else EMPTY for text in texts))


def nullable(language: Language) -> bool:
    """Whether the empty text is in it."""
    if isinstance(language, Seq):
        return all(map(nullable, language.items))
    if isinstance(language, Alt):
        return any(map(nullable, language.options))
    if isinstance(language, Repeat):
        return language.low == 0
    if isinstance(language, Both):
        return all(map(nullable, language.parts))
    return isinstance(language, Other) and not nullable(language.language)


def derivative(language: Language, char: int) -> Language:
    """What may follow after `char`."""
    return _DERIVATIVES[type(language)](language, char)


def _of_chars(node: Chars, char: int) -> Language:
    return EMPTY if char in node else NEVER


def _of_literal(node: Literal, char: int) -> Language:
    if ord(node.text[0]) != char:
        return NEVER
    return Literal(node.text[1:]) if len(node.text) > 1 else EMPTY


def _of_seq(node: Seq, char: int) -> Language:
    if not node.items:
        return NEVER
    first, rest = node.items[0], seq(*node.items[1:])
    after = seq(_plain(derivative(first, char)), rest)
    return alt(after, _plain(derivative(rest, char))) if nullable(first) else after


def _of_alt(node: Alt, char: int) -> Language:
    return alt(*(_plain(derivative(option, char)) for option in node.options))


def _of_repeat(node: Repeat, char: int) -> Language:
    high = None if node.high is None else node.high - 1
    after = _plain(derivative(node.item, char))
    return after if after == NEVER else seq(after, repeated(node.item, max(node.low - 1, 0), high))


def _of_both(node: Both, char: int) -> Language:
    return both(*(derivative(part, char) for part in node.parts))


def _of_other(node: Other, char: int) -> Language:
    return other(derivative(node.language, char))


def _plain(language: Language) -> Expr:
    assert not isinstance(language, (Both, Other))
    return language


_DERIVATIVES: dict[type, Callable[..., Language]] = {
    Chars: _of_chars,
    Literal: _of_literal,
    Seq: _of_seq,
    Alt: _of_alt,
    Repeat: _of_repeat,
    Both: _of_both,
    Other: _of_other,
}


def contains(language: Language, text: str) -> bool:
    if language == ANY_TEXT:
        return True  # what a derivative per character would find out, for every value of a long enum
    for char in text:
        language = derivative(language, ord(char))
        if language == NEVER:
            return False
    return nullable(language)


def lengths(language: Language) -> tuple[int, int | None]:
    """Bounds of the lengths of the texts; None is without bound."""
    if isinstance(language, Literal):
        return len(language.text), len(language.text)
    if isinstance(language, Chars):
        return 1, 1
    if isinstance(language, Repeat):
        low, high = lengths(language.item)
        return low * language.low, None if high is None or language.high is None else high * language.high
    if isinstance(language, Other):
        return 0, None
    return _COMBINED[type(language)]([lengths(part) for part in _parts(language)])


def _parts(language: Language) -> tuple[Language, ...]:
    if isinstance(language, Seq):
        return language.items
    if isinstance(language, Alt):
        return language.options
    return language.parts if isinstance(language, Both) else ()


def _all_highs(pairs: list[tuple[int, int | None]]) -> list[int] | None:
    highs = [high for _, high in pairs if high is not None]
    return highs if len(highs) == len(pairs) else None


def _lengths_of_seq(pairs: list[tuple[int, int | None]]) -> tuple[int, int | None]:
    highs = _all_highs(pairs)
    return sum(low for low, _ in pairs), None if highs is None else sum(highs)


def _lengths_of_alt(pairs: list[tuple[int, int | None]]) -> tuple[int, int | None]:
    highs = _all_highs(pairs)
    return min((low for low, _ in pairs), default=0), None if highs is None else max(highs, default=0)


def _lengths_of_both(pairs: list[tuple[int, int | None]]) -> tuple[int, int | None]:
    highs = [high for _, high in pairs if high is not None]
    return max(low for low, _ in pairs), min(highs, default=None)


_COMBINED = {Seq: _lengths_of_seq, Alt: _lengths_of_alt, Both: _lengths_of_both}


def with_length(language: Language, low: int, high: int | None) -> Language:
    """The texts of `low` to `high` characters, without counting where it is not needed."""
    if high is not None and low > high:
        return NEVER
    shortest, longest = lengths(language)
    if shortest >= low and (high is None or (longest is not None and longest <= high)):
        return language
    if isinstance(language, Repeat) and lengths(language.item) == (1, 1):
        highs = [n for n in (high, language.high) if n is not None]
        return with_length(repeated(language.item, max(low, language.low), min(highs, default=None)), low, high)
    return both(language, repeated(ANY_CHAR, low, high))


def is_empty(language: Language) -> bool:
    """Whether no text at all is in it. Raises TooLarge."""
    return all(_is_dead(state) for state in automaton(language))


def _is_dead(state: Language) -> bool:
    return not nullable(state) if isinstance(state, (Both, Other)) else state == NEVER


def automaton(language: Language) -> dict[Language, dict[Language, Chars]]:
    """Each state, the first one first, with the characters that lead to other states. Raises TooLarge."""
    states: dict[Language, dict[Language, Chars]] = {}
    todo, n_parts = [language], 0
    while todo:
        state = todo.pop()
        if state in states:
            continue
        if len(states) >= MAX_STATES:
            raise TooLarge(f"these constraints together need more than {MAX_STATES} states")
        n_parts += _n_parts(state)
        if n_parts > MAX_PARTS:
            raise TooLarge(f"these constraints together need states of more than {MAX_PARTS} parts")
        # What has become a plain expression needs no automaton of its own.
        states[state] = dict(_moves(state)) if isinstance(state, (Both, Other)) else {}
        todo += reversed(states[state])
    return states


def _n_parts(language: Language) -> int:
    n, todo = 0, [language]
    while todo:
        part = todo.pop()
        n += 1
        if isinstance(part, Repeat):
            todo.append(part.item)
        elif isinstance(part, Other):
            todo.append(part.language)
        else:
            todo += _parts(part)
    return n


def _moves(state: Language) -> Iterator[tuple[Language, Chars]]:
    ranges: dict[Language, list[tuple[int, int]]] = {}
    for sample, part in _partition(state):
        ranges.setdefault(derivative(state, sample), []).extend(part)
    for after, pairs in ranges.items():
        if after != NEVER:
            yield after, chars(*pairs)


def _partition(state: Language) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Groups of characters which the state does not tell apart, each with one of them."""
    firsts = list(dict.fromkeys(_firsts(state)))
    edges = {cut for a, b in ANY_CHAR.ranges for cut in (a, b + 1)}
    cuts = sorted(edges | {cut for first in firsts for a, b in first.ranges for cut in (a, b + 1)})
    groups: dict[tuple[bool, ...], list[tuple[int, int]]] = {}
    for a, b in zip(cuts, cuts[1:]):
        if a in ANY_CHAR:
            groups.setdefault(tuple(a in first for first in firsts), []).append((a, b - 1))
    for part in groups.values():
        yield part[0][0], part


def _firsts(language: Language) -> Iterator[Chars]:
    """The classes of characters that a text may start with."""
    if isinstance(language, Chars):
        yield language
    elif isinstance(language, Literal):
        yield Chars(((ord(language.text[0]),) * 2,))
    elif isinstance(language, Repeat):
        yield from _firsts(language.item)
    elif isinstance(language, Other):
        yield from _firsts(language.language)
    else:
        for part in _parts(language):
            yield from _firsts(part)
            if isinstance(language, Seq) and not nullable(part):
                return


def language_rules(rules: Rules, language: Language, encoding: Encoding, hint: str) -> Expr:
    """The expression that matches the language. Raises TooLarge."""
    if isinstance(language, (Both, Other)):
        return _automaton_rules(rules, language, encoding, hint)
    return _plain_rules(rules, language, encoding)


def _plain_rules(rules: Rules, node: Expr, encoding: Encoding) -> Expr:
    if isinstance(node, Chars):
        return encoding.chars(node)
    if isinstance(node, Literal):
        return encoding.literal(node.text)
    if isinstance(node, Repeat):
        return rules.repeat(_plain_rules(rules, node.item, encoding), node.low, node.high)
    if isinstance(node, Seq):
        return seq(*(_plain_rules(rules, item, encoding) for item in node.items))
    assert isinstance(node, Alt)
    return alt(*(_plain_rules(rules, option, encoding) for option in node.options))


def _automaton_rules(rules: Rules, language: Language, encoding: Encoding, hint: str) -> Expr:
    states = automaton(language)
    counted = {state: rules.declare(hint) for state in states if isinstance(state, (Both, Other))}
    bodies: dict[Language, Expr] = {
        state: counted[state] if isinstance(state, (Both, Other)) else _plain_rules(rules, state, encoding)
        for state in states
    }
    for state, ref in counted.items():
        moves = [seq(encoding.chars(part), bodies[after]) for after, part in states[state].items()]
        rules.define(ref, alt(*moves, *([EMPTY] if nullable(state) else [])))
    return bodies[language]
