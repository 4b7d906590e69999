"""Speculative decoding: the interface of drafters, and the length of a draft that saves most time. Pure.

A draft token costs a row of a batch. The model samples a token at each position of a draft, so a wrong draft token
costs time and never changes the text.
"""

from __future__ import annotations

from typing import Protocol

from .batch import Sequence

# The limit of draft tokens: it bounds the time of a step in which all of them are rejected.
MAX_LENGTH = 16
# The assumed acceptance rate at the start of a text.
_FIRST_RATE = 0.7
# The weight of the newest draft token in the acceptance rate.
_WEIGHT_OF_NEW = 0.15
# Nothing is drafted for a smaller expected gain.
_LEAST_GAIN = 1.05
# The number of draft tokens after a pause, to measure the acceptance rate again.
_PROBE = 2
# The length of pauses is doubled at most this many times.
_MAX_DOUBLINGS = 10


class Drafter(Protocol):
    """Drafts the next tokens of sequences. Runs on the engine thread."""

    def draft(self, sequences: list[Sequence], n_tokens: int, cost: float) -> None:
        """Sets `draft`, to at most `n_tokens` tokens, for each of the sequences for which there is a draft.

        `cost` is the time of a draft token, as a share of a step without drafts.
        """

    def note(self, sequence: Sequence, n_drafted: int, n_accepted: int, cost: float) -> None:
        """Notes how many draft tokens were accepted. The sequence already has the sampled tokens."""

    def forget(self, sequence: Sequence) -> None:
        """Drops the state of a sequence that has ended."""

    def close(self) -> None:
        """Frees all resources, after the last step."""


class DraftLength:
    """The length of drafts in one text, by the acceptance rate and the cost of a draft token.

    If no length saves time, nothing is drafted for some tokens, and then a short draft is tried. Each pause is twice as
    long as the last one.
    """

    def __init__(self) -> None:
        self._acceptance_rate = _FIRST_RATE
        # Pauses in a row, and the number of known tokens at which the last one ends.
        self._n_pauses = 0
        self._paused_until = 0

    def at(self, n_known: int, cost: float) -> int:
        """The number of tokens to draft after `n_known` known tokens, if each costs `cost` of a step."""
        if n_known < self._paused_until:
            return 0
        return best_length(self._acceptance_rate, cost) or _PROBE

    def note(self, n_known: int, n_drafted: int, n_accepted: int, cost: float) -> None:
        """Notes how many tokens of a draft were accepted; `n_known` tokens are known after it."""
        outcomes = [1] * n_accepted
        if n_accepted < n_drafted:
            outcomes.append(0)  # The first rejected token. Those after it are always rejected, and are not counted.
        for outcome in outcomes:
            self._acceptance_rate += _WEIGHT_OF_NEW * (outcome - self._acceptance_rate)
        if best_length(self._acceptance_rate, cost):
            self._n_pauses = 0
        else:
            self._n_pauses = min(self._n_pauses + 1, _MAX_DOUBLINGS)
            self._paused_until = n_known + (1 << self._n_pauses)


def best_length(acceptance_rate: float, cost: float) -> int:
    """The length of a draft with which a step gives the most tokens for its time; 0 if that is no draft.

    A draft token costs `cost` of a step. It is accepted with probability `acceptance_rate` if all earlier ones are.
    """
    best, best_gain = 0, _LEAST_GAIN
    n_expected, probability = 1.0, 1.0
    for length in range(1, MAX_LENGTH + 1):
        probability *= acceptance_rate
        n_expected += probability
        gain = n_expected / (1 + cost * length)
        if gain > best_gain:
            best, best_gain = length, gain
    return best
