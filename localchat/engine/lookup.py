"""Drafts from the text itself (prompt lookup): the tokens that followed the newest ones earlier in the text. Pure.

Edits, extractions, quotes and code repeat much of their prompt word for word. The search is that of
LZ77 compressors: a table of all runs of `N_GRAM` tokens leads to the places where one stood, the
newest first, and of the first few places the one with most tokens in common before it counts.
"""

from __future__ import annotations

from .batch import Sequence
from .drafting import DraftLength

# Shorter runs recur by chance.
N_GRAM = 3
# Places compared for each draft, and tokens compared at each: they bound the time of a draft.
_MAX_PLACES = 8
_MAX_COMPARED = 32
# Tokens indexed in one step: a long prompt must not delay other sequences.
_MAX_INDEXED = 8192


class Lookup:
    """The places of all runs in one text. Knows a text that only grows."""

    def __init__(self) -> None:
        # Of each run where the text went on after it the last time, and of each such place the one before it.
        self._last: dict[tuple[int, ...], int] = {}
        self._before: dict[int, int] = {}
        self._n_read = N_GRAM

    def read(self, tokens: list[int], n_most: int = _MAX_INDEXED) -> bool:
        """Takes note of tokens that are new; False if there are more of them than that."""
        end = min(len(tokens), self._n_read + n_most)
        for place in range(self._n_read, end):
            run = tuple(tokens[place - N_GRAM : place])
            before = self._last.get(run)
            if before is not None:
                self._before[place] = before
            self._last[run] = place
        self._n_read = max(end, self._n_read)
        return end == len(tokens)

    def draft(self, tokens: list[int], n_tokens: int) -> list[int]:
        """The tokens that came after the longest run that the text ends with; none if there is no such run."""
        place = self._last.get(tuple(tokens[-N_GRAM:]))
        best, n_best = None, 0
        for _ in range(_MAX_PLACES):
            if place is None or n_best == _MAX_COMPARED:
                break
            n = _n_common_before(tokens, place)
            if n > n_best:
                best, n_best = place, n
            place = self._before.get(place)
        if best is None:
            return []
        # What it goes on with may run into the end of the text: then the text repeats itself.
        period = len(tokens) - best
        return [tokens[best + i % period] for i in range(n_tokens)]


class LookupDrafter:
    """Drafts for many sequences, each from its own text."""

    def __init__(self) -> None:
        self._texts: dict[int, tuple[Lookup, DraftLength]] = {}

    def draft(self, sequences: list[Sequence], n_tokens: int, cost: float) -> None:
        for sequence in sequences:
            lookup, length = self._texts.setdefault(sequence.id, (Lookup(), DraftLength()))
            n = min(n_tokens, length.at(len(sequence.tokens), cost))
            if n and lookup.read(sequence.tokens):
                sequence.draft = lookup.draft(sequence.tokens, n)

    def note(self, sequence: Sequence, n_drafted: int, n_accepted: int, cost: float) -> None:
        _, length = self._texts[sequence.id]
        length.note(len(sequence.tokens), n_drafted, n_accepted, cost)

    def forget(self, sequence: Sequence) -> None:
        self._texts.pop(sequence.id, None)

    def close(self) -> None: ...


def _n_common_before(tokens: list[int], place: int) -> int:
    """How many tokens before a place are those that the text ends with."""
    n, n_most = N_GRAM, min(place, _MAX_COMPARED)
    while n < n_most and tokens[place - n - 1] == tokens[-n - 1]:
        n += 1
    return n
