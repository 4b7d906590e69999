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
# After so many steps in which no draft paid, the times of steps with drafts are measured again: other processes may
# have made them long.
_REMEASURED_AFTER = 256
# A number of draft tokens is tried if it is at most so many times as large as one that was measured.
_TRIED_TIMES = 4


class Pace:
    """The seconds that steps and their rows take."""

    def __init__(self, clock: abc.Callable[[], float]) -> None:
        self.clock = clock
        # Of a row of a prompt, as an average in which each step counts as much as all before it.
        self._row_s: float | None = None
        # Of a step that decodes, by the number of its sequences and of the tokens of their drafts.
        self._step_s: dict[tuple[int, int], float] = {}
        # How many steps could have had drafts since one paid.
        self._n_without_draft = 0

    def add(self, batch: Batch, seconds: float) -> None:
        """Count a step, and note in its sequences that it has ended."""
        now = self.clock()
        for chunk in batch.chunks:
            chunk.sequence.computed_at = now
        if batch.n_tokens - len(batch.chunks) >= _MIN_MEASURED_ROWS:
            row_s = seconds / batch.n_tokens
            self._row_s = row_s if self._row_s is None else (self._row_s + row_s) / 2
        n_drafted = sum(len(chunk.draft) for chunk in batch.chunks)
        if all(chunk.n_tokens == 1 + len(chunk.draft) and chunk.wants_output for chunk in batch.chunks):
            before = self._step_s.get((len(batch.chunks), n_drafted), seconds)
            self._step_s[len(batch.chunks), n_drafted] = _average(before, seconds, 2 * before)

    def draft_length(self, predictions: abc.Sequence[Prediction]) -> int:
        """The length of drafts with which a step of these sequences makes most tokens per second; 0: no drafts."""
        n_sequences = len(predictions)
        if (n_sequences, 0) not in self._step_s or not any(prediction.n_tokens for prediction in predictions):
            return 0
        n_paying = paying_length(predictions, lambda n_drafted: self._least_step_s(n_sequences, n_drafted))
        self._n_without_draft = 0 if n_paying else self._n_without_draft + 1
        if self._n_without_draft == _REMEASURED_AFTER:
            self._n_without_draft = 0
            self._step_s = {(n, n_drafted): step_s for (n, n_drafted), step_s in self._step_s.items() if not n_drafted}
        return n_paying

    def _least_step_s(self, n_sequences: int, n_drafted: int) -> float:
        """A lower bound of the time of a step: that of the longest measured step with at most as many draft tokens.

        A number that is not measured yet counts as fast as the largest measured one below it. So it seems to pay, is
        tried once, and is measured then. The bound is infinite for more than _TRIED_TIMES as many as were measured.

        The time does not grow evenly: a second row may take as long as the whole step without it, and seven further
        ones together no longer.
        """
        measured = {n_fewer: step_s for (n, n_fewer), step_s in self._step_s.items() if n == n_sequences}
        if n_drafted > max(n_sequences, _TRIED_TIMES * max(measured)):
            return math.inf
        return max(step_s for n_fewer, step_s in measured.items() if n_fewer <= n_drafted)

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
