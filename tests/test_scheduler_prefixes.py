"""Scheduling with cached prefixes: shared, awaited, evicted, and whole ones where slots cannot be truncated."""

from __future__ import annotations

import pytest

from .stepped_scheduler import NEXT, SYSTEM, finish, new_scheduler, run_step, sequence, shape, with_prompt


def test_known_prefix_is_shared_and_not_computed_again():
    scheduler = new_scheduler(200, 4, 100)
    scheduler.add(with_prompt(1, *SYSTEM, 100, 101))
    first = run_step(scheduler)
    scheduler.add(with_prompt(2, *SYSTEM, 200))
    batch = run_step(scheduler)
    assert scheduler.cells.take_operations() == [("share", first.chunks[0].slot, batch.chunks[1].slot, 50)]
    assert shape(batch) == [(1, 1, True), (2, 1, True)]
    assert scheduler.running[1].n_cached == 50


def test_finished_conversation_continues_in_its_own_slot():
    scheduler = new_scheduler(200, 4, 100)
    scheduler.add(with_prompt(1, 1, 2, 3))
    slot = run_step(scheduler).chunks[0].slot
    run_step(scheduler)
    known = list(scheduler.running[0].tokens)
    finish(scheduler)
    scheduler.add(with_prompt(2, *known, 8, 9))
    batch = run_step(scheduler)
    assert scheduler.cells.take_operations() == []
    assert [(chunk.slot, chunk.n_tokens) for chunk in batch.chunks] == [(slot, 3)]


def test_last_token_of_a_known_prompt_is_computed_for_its_logits():
    scheduler = new_scheduler(200, 4, 100)
    for id in (1, 2):
        scheduler.add(with_prompt(id, *SYSTEM))
        batch = run_step(scheduler)
        finish(scheduler)
    assert shape(batch) == [(2, 1, True)]


def test_requests_that_arrive_together_compute_their_common_prefix_once():
    scheduler = new_scheduler(1000, 8, 20)
    for id in range(1, 6):
        scheduler.add(with_prompt(id, *SYSTEM, 100 + id, 200 + id))
    n_computed = 0
    while len([s for s in scheduler.running if s.n_missing == 1]) < 5:
        n_computed += run_step(scheduler).n_tokens
    n_sampled = sum(len(s.tokens) - s.n_prompt - 1 for s in scheduler.running)
    assert n_computed - n_sampled == 50 + 5 * 2


def test_other_requests_do_not_wait_for_a_prefix_that_is_not_theirs():
    scheduler = new_scheduler(1000, 8, 20)
    scheduler.add(with_prompt(1, *SYSTEM))
    scheduler.add(with_prompt(2, *SYSTEM))
    scheduler.add(sequence(3, 2))
    run_step(scheduler)
    assert [s.id for s in scheduler.running] == [1, 3]


def test_sequence_that_waits_for_a_cancelled_prefix_computes_it():
    scheduler = new_scheduler(1000, 8, 20)
    first, second = with_prompt(1, *SYSTEM), with_prompt(2, *SYSTEM)
    scheduler.add(first)
    scheduler.add(second)
    run_step(scheduler)
    scheduler.remove(first)
    run_step(scheduler)
    assert (second.n_cached, second.n_computed) == (20, 40)


def test_equal_outputs_take_one_idle_slot():
    scheduler = new_scheduler(400, 2, 100)
    for id in range(1, 6):
        scheduler.add(with_prompt(id, *SYSTEM))
        run_step(scheduler)
        run_step(scheduler)
        finish(scheduler)
    assert scheduler.cache.n_cells_idle == 51
    assert not (scheduler.cache.evict() and scheduler.cache.evict())


def test_prefix_that_is_often_used_is_evicted_last():
    scheduler = new_scheduler(1000, 1, 100, n_idle=2)
    for id in (1, 2, 1, 3, 1, 4, 1):
        scheduler.add(with_prompt(10 * id, *range(100 * id, 100 * id + 20)))
        n_computed = run_step(scheduler).n_tokens
        finish(scheduler)
    assert n_computed == 1


def test_only_whole_idle_prefixes_are_reused_where_slots_cannot_be_truncated():
    scheduler = new_scheduler(1000, 4, 100, can_truncate=False)
    scheduler.add(with_prompt(1, *SYSTEM))
    slot = run_step(scheduler).chunks[0].slot
    run_step(scheduler)
    scheduler.add(with_prompt(2, *SYSTEM, 1, 2))
    run_step(scheduler)
    run_step(scheduler)
    finish(scheduler)
    scheduler.add(with_prompt(3, *SYSTEM, NEXT, NEXT, 9))
    batch = run_step(scheduler)
    assert {name for name, *_ in scheduler.cells.take_operations()} == {"read_state"}
    assert [(chunk.slot, chunk.n_tokens) for chunk in batch.chunks] == [(slot, 1)]


