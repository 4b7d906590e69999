"""Speculative decoding: the interface of drafters, and the length of a draft that saves most time. Pure.

A draft token costs a row of a batch. The model samples at each of them, so a wrong one costs time and never changes the
text.
"""

from __future__ import annotations

from typing import Protocol

from .batch import Sequence

# The longest draft: it bounds the time of a step in which all draft tokens are wrong.
MOST = 16
# The rate of acceptance that a text starts with.
_FIRST_CHANCE = 0.7
# The weight of the newest draft token in the rate of acceptance.
_WEIGHT_OF_NEW = 0.15
# A smaller expected gain than this may be none: nothing is drafted.
_LEAST_GAIN = 1.05
# The number of draft tokens after a pause, to measure the rate of acceptance again.
_PROBE = 2
# After so many pauses in a row they grow no longer.
_MAX_DOUBLINGS = 10


class Drafter(Protocol):
    """Drafts the next tokens of sequences. Runs on the engine thread."""

    def draft(self, sequences: list[Sequence], n_tokens: int, cost: float) -> None:
        """Sets `draft` of the sequences that it has one for, of `n_tokens` at most.

        A draft token costs `cost`, as a share of a step without drafts.
        """

    def note(self, sequence: Sequence, n_drafted: int, n_accepted: int, cost: float) -> None:
        """How many tokens of its draft were accepted; the sequence has the sampled tokens already."""

    def forget(self, sequence: Sequence) -> None:
        """A sequence has ended."""

    def close(self) -> None:
        """Frees what it has, after the last step."""


class DraftLength:
    """The length of drafts in one text, by the rate of acceptance and the cost of a draft token.

    Where no length saves time there is a pause, then a short draft; each pause is twice as long as the one before.
    """

    def __init__(self) -> None:
        self._chance = _FIRST_CHANCE
        self._n_pauses = 0
        self._paused_until = 0

    def at(self, n_known: int, cost: float) -> int:
        """Tokens to draft when `n_known` are known and each costs `cost` of a step."""
        if n_known < self._paused_until:
            return 0
        return best_length(self._chance, cost) or _PROBE

    def note(self, n_known: int, n_drafted: int, n_accepted: int, cost: float) -> None:
        """How many tokens of a draft were accepted; `n_known` are known after it."""
        # Tokens behind the first wrong one are wrong in any case, and are not counted.
        for is_right in [True] * n_accepted + [False] * (n_accepted < n_drafted):
            self._chance += _WEIGHT_OF_NEW * (is_right - self._chance)
        if best_length(self._chance, cost):
            self._n_pauses = 0
        else:
            self._n_pauses = min(self._n_pauses + 1, _MAX_DOUBLINGS)
            self._paused_until = n_known + (1 << self._n_pauses)


def best_length(chance: float, cost: float) -> int:
    """The length of draft with which a step gives most tokens for its time; 0 if none is better than no draft.

    A draft token is accepted with probability `chance` if all before it were, and costs `cost` of a step in any case.
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
