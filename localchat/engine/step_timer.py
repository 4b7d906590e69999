"""Measures steps, to choose the number of prompt tokens in a step, the length of drafts, and the number of threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from .backend import Backend
from .batch import Batch, Sequence
from .step_cost import StepCost, StepSize
from .thread_count import ThreadCount


class StepTimer:
    """The measured times of one backend. `clock` returns seconds. All methods run on the engine thread."""

    def __init__(self, backend: Backend, clock: Callable[[], float]):
        self.clock = clock
        self._backend = backend
        self._cost = StepCost()
        self._threads = ThreadCount(*backend.threads)
        # The size of the newest step.
        self._size = StepSize()

    def decode(self, batch: Batch) -> None:
        """Decodes a batch, and sets the number of threads for the next one."""
        self._size = batch.size  # Before the sequences of the batch change.
        n_threads, started_at, processor_s = self._threads.n, self.clock(), time.process_time()
        self._backend.decode(batch)
        predicted_s = self._cost.seconds(self._size)
        self._threads.note(predicted_s, self.clock() - started_at, time.process_time() - processor_s)
        if self._threads.n != n_threads:
            self._backend.set_threads(self._threads.n)

    def note(self, seconds: float) -> None:
        """Notes the time of the whole step of the last `decode`: decoding, sampling and delivery."""
        if not self._threads.is_trying:
            self._cost.note(self._size, seconds)

    def n_prompt_tokens(self, running: Iterable[Sequence]) -> int:
        """How many prompt tokens the next step may have beside the sequences that wait for their next token."""
        running = list(running)
        n_computed = next((sequence.n_computed for sequence in running if sequence.is_prefilling), 0)
        return self._cost.prompt_tokens(_size_of_outputs(running), n_computed)

    def draft_token_cost(self, running: Iterable[Sequence], draft_token_s: float) -> float:
        """The cost of one draft token for each running sequence, as a share of a step without drafts.

        It is the cost of its row and that of drafting it, which takes `draft_token_s` for each sequence.
        """
        size = _size_of_outputs(running)
        step_s = self._cost.seconds(size)
        drafting = draft_token_s * size.n_outputs / step_s if step_s else 0.0
        return self._cost.row_share(size) + drafting


def _size_of_outputs(running: Iterable[Sequence]) -> StepSize:
    """The part of a step that computes the newest token of each sequence that waits for its next one."""
    lengths = [len(sequence.tokens) for sequence in running if not sequence.is_prefilling]
    return StepSize(len(lengths), 0, sum(lengths))
