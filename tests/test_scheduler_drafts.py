"""Scheduling with drafts, and a random test of all of the scheduler."""

from __future__ import annotations

import random
from typing import Any

import pytest

from localchat.serving.engine.batch import BatchChunk, CacheLimits, Sequence

from .stepped_scheduler import NEXT, SteppedScheduler, finish, new_scheduler, run_step, sequence, shape, with_prompt

# Drafts.


def drafting(max_drafted: int = 8, n_cells: int = 200, n_batch: int = 100, **limits: Any) -> SteppedScheduler:
    """A scheduler with one sequence that has computed its prompt of 3 tokens and sampled one."""
    scheduler = new_scheduler(n_cells, 4, n_batch, max_drafted=max_drafted, **limits)
    scheduler.add(with_prompt(1, 1, 2, 3))
    run_step(scheduler)
    return scheduler


def test_alone_leaves_drafts_out():
    scheduler = drafting()
    scheduler.running[0].draft = [4, 5]
    (single,) = scheduler.schedule().alone()
    assert shape(single) == [(1, 1, True)]
    assert single.chunks[0].tokens() == [NEXT]


def test_draft_is_computed_behind_the_newest_token_with_an_output_at_each():
    scheduler = drafting()
    (sequence,) = scheduler.running
    sequence.draft = [4, 5]
    (chunk,) = scheduler.schedule().chunks
    assert (chunk.tokens(), list(chunk.output_rows)) == ([NEXT, 4, 5], [0, 1, 2])
    assert sequence.draft == []


@pytest.mark.parametrize(
    ("sampled", "n_computed", "operations"),
    [
        ([4, 5, 6], 6, []),
        ([4, 6], 5, [("truncate", 0, 5)]),
        ([6], 4, [("truncate", 0, 4)]),
        ([4, 5], 5, [("truncate", 0, 5)]),
    ],
    ids=["all right", "one right", "none right", "ended early"],
)
def test_rejected_draft_tokens_are_removed(sampled: list[int], n_computed: int, operations: list[tuple[Any, ...]]):
    scheduler = drafting()
    (sequence,) = scheduler.running
    sequence.draft = [4, 5]
    batch = scheduler.schedule()
    assert batch.chunks[0].slot == 0
    scheduler.compute(batch, lambda chunk: sampled)
    assert sequence.tokens == [1, 2, 3, NEXT, *sampled]
    assert (sequence.n_computed, sequence.n_missing, scheduler.cache.n_cells_active) == (n_computed, 1, n_computed)
    assert scheduler.cells.take_operations() == operations
    assert shape(scheduler.schedule()) == [(1, 1, True)]


def test_rejected_draft_tokens_are_removed_before_the_slot_is_shared():
    scheduler = drafting()
    (sequence,) = scheduler.running
    sequence.draft = [4, 5]
    scheduler.compute(scheduler.schedule(), lambda chunk: [9])
    scheduler.remove(sequence)
    scheduler.add(with_prompt(2, 1, 2, 3, 8, 8))
    scheduler.schedule()
    assert scheduler.cells.take_operations() == [("truncate", 0, 4), ("share", 0, 1, 3)]


def test_draft_never_goes_beyond_max_tokens():
    scheduler = new_scheduler(200, 4, 100, max_drafted=8)
    scheduler.add(with_prompt(1, 1, 2, 3, max_tokens=7))
    run_step(scheduler)
    (sequence,) = scheduler.running
    sequence.draft = [4] * 8
    (chunk,) = scheduler.schedule().chunks
    assert len(chunk.draft) == 2  # With these and the token that is sampled after them there are 7 tokens.


def test_drafts_share_the_limit_of_a_step():
    scheduler = new_scheduler(200, 4, 100, max_drafted=8)
    for id in (1, 2, 3):
        scheduler.add(sequence(id, 3))
    run_step(scheduler)
    assert scheduler.n_to_draft == 2
    for running in scheduler.running:
        running.draft = [4] * 5
    batch = scheduler.schedule()
    assert [len(chunk.draft) for chunk in batch.chunks] == [5, 3, 0]
    assert [chunk.first for chunk in batch.chunks] == [0, 6, 10]


def test_no_drafts_beside_a_prompt():
    scheduler = drafting()
    scheduler.running[0].draft = [4, 5]
    scheduler.add(sequence(2, 30))
    batch = scheduler.schedule()
    assert shape(batch) == [(1, 1, True), (2, 30, True)]
    assert scheduler.n_to_draft == 0


