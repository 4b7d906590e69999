"""Speculative decoding: the interface of drafters, and the length of a draft that saves most time. Pure.

A draft token costs a row of a batch. The model samples a token at each position of a draft, so a wrong draft token
costs time and never changes the text.
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
# Nothing is drafted for a smaller expected gain.
_LEAST_GAIN = 1.05
# The number of draft tokens after a pause, to measure the rate of acceptance again.
_PROBE = 2
# After so many pauses in a row they no longer become longer.
_MAX_DOUBLINGS = 10


class Drafter(Protocol):
    """Drafts the next tokens of sequences. Runs on the engine thread."""

    def draft(self, sequences: list[Sequence], n_tokens: int, cost: float) -> None:
        """Sets `draft` of the sequences for which there is a draft, to at most `n_tokens` tokens.

        `cost` is that of a draft token, as a share of a step without drafts.
        """

    def note(self, sequence: Sequence, n_drafted: int, n_accepted: int, cost: float) -> None:
        """Enters how many tokens of the draft were accepted. The sequence already has the sampled tokens."""

    def forget(self, sequence: Sequence) -> None:
        """Drops the state of a sequence that has ended."""

    def close(self) -> None:
        """Frees all resources, after the last step."""


class DraftLength:
    """The length of drafts in one text, by the rate of acceptance and the cost of a draft token.

    If no length saves time there is a pause, and then a short draft. Each pause is twice as long as the last one.
    """

    def __init__(self) -> None:
        self._chance = _FIRST_CHANCE
        self._n_pauses = 0
        self._paused_until = 0

    def at(self, n_known: int, cost: float) -> int:
        """The number of tokens to draft after `n_known` known tokens, if each costs `cost` of a step."""
        if n_known < self._paused_until:
            return 0
        return best_length(self._chance, cost) or _PROBE

    def note(self, n_known: int, n_drafted: int, n_accepted: int, cost: float) -> None:
        """Enters how many tokens of a draft were accepted; `n_known` are known after it."""
        # Tokens after the first rejected one are always rejected, and are not counted.
        for is_right in [True] * n_accepted + [False] * (n_accepted < n_drafted):
            self._chance += _WEIGHT_OF_NEW * (is_right - self._chance)
        if best_length(self._chance, cost):
            self._n_pauses = 0
        else:
            self._n_pauses = min(self._n_pauses + 1, _MAX_DOUBLINGS)
            self._paused_until = n_known + (1 << self._n_pauses)


def best_length(chance: float, cost: float) -> int:
    """The length of a draft with which a step gives most tokens for its time; 0 if no draft is better.

    A draft token is accepted with probability `chance` if all earlier ones were, and costs `cost` of a step.
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
