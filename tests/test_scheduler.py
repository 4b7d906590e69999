"""Scheduling by hand: order of arrival, chunks of prompts, preemption, scored prompts."""

from __future__ import annotations

import pytest

from localchat.serving.engine.batch import Batch, CacheLimits, Sequence

from .stepped_scheduler import NEXT, new_scheduler, run_step, sequence, shape


def test_schedule_empty_gives_an_empty_batch():
    assert new_scheduler(100, 4, 10).schedule() == Batch()


def test_prompt_longer_than_the_batch_is_computed_in_chunks():
    scheduler = new_scheduler(100, 4, 10)
    scheduler.add(sequence(1, 25))
    assert [shape(run_step(scheduler)) for _ in range(4)] == [
        [(1, 10, False)],
        [(1, 10, False)],
        [(1, 5, True)],
        [(1, 1, True)],
    ]


def test_scored_prompt_is_computed_again_in_small_chunks():
    scheduler = new_scheduler(1000, 4, 100, n_idle=32)
    prompt = [*range(80)]
    scheduler.add(Sequence(1, list(prompt), 200))
    run_step(scheduler)
    scheduler.add(Sequence(2, list(prompt), 200, scores_prompt=True))
    scheduler.add(Sequence(3, prompt[::-1], 200, scores_prompt=True))
    scheduler.add(Sequence(4, list(prompt), 200))
    rows = []
    for _ in range(6):
        batch = run_step(scheduler)
        rows.append([(chunk.sequence.id, chunk.n_tokens, len(chunk.scored_rows)) for chunk in batch.chunks])
    # At most 32 scored rows a step; they use no cached prefix, and no other sequence waits for theirs.
    assert rows[0] == [(1, 1, 0), (4, 1, 0), (2, 32, 32)]
    assert rows[2] == [(1, 1, 0), (4, 1, 0), (2, 16, 15), (3, 16, 16)]
    assert rows[3] == [(1, 1, 0), (2, 1, 0), (4, 1, 0), (3, 32, 32)]
    scored = [sequence for sequence in scheduler.running if sequence.scores_prompt]
    assert [sequence.n_cached for sequence in scored] == [0, 0]


def test_rows_with_logits_are_those_scored_and_the_newest_token():
    scheduler = new_scheduler(100, 4, 10, n_idle=10)
    scheduler.add(Sequence(1, [*range(15)], 100, scores_prompt=True))
    assert [chunk.rows_with_logits for chunk in run_step(scheduler).chunks] == [tuple(range(10))]
    (chunk,) = run_step(scheduler).chunks
    assert (chunk.scored_rows, chunk.rows_with_logits) == (range(4), (0, 1, 2, 3, 4))
    assert [chunk.rows_with_logits for chunk in run_step(scheduler).chunks] == [(0,)]


def test_preempted_prompt_continues_scoring_at_the_same_token():
    scheduler = new_scheduler(60, 2, 10)
    scheduler.add(sequence(1, 20, 60))
    scored = Sequence(2, [*range(35)], 60, scores_prompt=True)
    for _ in range(2):
        run_step(scheduler)
    scheduler.add(scored)
    run_step(scheduler)
    n_scored = scored.n_scored
    assert 0 < n_scored < 34
    while scored in scheduler.running:
        run_step(scheduler)
    scheduler.remove(scheduler.running[0], keep=False)
    batch = run_step(scheduler)
    assert batch.chunks[0].sequence is scored
    assert scored.n_computed - batch.chunks[0].n_tokens <= scored.n_scored
    while scored.is_to_score:
        run_step(scheduler)
    assert scored.n_scored >= 34


def test_running_sequences_get_their_token_before_a_prompt_fills_the_batch():
    scheduler = new_scheduler(100, 4, 10)
    scheduler.add(sequence(1, 3))
    scheduler.add(sequence(2, 3))
    run_step(scheduler)
    scheduler.add(sequence(3, 30))
    assert shape(run_step(scheduler)) == [(1, 1, True), (2, 1, True), (3, 8, False)]
    assert shape(run_step(scheduler)) == [(1, 1, True), (2, 1, True), (3, 8, False)]


