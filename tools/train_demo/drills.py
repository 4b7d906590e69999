"""Exercises on random tokens: to copy, to make lists, and to fill in forms, with nothing to remember.

A dialogue teaches these skills with few of its tokens, and words can be guessed where they should be read.
Here every token is random, and few different ones make up a row, so that what stands before a token decides
nothing: only where it stands does. Knows nothing of text.
"""

from __future__ import annotations

from typing import Callable

import numpy as np

Tokens = list[int]
# Of a row: its tokens, and which of them follow from those before.
Row = tuple[Tokens, list[bool]]

LENGTH = 160
_MOST_ITEMS = 6


class _Writer:
    """A row in the making, from an alphabet of its own."""

    def __init__(self, rng: np.random.Generator, vocab_size: int) -> None:
        self._rng = rng
        n = int(np.exp(rng.uniform(np.log(5), np.log(200))))
        marks_and_letters = rng.choice(vocab_size, n + 8, replace=False).tolist()
        self.marks: Tokens = marks_and_letters[:8]
        self._letters: Tokens = marks_and_letters[8:]
        self.tokens: Tokens = []
        self.follows: list[bool] = []
        self._seen: set[int] = set()

    @property
    def is_full(self) -> bool:
        return len(self.tokens) > LENGTH

    def number(self, least: int, most: int) -> int:
        return int(self._rng.integers(least, most + 1))

    def span(self, least: int, most: int) -> Tokens:
        """Random letters."""
        return [self._letters[i] for i in self._rng.integers(0, len(self._letters), self.number(least, most))]

    def spans(self, n: int, least: int, most: int) -> list[Tokens]:
        """Different ones, as far as the alphabet has so many."""
        found = {tuple(self.span(least, most)): None for _ in range(4 * n)}
        return [list(span) for span in found][:n]

    def shuffled(self, n: int) -> list[int]:
        return self._rng.permutation(n).tolist()

    def write(self, tokens: Tokens, follows: bool = False) -> None:
        # Nobody could know a token that the row has not had yet.
        self.follows += [follows and token in self._seen for token in tokens]
        self.tokens += tokens
        self._seen.update(tokens)

    def row(self) -> Row:
        return self.tokens[: LENGTH + 1], self.follows[: LENGTH + 1]


def repetition(writer: _Writer) -> None:
    """A text again and again."""
    text = writer.span(4, 60)
    writer.write(text)
    while not writer.is_full:
        writer.write(text, True)


def listing(writer: _Writer) -> None:
    """Things that were named one after the other, each between marks of another kind."""
    between, end, bullet, line_end = writer.marks[:4]
    while not writer.is_full:
        items = writer.spans(writer.number(2, _MOST_ITEMS), 1, 5)
        for item in items:
            writer.write([*item, between])
        writer.write([end, bullet])
        for i, item in enumerate(items):
            writer.write([*item, line_end], True)
            if i < len(items) - 1:
                writer.write([bullet], True)
        writer.write([end], True)


def form(writer: _Writer) -> None:
    """Records of a name and fields; then values for one of them in any order, and the record filled in.

    Some fields get no value and are left out. That is a call of a tool, without its words.
    """
    field_mark, record_end, ask, value_mark, answer, end = writer.marks[:6]
    records = [(name, writer.spans(writer.number(1, 4), 1, 3)) for name in writer.spans(writer.number(1, 4), 1, 4)]
    for name, fields in records:
        writer.write(name)
        for field in fields:
            writer.write([field_mark, *field])
        writer.write([record_end])
    while not writer.is_full:
        name, fields = records[writer.number(0, len(records) - 1)]
        values = {i: writer.span(1, 6) for i in range(len(fields)) if i == 0 or writer.number(0, 3)}
        writer.write([ask, *name])
        for i in writer.shuffled(len(fields)):
            if i in values:
                writer.write([field_mark, *fields[i], value_mark, *values[i]])
        writer.write([answer])
        writer.write(name, True)
        for i in sorted(values):
            writer.write([field_mark, *fields[i], value_mark, *values[i]], True)
        writer.write([end], True)


_DRILLS: tuple[tuple[float, Callable[[_Writer], None]], ...] = ((0.25, repetition), (0.25, listing), (0.5, form))


def drill_rows(rng: np.random.Generator, vocab_size: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens [rows, LENGTH + 1] of rows of all kinds, and whether each follows from those before it."""
    tokens = np.zeros((rows, LENGTH + 1), np.int64)
    follows = np.zeros((rows, LENGTH + 1), bool)
    for i, kind in enumerate(rng.choice(len(_DRILLS), rows, p=[share for share, _ in _DRILLS])):
        writer = _Writer(rng, vocab_size)
        _DRILLS[kind][1](writer)
        tokens[i], follows[i] = writer.row()
    return tokens, follows
