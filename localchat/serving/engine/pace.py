"""How long the rows of a step take on this machine, measured while it runs.

Prompts may delay the sequences that generate by a time, not by a number of rows: a row of a large model takes a
thousand times as long as one of a small model. And a draft pays if its rows cost little beside the step: nearly nothing
on a GPU, half a step and more on a CPU.
"""

from __future__ import annotations

import math
from collections import abc

from .batch import Batch
from .drafts import Prediction, paying_length
from .sequence import Sequence

# Sequences that generate wait for prompts at most this long, unless the smallest pass of a prompt takes longer.
MAX_WAIT_S = 0.5
# A step with fewer rows beside one of each sequence says little about the time of a row: reading the weights takes most
# of its time.
_MIN_MEASURED_ROWS = 8
# The number of rows before any are measured.
_UNMEASURED_ROWS = 64
# The share of the newest step in the times of steps that decode.
_NEWEST = 0.25
# What the time of a row of a draft loses whenever no draft pays. So a row is tried again after a time that was too long
# because of other processes; where rows are always dear, a draft is tried in one of some twenty steps that could have
# one.
_FORGOTTEN = 1 / 256


class Pace:
    """The seconds that steps and their rows take."""

    def __init__(self, clock: abc.Callable[[], float]) -> None:
        self.clock = clock
        # Of a row of a prompt, as an average in which each step counts as much as all before it.
        self._row_s: float | None = None
        # Of a step with the newest token of so many sequences and no draft.
        self._step_s: dict[int, float] = {}
        # Of a row of a draft; None before any is measured.
        self._draft_row_s: float | None = None

    def add(self, batch: Batch, seconds: float) -> None:
        """Counts a step, and notes in its sequences that it has ended."""
        now = self.clock()
        for chunk in batch.chunks:
            chunk.sequence.computed_at = now
        if batch.n_tokens - len(batch.chunks) >= _MIN_MEASURED_ROWS:
            row_s = seconds / batch.n_tokens
            self._row_s = row_s if self._row_s is None else (self._row_s + row_s) / 2
        n_drafted = sum(len(chunk.draft) for chunk in batch.chunks)
        if all(chunk.n_tokens == 1 + len(chunk.draft) and chunk.wants_output for chunk in batch.chunks):
            self._add_decoding(len(batch.chunks), n_drafted, seconds)

    def _add_decoding(self, n_sequences: int, n_drafted: int, seconds: float) -> None:
        step_s = self._step_s.get(n_sequences)
        if not n_drafted:
            self._step_s[n_sequences] = seconds if step_s is None else _average(step_s, seconds, 2 * step_s)
        elif step_s is not None:
            row_s = max(seconds - step_s, 0) / n_drafted
            before = row_s if self._draft_row_s is None else self._draft_row_s
            self._draft_row_s = _average(before, row_s, max(2 * before, step_s))

    def paying_length(self, predictions: abc.Sequence[Prediction]) -> int:
        """The length of drafts that pays in a step of these sequences."""
        step_s = self._step_s.get(len(predictions))
        if step_s is None or not any(prediction.n_tokens for prediction in predictions):
            return 0
        row_s = self._draft_row_s
        if row_s is None:  # It is measured with short drafts.
            n_tried = len(predictions)
            return paying_length(predictions, lambda n_drafted: step_s if n_drafted <= n_tried else math.inf)
        n_paying = paying_length(predictions, lambda n_drafted: step_s + n_drafted * row_s)
        if not n_paying:
            self._draft_row_s = row_s * (1 - _FORGOTTEN)
        return n_paying

    def n_rows_within(self, seconds: float) -> int:
        """How many rows of prompts a step computes in this time."""
        if self._row_s is None:
            return _UNMEASURED_ROWS
        return int(max(seconds, 0) / max(self._row_s, 1e-9))

    def waited_s(self, sequences: abc.Iterable[Sequence]) -> float:
        """How long the longest wait of these sequences is, since their last step."""
        now = self.clock()
        return max((now - sequence.computed_at for sequence in sequences), default=0.0)


def _average(before: float, newest: float, most: float) -> float:
    """The average with a further time.

    One step that takes much longer tells of other processes, so it counts as `most`.
    """
    return before + _NEWEST * (min(newest, most) - before)