def test_rows_of_a_batch_are_contiguous():
    scheduler = new_scheduler(100, 4, 10)
    for id in (1, 2, 3):
        scheduler.add(sequence(id, 3))
    chunks = scheduler.schedule().chunks
    assert [(chunk.first, list(chunk.output_rows)) for chunk in chunks] == [(0, [2]), (3, [5]), (6, [8])]


def test_sequences_beyond_the_slots_wait_in_order():
    scheduler = new_scheduler(100, 2, 10)
    for id in (1, 2, 3, 4):
        scheduler.add(sequence(id, 1))
    assert [chunk[0] for chunk in shape(run_step(scheduler))] == [1, 2]
    scheduler.remove(scheduler.running[0])
    assert [chunk[0] for chunk in shape(run_step(scheduler))] == [2, 3]


def test_removed_sequence_that_is_not_kept_has_its_slot_cleared():
    scheduler = new_scheduler(100, 1, 10)
    scheduler.add(sequence(1, 3))
    slot = run_step(scheduler).chunks[0].slot
    scheduler.remove(scheduler.running[0], keep=False)
    assert scheduler.cells.take_operations() == [("clear", slot)]


def test_removed_waiting_sequence_never_runs():
    scheduler = new_scheduler(100, 1, 10)
    first, second = sequence(1, 1), sequence(2, 1)
    scheduler.add(first)
    scheduler.add(second)
    run_step(scheduler)
    scheduler.remove(second)
    scheduler.remove(first)
    assert scheduler.schedule().chunks == ()


def test_prompt_that_does_not_fit_beside_the_others_waits():
    scheduler = new_scheduler(20, 4, 10)
    scheduler.add(sequence(1, 10, 20))
    scheduler.add(sequence(2, 10, 20))
    run_step(scheduler)
    assert [len(scheduler.running), len(scheduler.waiting)] == [1, 1]


def test_full_cache_preempts_the_newest_sequence_which_continues_later():
    scheduler = new_scheduler(20, 4, 20)
    scheduler.add(sequence(1, 8, 20))
    scheduler.add(sequence(2, 8, 20))
    newest = scheduler.waiting[1]
    run_step(scheduler)
    assert len(scheduler.running) == 2
    while len(scheduler.running) == 2:
        run_step(scheduler)
    assert newest.slot is None
    known = list(newest.tokens)
    scheduler.remove(scheduler.running[0], keep=False)
    run_step(scheduler)
    assert newest.tokens == [*known, NEXT]


def test_sequence_that_may_fill_all_cells_runs_to_its_end_alone():
    scheduler = new_scheduler(20, 4, 10)
    scheduler.add(sequence(1, 5, 20))
    only = scheduler.waiting[0]
    while not only.is_full:
        assert run_step(scheduler).chunks
    assert len(only.tokens) == 20


@pytest.mark.parametrize(("n_parallel", "n_slots", "n_batch"), [(0, 4, 8), (4, 4, 8), (4, 8, 3)])
def test_limits_that_cannot_run_are_refused(n_parallel: int, n_slots: int, n_batch: int):
    with pytest.raises(ValueError, match=f"{n_parallel} sequences at once"):
        CacheLimits(20, n_parallel, n_slots, n_batch)


def test_alone_splits_a_batch_into_one_for_each_sequence():
    scheduler = new_scheduler(100, 4, 10)
    scheduler.add(sequence(1, 3))
    scheduler.add(sequence(2, 4))
    singles = list(scheduler.schedule().alone())
    assert [shape(single) for single in singles] == [[(1, 3, True)], [(2, 4, True)]]
    assert all(single.chunks[0].first == 0 for single in singles)
