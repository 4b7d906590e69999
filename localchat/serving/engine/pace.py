"""How long the rows of a step take on this machine, measured while it runs.

Prompts may delay the sequences that generate by a time, not by a number of rows: a row of a large model takes a
thousand times as long as one of a small model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .batch import Batch, Sequence

# Sequences that generate wait for prompts at most this long, unless the smallest pass of a prompt takes longer.
MAX_WAIT_S = 0.5
# A step with fewer rows beside one of each sequence says little about the time of a row: reading the weights takes most
# of its time.
_MIN_MEASURED_ROWS = 8
# The number of rows before any are measured.
_UNMEASURED_ROWS = 64


class Pace:
    """The seconds that a row of a prompt takes, as an average in which each step counts as much as all before it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self._row_s: float | None = None

    def add(self, batch: Batch, seconds: float) -> None:
        """Counts a step, and notes in its sequences that it has ended."""
        now = self.clock()
        for chunk in batch.chunks:
            chunk.sequence.computed_at = now
        if batch.n_tokens - len(batch.chunks) >= _MIN_MEASURED_ROWS:
            row_s = seconds / batch.n_tokens
            self._row_s = row_s if self._row_s is None else (self._row_s + row_s) / 2

    def n_rows_within(self, seconds: float) -> int:
        """How many rows of prompts a step computes in this time."""
        if self._row_s is None:
            return _UNMEASURED_ROWS
        return int(max(seconds, 0) / max(self._row_s, 1e-9))

    def waited_s(self, sequences: Iterable[Sequence]) -> float:
        """How long the longest wait of these sequences is, since their last step."""
        now = self.clock()
        return max((now - sequence.computed_at for sequence in sequences), default=0.0)
