"""The scheduler, stepped by hand: no engine, no thread, no model."""

from __future__ import annotations

import random

import pytest

from localchat.engine.scheduler import Batch, Scheduler, Sequence

NEXT = 7  # what every draw gives


def sequence(id: int, n_prompt: int, max_tokens: int = 100) -> Sequence:
    return Sequence(id, list(range(n_prompt)), max_tokens)


def shape(batch: Batch) -> list[tuple[int, int, bool]]:
    """Of each part: which sequence, how many tokens, whether it gives a token."""
    return [(part.sequence.id, part.n_tokens, part.wants_output) for part in batch.parts]


def run_turn(scheduler: Scheduler) -> Batch:
    batch = scheduler.schedule()
    scheduler.update(batch, [NEXT for _ in batch.outputs()])
    return batch


def test_schedule_empty_gives_an_empty_batch():
    assert Scheduler(100, 4, 10).schedule() == Batch()


def test_prompt_longer_than_the_batch_is_read_in_chunks():
    scheduler = Scheduler(100, 4, 10)
    scheduler.add(sequence(1, 25))
    assert [shape(run_turn(scheduler)) for _ in range(4)] == [
        [(1, 10, False)],
        [(1, 10, False)],
        [(1, 5, True)],
        [(1, 1, True)],
    ]


def test_running_sequences_get_their_token_before_a_prompt_fills_the_rest():
    scheduler = Scheduler(100, 4, 10)
    scheduler.add(sequence(1, 3))
    scheduler.add(sequence(2, 3))
    run_turn(scheduler)
    scheduler.add(sequence(3, 30))
    assert shape(run_turn(scheduler)) == [(1, 1, True), (2, 1, True), (3, 8, False)]
    assert shape(run_turn(scheduler)) == [(1, 1, True), (2, 1, True), (3, 8, False)]


def test_newest_tokens_come_first_even_of_younger_sequences():
    scheduler = Scheduler(100, 4, 10)
    scheduler.add(sequence(1, 30))
    run_turn(scheduler)
    scheduler.add(sequence(2, 1))
    assert shape(run_turn(scheduler)) == [(2, 1, True), (1, 9, False)]


def test_new_sequence_joins_the_very_next_turn():
    scheduler = Scheduler(100, 4, 10)
    scheduler.add(sequence(1, 2))
    run_turn(scheduler)
    scheduler.add(sequence(2, 4))
    assert shape(run_turn(scheduler)) == [(1, 1, True), (2, 4, True)]


def test_rows_of_a_batch_are_contiguous():
    scheduler = Scheduler(100, 4, 10)
    for id in (1, 2, 3):
        scheduler.add(sequence(id, 3))
    parts = scheduler.schedule().parts
    assert [(part.first, part.output_row) for part in parts] == [(0, 2), (3, 5), (6, 8)]


def test_sequences_beyond_the_slots_wait_in_order():
    scheduler = Scheduler(100, 2, 10)
    for id in (1, 2, 3, 4):
        scheduler.add(sequence(id, 1))
    assert [part[0] for part in shape(run_turn(scheduler))] == [1, 2]
    scheduler.remove(scheduler.running[0])
    assert [part[0] for part in shape(run_turn(scheduler))] == [2, 3]


def test_removed_running_sequence_has_its_slot_cleared_before_the_next_batch():
    scheduler = Scheduler(100, 1, 10)
    scheduler.add(sequence(1, 3))
    slot = run_turn(scheduler).parts[0].slot
    scheduler.remove(scheduler.running[0])
    scheduler.add(sequence(2, 3))
    batch = scheduler.schedule()
    assert batch.cleared == (slot,)
    assert batch.parts[0].slot == slot
    assert scheduler.schedule().cleared == ()


def test_removed_waiting_sequence_never_runs():
    scheduler = Scheduler(100, 1, 10)
    first, second = sequence(1, 1), sequence(2, 1)
    scheduler.add(first)
    scheduler.add(second)
    run_turn(scheduler)
    scheduler.remove(second)
    scheduler.remove(first)
    assert scheduler.schedule().parts == ()


