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
        self._current: Adapters | None = None
        # The other sets of running sequences, the one first that has waited for longest.
        self._waiting: list[Adapters] = []
        self._n_steps_left = 0

    @property
    def others_wait(self) -> bool:
        """Whether sequences of another set wait for the end of the step."""
        return bool(self._waiting)

    def next_sequences(self, running: list[Sequence]) -> list[Sequence]:
        """The running sequences of the set that has the next step."""
        # Sets without a running sequence any more, also the current one, stay in `waiting` until the last filter.
        sets = dict.fromkeys(sequence.adapters for sequence in running)
        new = [adapters for adapters in sets if adapters != self._current and adapters not in self._waiting]
        waiting = [*self._waiting, *new]
        if self._current not in sets or self._n_steps_left <= 0:
            if self._current is not None:
                waiting.append(self._current)
            self._current = next((adapters for adapters in waiting if adapters in sets), None)
            self._n_steps_left = _TURN_STEPS
        self._waiting = [adapters for adapters in waiting if adapters in sets and adapters != self._current]
        return [sequence for sequence in running if sequence.adapters == self._current]

    def count(self, batch: Batch) -> None:
        """Count a step, which uses up a part of the turn."""
        self._n_steps_left -= 1 + (batch.n_tokens - len(batch.chunks)) // _ROWS_PER_STEP
