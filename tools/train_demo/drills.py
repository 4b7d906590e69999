"""Exercises on random tokens: to copy, to make lists, and to fill in forms, with nothing to remember.

A dialogue teaches these skills with few of its tokens, and words can be guessed where they should be read.
Here all but a few marks are random, and few different tokens make up a row, so that what stands before a token
decides nothing: only where it stands does. Knows nothing of text.
"""

from __future__ import annotations

from typing import Callable

import numpy as np

Tokens = list[int]
# Of a row: its tokens, and which of them follow from those before.
Row = tuple[Tokens, list[bool]]

LENGTH = 224
# Tokens of punctuation that dialogues hardly have: a mark that means something there would be learned twice.
MARKS = (2, 3, 4, 5, 26, 27, 61, 93)
_MOST_ITEMS = 6


class _Writer:
    """A row in the making, from an alphabet of its own."""

    def __init__(self, rng: np.random.Generator, n_tokens: int) -> None:
        self._rng = rng
        n = int(np.exp(rng.uniform(np.log(5), np.log(200))))
        # The same in all rows: what is to be read is what stands between them.
        self.marks = MARKS
        self._letters: Tokens = rng.choice(np.setdiff1d(np.arange(n_tokens), MARKS), n, replace=False).tolist()
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
        # Nobody could know a letter that the row has not had yet.
        self.follows += [follows and (token in self._seen or token in self.marks) for token in tokens]
        self.tokens += tokens
        self._seen.update(tokens)

    def write_field(self, field: Tokens, options: list[Tokens]) -> None:
        """A field, and its options with the field's name after each of them."""
        field_mark, _, option_mark, _, _, _, key_mark, _ = self.marks
        self.write([field_mark, *field])
        for option in options:
            self.write([option_mark, *option, key_mark, *field])

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
    """Records of a name and fields; then values for one or two of them in any order, and the fields so filled in.

    Some fields get no value and are left out. Some have options, each with the field's name after it, of which one
    may be given without that name, as may the value of a record's only field. That is a call of a tool, without its
    words.
    """
    field_mark, record_end, _, answer, end, ask, key_mark, value_mark = writer.marks
    names = writer.spans(writer.number(1, 3), 1, 4)
    records = []
    for name in names:
        fields = [
            (field, writer.spans(writer.number(2, 3), 1, 3) if writer.number(0, 4) < 3 else [])
            for field in writer.spans(writer.number(1, 3), 1, 3)
        ]
        records.append((name, fields))
        writer.write(name)
        for field, options in fields:
            writer.write_field(field, options)
        writer.write([record_end])
    while not writer.is_full:
        asked = []
        for _ in range(1 if writer.number(0, 2) else 2):
            name, fields = records[writer.number(0, len(records) - 1)]
            given = [i for i in writer.shuffled(len(fields)) if i == 0 or writer.number(0, 3)]
            values = {}
            writer.write([ask, *name])
            for i in given:
                field, options = fields[i]
                values[i] = options[writer.number(0, len(options) - 1)] if options else writer.span(1, 6)
                if writer.number(0, 1) or not (options or len(fields) == 1):
                    writer.write([key_mark, *field])
                writer.write([value_mark, *values[i]])
            asked.append((name, fields, values))
        for name, fields, values in asked:
            writer.write([answer])
            writer.write(name, True)
            for i, value in values.items():
                writer.write([field_mark, *fields[i][0], value_mark, *value], True)
        writer.write([end], True)


def options(writer: _Writer) -> None:
    """Fields with their options; then some of the options, and each of them behind its field.

    This is what is hardest in a form, again and again.
    """
    field_mark, record_end, _, answer, end, _, _, value_mark = writer.marks
    longest = writer.number(1, 3)
    fields = writer.spans(writer.number(2, 5), 1, longest)
    free = writer.spans(4 * len(fields), 1, longest)
    found = []
    for field in fields:
        its_own = [free.pop() for _ in range(min(len(free), writer.number(1, 3)))]
        writer.write_field(field, its_own)
        found += [(field, option) for option in its_own]
    writer.write([record_end])
    while not writer.is_full:
        asked = [found[i] for i in writer.shuffled(len(found))[: writer.number(1, 4)]]
        for _, option in asked:
            writer.write([value_mark, *option])
        writer.write([answer])
        for field, option in asked:
            writer.write([field_mark, *field, value_mark, *option], True)
        writer.write([end], True)


_DRILLS: tuple[tuple[float, Callable[[_Writer], None]], ...] = (
    (0.05, repetition),
    (0.05, listing),
    (0.4, form),
    (0.5, options),
)


def drill_rows(rng: np.random.Generator, n_tokens: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens [rows, LENGTH + 1] below `n_tokens`, of rows of all kinds, and whether each follows from those before."""
    tokens = np.zeros((rows, LENGTH + 1), np.int64)
    follows = np.zeros((rows, LENGTH + 1), bool)
    for i, kind in enumerate(rng.choice(len(_DRILLS), rows, p=[share for share, _ in _DRILLS])):
        writer = _Writer(rng, n_tokens)
        _DRILLS[kind][1](writer)
        tokens[i], follows[i] = writer.row()
    return tokens, follows
