"""Guessing ahead: what a drafter is, and how far ahead it pays to guess. Pure.

A guess costs a row of a batch and is checked by the model itself, so a wrong one costs time and never
changes the text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .batch import Sequence

# The most keeps a turn in which all of it was wrong short.
MOST = 16
# How a text begins: guesses are right more often than not where there are any.
_FIRST_CHANCE = 0.7
# How much one token that was guessed, rightly or not, says of the next one.
_WEIGHT_OF_NEW = 0.15
# Less than this is not worth the trouble, nor sure to be a gain at all.
_LEAST_GAIN = 1.05
# What is guessed after a pause, to see whether it is worth it again.
_PROBE = 2
# After so many pauses in a row they grow no longer.
_MAX_DOUBLINGS = 10


class Drafter(Protocol):
    """Guesses what sequences say next. Runs on the engine thread."""

    def draft(self, sequences: list[Sequence], n_tokens: int, cost: float) -> None:
        """Gives each sequence of whose next tokens it has an idea a draft of `n_tokens` at most.

        A guessed token costs as much as this share of a turn.
        """

    def note(self, sequence: Sequence, n_drafted: int, n_accepted: int, cost: float) -> None:
        """What became of the draft that it gave; the sequence has the tokens drawn already."""

    def forget(self, sequence: Sequence) -> None:
        """A sequence has ended."""

    def close(self) -> None:
        """Frees what it has, after the last turn."""


class ForcedDrafter:
    """Drafts the tokens that a constraint forces: these are never wrong."""

    def __init__(self, forced_tokens: Callable[[Sequence], list[int]]):
        self._forced_tokens = forced_tokens

    def draft(self, sequences: list[Sequence], n_tokens: int, cost: float) -> None:
        for sequence in sequences:
            sequence.draft = self._forced_tokens(sequence)[:n_tokens]

    def note(self, sequence: Sequence, n_drafted: int, n_accepted: int, cost: float) -> None: ...

    def forget(self, sequence: Sequence) -> None: ...

    def close(self) -> None: ...


class DraftLength:
    """How far ahead to guess in one text: as far as it pays, by how often guesses were right and what they cost.

    Where no length pays there is a pause, and then a short try; each pause is twice as long as the last one.
    """

    def __init__(self) -> None:
        self._chance = _FIRST_CHANCE
        self._n_pauses = 0
        self._paused_until = 0

    def at(self, n_known: int, cost: float) -> int:
        """Tokens to guess when so many are known, and each costs this share of a turn."""
        if n_known < self._paused_until:
            return 0
        return best_length(self._chance, cost) or _PROBE

    def note(self, n_known: int, n_drafted: int, n_accepted: int, cost: float) -> None:
        """What became of a draft, with so many tokens known after it."""
        # Behind the first wrong one all are: they say nothing.
        for is_right in [True] * n_accepted + [False] * (n_accepted < n_drafted):
            self._chance += _WEIGHT_OF_NEW * (is_right - self._chance)
        if best_length(self._chance, cost):
            self._n_pauses = 0
        else:
            self._n_pauses = min(self._n_pauses + 1, _MAX_DOUBLINGS)
            self._paused_until = n_known + (1 << self._n_pauses)


def best_length(chance: float, cost: float) -> int:
    """The length of draft with which a turn gives most tokens for its time; 0 if none is better than no draft.

    A token is right by `chance` where all before it were, and costs a share of the turn in any case.
    """
    best, best_gain = 0, _LEAST_GAIN
    n_expected, power = 1.0, 1.0
    for length in range(1, MOST + 1):
        power *= chance
        n_expected += power
        gain = n_expected / (1 + cost * length)
        if gain > best_gain:
            best, best_gain = length, gain
    return best
