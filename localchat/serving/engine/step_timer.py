"""Measures steps, to choose the number of prompt tokens in a step, the length of drafts, and the number of threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from .batch import Sequence
from .step_cost import StepCost, StepSize
from .thread_count import ThreadCount

Result = TypeVar("Result")


class ThreadedContext(Protocol):
    """A context of llama.cpp whose number of CPU threads can be set."""

    # The number of threads of the first step, and its limit in later steps. With a limit of 1 it never changes.
    threads: tuple[int, int]

    def set_threads(self, n: int) -> None:
        """Sets the number of threads, from the next step on."""


class StepTimer:
    """The measured times of the steps of one context. `clock` returns seconds."""

    def __init__(self, context: ThreadedContext, clock: Callable[[], float]):
        self.clock = clock
        self._context = context
        self._cost = StepCost()
        self._threads = ThreadCount(*context.threads)
        # The size of the newest step, and whether it was part of a trial of another number of threads.
        self._size = StepSize()
        self._is_trial = False

    def compute(self, size: StepSize, compute: Callable[[], Result]) -> Result:
        """Calls `compute`, which computes a step of this size, and sets the number of threads for the next step."""
        self._size, self._is_trial = size, self._threads.is_trying
        n_threads, started_at, processor_s = self._threads.n, self.clock(), time.process_time()
        result = compute()
        seconds, processor_s = self.clock() - started_at, time.process_time() - processor_s
        self._threads.note(self._cost.seconds(size), seconds, processor_s)
        if self._threads.n != n_threads:
            self._context.set_threads(self._threads.n)
        return result

    def note(self, seconds: float) -> None:
        """Notes the time of the whole step of the last `compute`, with sampling and delivery."""
        if not self._is_trial:
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