def test_prompt_that_does_not_fit_beside_the_others_waits():
    scheduler = Scheduler(20, 4, 10)
    scheduler.add(sequence(1, 10, 20))
    scheduler.add(sequence(2, 10, 20))
    run_turn(scheduler)
    assert [len(scheduler.running), len(scheduler.waiting)] == [1, 1]


def test_full_cells_preempt_the_newest_which_is_computed_again_later():
    scheduler = Scheduler(20, 4, 20)
    scheduler.add(sequence(1, 8, 20))
    scheduler.add(sequence(2, 8, 20))
    newest = scheduler.waiting[1]
    run_turn(scheduler)
    assert len(scheduler.running) == 2
    while len(scheduler.running) == 2:
        run_turn(scheduler)
    assert newest.slot is None
    assert newest.n_computed == 0
    known = list(newest.tokens)
    scheduler.remove(scheduler.running[0])
    assert shape(run_turn(scheduler)) == [(2, len(known), True)]
    assert newest.tokens == [*known, NEXT]


def test_sequence_that_may_fill_all_cells_runs_to_its_end_alone():
    scheduler = Scheduler(20, 4, 10)
    scheduler.add(sequence(1, 5, 20))
    only = scheduler.waiting[0]
    while not only.is_full:
        assert run_turn(scheduler).parts
    assert len(only.tokens) == 20


@pytest.mark.parametrize(
    ("n_prompt", "max_tokens"),
    [(0, 5), (5, 5), (5, 21)],
    ids=["no prompt", "no room for a token", "more than all cells"],
)
def test_sequence_that_can_never_run_is_refused(n_prompt: int, max_tokens: int):
    with pytest.raises(ValueError, match="20 cells"):
        Scheduler(20, 4, 10).add(sequence(1, n_prompt, max_tokens))


def test_batch_smaller_than_the_slots_is_refused():
    with pytest.raises(ValueError, match="batch of 3 tokens"):
        Scheduler(20, 4, 3)


def test_alone_splits_a_batch_into_one_for_each_sequence():
    scheduler = Scheduler(100, 4, 10)
    scheduler.add(sequence(1, 3))
    scheduler.add(sequence(2, 4))
    singles = list(scheduler.schedule().alone())
    assert [shape(single) for single in singles] == [[(1, 3, True)], [(2, 4, True)]]
    assert all(single.parts[0].first == 0 for single in singles)


@pytest.mark.parametrize("seed", range(20))
def test_random_arrivals_and_departures_keep_every_rule(seed: int):
    """Everybody finishes; cells, slots and the batch stay within bounds; nobody running skips a turn."""
    random_ = random.Random(seed)
    n_cells, n_slots, n_batch = random_.choice([(40, 4, 8), (64, 8, 8), (30, 3, 30)])
    scheduler = Scheduler(n_cells, n_slots, n_batch)
    to_come = [sequence(id, n := random_.randint(1, 20), random_.randint(n + 1, 30)) for id in range(40)]
    all_of_them, n_turns = list(to_come), 0
    while to_come or scheduler.running or scheduler.waiting:
        n_turns += 1
        assert n_turns < 10_000, "a sequence starves"
        for _ in range(random_.randint(0, 2)):
            if to_come:
                scheduler.add(to_come.pop(0))
        ready = [s for s in scheduler.running if s.n_missing == 1]
        batch = scheduler.schedule()
        assert batch.n_tokens <= n_batch
        assert len({part.slot for part in batch.parts}) == len(batch.parts) <= n_slots
        served = {part.sequence.id for part in batch.parts}
        assert all(s.id in served for s in ready if s.slot is not None)
        scheduler.update(batch, [NEXT for _ in batch.outputs()])
        assert scheduler.n_cells_used <= n_cells
        assert all(r.id < w.id for r in scheduler.running for w in scheduler.waiting)
        for s in [s for s in scheduler.running if s.is_full or random_.random() < 0.02]:
            scheduler.remove(s)
    assert all(s.slot is None for s in all_of_them)
    assert scheduler.schedule().parts == ()
