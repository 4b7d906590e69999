"""Which set of adapters has the next step: a step has one set, so sets that run at the same time take turns."""

from __future__ import annotations

from .batch import Batch
from .sequence import Sequence
from .values import Adapters

# A set of adapters keeps its turn for so many steps while others wait, since a change takes a tenth of a step of 0.4B
# parameters, half a step of 5M.
_TURN_STEPS = 8
# So many rows of prompts count as a further step, as which they take as long on a CPU.
_ROWS_PER_STEP = 8


class AdapterTurns:
    """The turns, in the order in which the sets wait."""

    def __init__(self) -> None:
        # The sets of the running sequences: the one that has the turn, then the one that has waited for longest.
        self._sets: list[Adapters] = []
        self._n_steps_left = 0

    @property
    def others_wait(self) -> bool:
        """Whether sequences of another set wait for the end of the step."""
        return len(self._sets) > 1

    def next_sequences(self, running: list[Sequence]) -> list[Sequence]:
        """The running sequences of the set that has the next step."""
        running_sets = dict.fromkeys(sequence.adapters for sequence in running)
        before, known = self._sets[:1], [adapters for adapters in self._sets if adapters in running_sets]
        self._sets = [*known, *(adapters for adapters in running_sets if adapters not in known)]
        if self._sets[:1] == before and self._n_steps_left <= 0:  # Its turn is over: it waits behind the others.
            self._sets = self._sets[1:] + before
        if self._sets[:1] != before or self._n_steps_left <= 0:
            self._n_steps_left = _TURN_STEPS
        return [sequence for sequence in running if sequence.adapters == self._sets[0]]

    def count(self, batch: Batch) -> None:
        """Count a step, which uses up a part of the turn."""
        self._n_steps_left -= 1 + (batch.n_tokens - len(batch.chunks)) // _ROWS_PER_STEP