def test_prompt_is_computed_to_its_last_token_first_where_slots_cannot_be_truncated():
    """A snapshot is taken there, for other prompts that begin with it."""
    scheduler = new_scheduler(1000, 4, 30, can_truncate=False)
    long = with_prompt(1, *SYSTEM)
    scheduler.add(long)
    seen = []
    while long.n_sampled < 2:
        seen.append((shape(run_step(scheduler)), long.is_at_checkpoint))
    assert seen == [
        ([(1, 30, False)], False),
        ([(1, 19, False)], True),
        ([(1, 1, True)], False),
        ([(1, 1, True)], False),
    ]


def test_equal_prompts_wait_for_the_snapshot_where_slots_cannot_be_truncated():
    scheduler = new_scheduler(1000, 4, 30, n_idle=8, can_truncate=False, max_snapshot_bytes=1000)
    for id in (1, 2, 3):
        scheduler.add(with_prompt(id, *SYSTEM))
    n_computed = 0
    for _ in range(5):
        batch = run_step(scheduler)
        n_computed += sum(chunk.n_tokens for chunk in batch.chunks if chunk.sequence.n_sampled < 2)
    assert n_computed == 49 + 3
    assert [(s.n_cached, s.n_sampled > 0) for s in scheduler.running] == [(0, True), (49, True), (49, True)]


@pytest.mark.parametrize("is_unified", [True, False], ids=["one buffer", "streams"])
@pytest.mark.parametrize("n_streams", [1, 8, 32])
@pytest.mark.parametrize("n_cells_each", [120, 240], ids=["few cells", "many cells"])
def test_prompts_that_were_seen_are_never_slower_than_new_ones(n_cells_each: int, n_streams: int, is_unified: bool):
    """With few cells or slots for idle prefixes, nothing is copied out of the cache, and no more is computed. If the
    cells hold all prefixes, only the last token of each prompt is."""
    scheduler = new_scheduler(n_streams * n_cells_each, n_streams, 512, n_idle=4, is_unified=is_unified)
    costs = []
    for _ in range(3):
        for i in range(n_streams):
            scheduler.add(sequence(i + 1, 100, 110))
        n_tokens = n_steps = 0
        while scheduler.running or scheduler.waiting:
            n_tokens += run_step(scheduler).n_tokens
            n_steps += 1
            for running in [running for running in scheduler.running if running.is_full]:
                scheduler.remove(running)
        operations = [name for name, *_ in scheduler.cells.take_operations()]
        assert "read_state" not in operations
        assert "write_state" not in operations
        costs.append((n_tokens, n_steps, len(operations) <= 3 * n_streams))
    assert costs[1] <= costs[0]
    assert costs[2] <= costs[0]
    assert all(is_bounded for _, _, is_bounded in costs)
    if n_cells_each > 200:
        assert costs[1][0] == costs[2][0] == 10 * n_streams


def test_cells_in_streams_are_copied_from_the_shortest_slot_and_continued_in_place():
    scheduler = new_scheduler(1000, 4, 200, is_unified=False)
    for id, n_more in ((1, 60), (2, 10)):
        scheduler.add(with_prompt(id, *SYSTEM, *[100 * id] * n_more, max_tokens=200))
        while not scheduler.running or not scheduler.running[0].n_sampled:
            run_step(scheduler)
        finish(scheduler)
    # More tokens would be lost than are copied.
    assert scheduler.cells.take_operations() == [("share", 0, 1, 50)]
    scheduler.add(with_prompt(3, *SYSTEM, 7, 8))
    run_step(scheduler)
    assert scheduler.cells.take_operations() == [("truncate", 1, 50)]
    scheduler.add(with_prompt(4, *SYSTEM, 9))
    run_step(scheduler)
    assert scheduler.cells.take_operations() == [("share", 1, 2, 50)]


def test_snapshots_stay_within_their_limit_and_the_least_recent_are_dropped():
    scheduler = new_scheduler(1000, 4, 100, n_idle=2, can_truncate=False, max_snapshot_bytes=3 * 4 * 49)
    for id in (1, 2, 3, 1, 4):
        scheduler.add(sequence(id, 50))
        run_step(scheduler)
        finish(scheduler, keep=False)
    n_cached = []
    for id in (1, 4, 2):
        scheduler.add(again := sequence(id, 50))
        run_step(scheduler)
        n_cached.append(again.n_cached)
        finish(scheduler, keep=False)
    assert n_cached == [49, 49, 0]
