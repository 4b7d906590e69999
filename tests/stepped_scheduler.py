"""A scheduler on fake cells, stepped by hand: no engine, no thread, no model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from localchat.serving.engine.backend import NoFreeCells
from localchat.serving.engine.batch import Batch, BatchChunk, CacheLimits, Sequence
from localchat.serving.engine.kv_cache import KVCache
from localchat.serving.engine.scheduler import Scheduler

from .fakes import FakeCells

# The token that every step samples.
NEXT = 7


def sequence(id: int, n_prompt: int, max_tokens: int = 100) -> Sequence:
    """A sequence whose prompt has no prefix in common with other ones."""
    return Sequence(id, [1000 * id + i for i in range(n_prompt)], max_tokens)


class SteppedScheduler(Scheduler):
    """A scheduler on fake cells, which check its operations and record them."""

    def __init__(self, limits: CacheLimits, max_snapshot_bytes: int = 0):
        self.cells = FakeCells(limits)
        self.cache = KVCache(self.cells, max_snapshot_bytes)
        super().__init__(limits, self.cache)

    def compute(self, batch: Batch, sample: Callable[[BatchChunk], list[int]]) -> Batch:
        """Computes a batch as the engine does. Returns it without drafts if there were no cells for them; an empty one
        if a sequence was preempted."""
        while True:
            try:
                self.cells.compute(batch)
            except NoFreeCells:
                if self.cache.evict():
                    continue
                if batch == (batch := batch.without_drafts()):
                    assert self.refuse() is None
                    return Batch()
            else:
                self.update(batch, [sample(chunk) for chunk in batch.outputs()])
                return batch


def new_scheduler(n_cells: int, n_parallel: int, n_batch: int, **limits: Any) -> SteppedScheduler:
    max_snapshot_bytes = limits.pop("max_snapshot_bytes", 0)
    limits = {"n_slots": n_parallel + limits.pop("n_idle", 4), **limits}
    return SteppedScheduler(CacheLimits(n_cells, n_parallel, n_batch=n_batch, **limits), max_snapshot_bytes)


def shape(batch: Batch) -> list[tuple[int, int, bool]]:
    """For each chunk: the id of its sequence, the number of tokens, and whether a token is sampled."""
    return [(chunk.sequence.id, chunk.n_tokens, chunk.wants_output) for chunk in batch.chunks]


def run_step(scheduler: SteppedScheduler) -> Batch:
    while True:
        batch = scheduler.compute(scheduler.schedule(), lambda chunk: [NEXT])
        if batch.chunks or not scheduler.running:
            return batch


# Shared prefixes.


def with_prompt(id: int, *prompt: int, max_tokens: int = 100) -> Sequence:
    return Sequence(id, list(prompt), max_tokens)


SYSTEM = list(range(50))


def finish(scheduler: SteppedScheduler, *, keep: bool = True) -> None:
    for running in list(scheduler.running):
        scheduler.remove(running, keep=keep)
