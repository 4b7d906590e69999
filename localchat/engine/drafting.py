"""Guessing ahead: what a drafter is, and how far ahead it pays to guess. Pure.

A guess costs a row of a batch and is checked by the model itself, so a wrong one costs time and never
changes the text.
"""

from __future__ import annotations

from typing import Protocol

from .scheduler import Sequence

# The first guess is a try; the most is what keeps a turn in which all of it was wrong short.
_FIRST, _MOST = 4, 16
# After so many drafts in a row without one right token the pause, in tokens, has doubled for the last time.
_MAX_DOUBLINGS = 10


class Drafter(Protocol):
    """Guesses what sequences say next. Runs on the engine thread."""

    def draft(self, sequences: list[Sequence], n_tokens: int) -> None:
        """Gives each sequence of whose next tokens it has an idea a draft of `n_tokens` at most."""

    def note(self, sequence: Sequence, n_drafted: int, n_accepted: int) -> None:
        """What became of the draft that it gave; the sequence has the tokens drawn already."""

    def forget(self, sequence: Sequence) -> None:
        """A sequence has ended."""

    def close(self) -> None:
        """Frees what it has, after the last turn."""


class DraftLength:
    """How far ahead to guess in one text: further while guesses hold, not at all for a while where none does.

    Each draft of which not one token was right doubles the pause until the next one.
    """

    def __init__(self) -> None:
        self._n_tokens = _FIRST
        self._n_misses = 0
        self._paused_until = 0

    def at(self, n_known: int) -> int:
        """Tokens to guess when so many are known."""
        return 0 if n_known < self._paused_until else self._n_tokens

    def note(self, n_known: int, n_drafted: int, n_accepted: int) -> None:
        if n_accepted == 0:
            self._n_misses = min(self._n_misses + 1, _MAX_DOUBLINGS)
            self._paused_until = n_known + (1 << self._n_misses)
            self._n_tokens = _FIRST
            return
        self._n_misses = 0
        # What was cut short for lack of room says nothing against a longer one.
        n_held = n_accepted + 1 if n_accepted < n_drafted else 2 * n_drafted
        self._n_tokens = min(max(n_held, 2), _MOST)
