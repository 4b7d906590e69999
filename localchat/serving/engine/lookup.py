"""Prompt lookup: searches the text for an earlier occurrence of its last tokens; the draft is what followed it. Pure.

Edits, extractions, quotes and code repeat much of their prompt word for word. The search is that of LZ77 compressors: a
table has the positions of all n-grams of `N_GRAM` tokens. The last n-gram of the text is compared at its newest
positions, and the position with the longest match before it gives the draft.
"""

from __future__ import annotations

from .batch import Sequence
from .drafting import DraftLength

# Shorter n-grams recur by chance.
N_GRAM = 3
# Positions compared for each draft, and tokens compared at each position: these limits bound the time of a draft.
_MAX_POSITIONS = 8
_MAX_COMPARED = 32
# Tokens indexed in one step: a long prompt must not delay other sequences.
_MAX_INDEXED = 8192


class Lookup:
    """The positions after all n-grams of one text. The text only grows."""

    def __init__(self) -> None:
        # By n-gram: its newest position. By position: the previous position of the same n-gram.
        self._last: dict[tuple[int, ...], int] = {}
        self._before: dict[int, int] = {}
        self._n_indexed = N_GRAM

    def index(self, tokens: list[int], n_most: int = _MAX_INDEXED) -> bool:
        """Indexes at most `n_most` new tokens. Returns whether all are indexed."""
        end = min(len(tokens), self._n_indexed + n_most)
        for position in range(self._n_indexed, end):
            n_gram = tuple(tokens[position - N_GRAM : position])
            before = self._last.get(n_gram)
            if before is not None:
                self._before[position] = before
            self._last[n_gram] = position
        self._n_indexed = max(end, self._n_indexed)
        return end == len(tokens)

    def draft(self, tokens: list[int], n_tokens: int) -> list[int]:
        """The tokens after the longest match of the end of the text; none if the last n-gram is new."""
        position = self._last.get(tuple(tokens[-N_GRAM:]))
        best, n_best = None, 0
        for _ in range(_MAX_POSITIONS):
            if position is None or n_best == _MAX_COMPARED:
                break
            n = _n_common_before(tokens, position)
            if n > n_best:
                best, n_best = position, n
            position = self._before.get(position)
        if best is None:
            return []
        # A draft that reaches the end of the text continues at `best` again.
        period = len(tokens) - best
        return [tokens[best + i % period] for i in range(n_tokens)]


class LookupDrafter:
    """Drafts for each sequence from its own text."""

    def __init__(self) -> None:
        self._texts: dict[int, tuple[Lookup, DraftLength]] = {}

    def draft(self, sequences: list[Sequence], n_tokens: int, cost: float) -> None:
        for sequence in sequences:
            lookup, length = self._texts.setdefault(sequence.id, (Lookup(), DraftLength()))
            n = min(n_tokens, length.at(len(sequence.tokens), cost))
            if n and lookup.index(sequence.tokens):
                sequence.draft = lookup.draft(sequence.tokens, n)

    def note(self, sequence: Sequence, n_drafted: int, n_accepted: int, cost: float) -> None:
        _, length = self._texts[sequence.id]
        length.note(len(sequence.tokens), n_drafted, n_accepted, cost)

    def forget(self, sequence: Sequence) -> None:
        self._texts.pop(sequence.id, None)

    def close(self) -> None: ...


def _n_common_before(tokens: list[int], position: int) -> int:
    """The number of tokens before a position that are equal to the last tokens of the text, at least `N_GRAM`."""
    n, n_most = N_GRAM, min(position, _MAX_COMPARED)
    while n < n_most and tokens[position - n - 1] == tokens[-n - 1]:
        n += 1
    return n