def test_no_drafts_with_many_running_sequences():
    scheduler = new_scheduler(200, 8, 100, max_drafted=40)
    for id in range(1, 6):
        scheduler.add(sequence(id, 3))
    run_step(scheduler)
    assert scheduler.n_to_draft == 0
    scheduler.remove(scheduler.running[0])
    assert scheduler.n_to_draft == 10


def test_draft_takes_cells_of_idle_prefixes_only():
    scheduler = new_scheduler(30, 4, 20, max_drafted=8)
    scheduler.add(sequence(1, 10, 30))
    run_step(scheduler)
    finish(scheduler)
    scheduler.add(sequence(2, 14, 30))
    run_step(scheduler)
    scheduler.running[0].draft = [4] * 8
    batch = scheduler.compute(scheduler.schedule(), lambda chunk: [9])
    assert [len(chunk.draft) for chunk in batch.chunks] == [8]
    scheduler.add(sequence(3, 12, 30))
    run_step(scheduler)
    for running in scheduler.running:
        running.draft = [4] * 4
    batch = scheduler.compute(scheduler.schedule(), lambda chunk: [9])
    assert [len(chunk.draft) for chunk in batch.chunks] == [0, 0]
    assert len(scheduler.running) == 2


@pytest.mark.parametrize(("can_truncate", "max_drafted"), [(False, 1), (True, 97)], ids=["no truncation", "no rows"])
def test_limits_without_rows_for_drafts_are_refused(can_truncate: bool, max_drafted: int):
    with pytest.raises(ValueError, match="draft tokens per step"):
        CacheLimits(200, 4, 8, 100, can_truncate, max_drafted)


@pytest.mark.parametrize("seed", range(20))
def test_random_arrivals_and_ends_keep_all_invariants(seed: int):
    """All sequences finish; cells, slots and the batch stay within bounds; no running sequence skips a step."""
    random_ = random.Random(seed)
    n_cells, n_parallel, n_batch = random_.choice([(40, 4, 8), (64, 8, 8), (30, 3, 30)])
    can_truncate = random_.random() < 0.8
    max_drafted = random_.randint(0, n_batch - n_parallel) if can_truncate else 0
    scheduler = new_scheduler(
        n_cells, n_parallel, n_batch, n_idle=random_.choice([1, 4]), can_truncate=can_truncate, max_drafted=max_drafted
    )
    to_come = [random_sequence(random_, id) for id in range(40)]
    all_of_them, n_steps = list(to_come), 0
    while to_come or scheduler.running or scheduler.waiting:
        n_steps += 1
        assert n_steps < 10_000, "a sequence starves"
        for _ in range(random_.randint(0, 2)):
            if to_come:
                scheduler.add(to_come.pop(0))
        ready = [s for s in scheduler.running if s.n_missing == 1]
        for s in ready if scheduler.n_to_draft else ():
            s.draft = random_.choices([0, 1, 2], k=random_.randint(0, scheduler.n_to_draft))
        batch = scheduler.schedule()
        assert batch.n_tokens <= n_batch
        assert len({chunk.slot for chunk in batch.chunks}) == len(batch.chunks) <= n_parallel
        served = {chunk.sequence.id for chunk in batch.chunks}
        assert all(s.id in served for s in ready if s.slot is not None)
        assert sum(len(chunk.draft) for chunk in batch.chunks) <= max_drafted
        scheduler.compute(batch, lambda chunk: sampled_run(random_, chunk))
        for s in [s for s in scheduler.running if s.is_full or random_.random() < 0.02]:
            scheduler.remove(s, keep=random_.random() < 0.8)
    assert all(s.slot is None for s in all_of_them)
    scheduler.cache.forget()
    assert scheduler.cells.n_cells_used() == 0


def sampled_run(random_: random.Random, chunk: BatchChunk) -> list[int]:
    """Some tokens of the draft, then another one."""
    return [*chunk.draft[: random_.randint(0, len(chunk.draft))], random_.randint(0, 2)]


def random_sequence(random_: random.Random, id: int) -> Sequence:
    """Few different tokens, so that prefixes coincide by chance."""
    n_prompt = random_.randint(1, 20)
    return Sequence(
        id,
        [0] * (n_prompt // 2) + random_.choices([0, 1], k=n_prompt - n_prompt // 2),
        random_.randint(n_prompt + 1, 30),
    )
