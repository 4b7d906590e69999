"""The scheduler, stepped by hand: no engine, no thread, no model."""

from __future__ import annotations

import random
from typing import Any

import pytest

from localchat.engine.batch import Batch, BatchChunk, CacheLimits, Sequence
from localchat.engine.kv_cache import KVCache
from localchat.engine.scheduler import Scheduler
from localchat.engine.snapshots import Snapshots
from localchat.engine.step_cost import MAX_GAP_S, StepCost, StepSize

from .fakes import FakeCells

NEXT = 7  # what every draw gives


def sequence(id: int, n_prompt: int, max_tokens: int = 100) -> Sequence:
    """A sequence whose prompt has nothing in common with any other's."""
    return Sequence(id, [1000 * id + i for i in range(n_prompt)], max_tokens)


class SteppedScheduler(Scheduler):
    """A scheduler on fake cells, which check its operations and record them."""

    def __init__(self, limits: CacheLimits, max_snapshot_bytes: int = 0):
        self.cells = FakeCells(limits)
        self.cache = KVCache(self.cells, Snapshots(max_snapshot_bytes, can_cut=limits.can_cut))
        super().__init__(limits, self.cache)

    def operations(self) -> list[tuple[Any, ...]]:
        """The operations on the cells since the last call."""
        operations, self.cells.operations = self.cells.operations, []
        return operations

    def compute(self, batch: Batch, sampled: list[list[int]]) -> None:
        self.cells.compute(batch)
        self.update(batch, sampled)
        self.take_checkpoints(batch)


def new_scheduler(n_cells: int, n_running: int, n_batch: int, **limits: Any) -> SteppedScheduler:
    max_snapshot_bytes = limits.pop("max_snapshot_bytes", 0)
    limits = {"n_slots": n_running + limits.pop("n_resting", 4), **limits}
    return SteppedScheduler(CacheLimits(n_cells, n_running, n_batch=n_batch, **limits), max_snapshot_bytes)


def shape(batch: Batch) -> list[tuple[int, int, bool]]:
    """Of each part: which sequence, how many tokens, whether it gives a token."""
    return [(chunk.sequence.id, chunk.n_tokens, chunk.wants_output) for chunk in batch.chunks]


def run_turn(scheduler: SteppedScheduler) -> Batch:
    batch = scheduler.schedule()
    scheduler.compute(batch, [[NEXT] for _ in batch.outputs()])
    return batch


def test_schedule_empty_gives_an_empty_batch():
    assert new_scheduler(100, 4, 10).schedule() == Batch()


def test_prompt_longer_than_the_batch_is_read_in_chunks():
    scheduler = new_scheduler(100, 4, 10)
    scheduler.add(sequence(1, 25))
    assert [shape(run_turn(scheduler)) for _ in range(4)] == [
        [(1, 10, False)],
        [(1, 10, False)],
        [(1, 5, True)],
        [(1, 1, True)],
    ]


def test_prompt_that_is_scored_is_read_anew_in_small_chunks_beside_others():
    scheduler = new_scheduler(1000, 4, 100, n_resting=32)
    prompt = [*range(80)]
    scheduler.add(Sequence(1, list(prompt), 200))
    run_turn(scheduler)
    scheduler.add(Sequence(2, list(prompt), 200, scores_prompt=True))
    scheduler.add(Sequence(3, prompt[::-1], 200, scores_prompt=True))
    scheduler.add(Sequence(4, list(prompt), 200))
    rows = []
    for _ in range(6):
        batch = run_turn(scheduler)
        rows.append([(chunk.sequence.id, chunk.n_tokens, len(chunk.scored_rows)) for chunk in batch.chunks])
    # Of all that is scored 32 rows a turn; a known prompt is of no use to it, and its own keeps nobody waiting.
    assert rows[0] == [(1, 1, 0), (4, 1, 0), (2, 32, 32)]
    assert rows[2] == [(1, 1, 0), (4, 1, 0), (2, 16, 15), (3, 16, 16)]
    assert rows[3] == [(1, 1, 0), (2, 1, 0), (4, 1, 0), (3, 32, 32)]
    scored = [sequence for sequence in scheduler.running if sequence.scores_prompt]
    assert [sequence.n_cached for sequence in scored] == [0, 0]


def test_rows_with_logits_are_those_scored_and_the_newest_token():
    scheduler = new_scheduler(100, 4, 10, n_resting=10)
    scheduler.add(Sequence(1, [*range(15)], 100, scores_prompt=True))
    assert [chunk.rows_with_logits for chunk in run_turn(scheduler).chunks] == [tuple(range(10))]
    (chunk,) = run_turn(scheduler).chunks
    assert (chunk.scored_rows, chunk.rows_with_logits) == (range(4), (0, 1, 2, 3, 4))
    assert [chunk.rows_with_logits for chunk in run_turn(scheduler).chunks] == [(0,)]


def test_preempted_prompt_goes_on_scoring_where_it_was():
    scheduler = new_scheduler(60, 2, 10)
    scheduler.add(sequence(1, 20, 60))
    scored = Sequence(2, [*range(35)], 60, scores_prompt=True)
    for _ in range(2):
        run_turn(scheduler)
    scheduler.add(scored)
    run_turn(scheduler)
    n_scored = scored.n_scored
    assert 0 < n_scored < 34
    while scored in scheduler.running:
        run_turn(scheduler)
    scheduler.remove(scheduler.running[0], keep=False)
    batch = run_turn(scheduler)
    assert batch.chunks[0].sequence is scored
    assert scored.n_computed - batch.chunks[0].n_tokens <= scored.n_scored
    while scored.is_to_score:
        run_turn(scheduler)
    assert scored.n_scored >= 34


def test_running_sequences_get_their_token_before_a_prompt_fills_the_rest():
    scheduler = new_scheduler(100, 4, 10)
    scheduler.add(sequence(1, 3))
    scheduler.add(sequence(2, 3))
    run_turn(scheduler)
    scheduler.add(sequence(3, 30))
    assert shape(run_turn(scheduler)) == [(1, 1, True), (2, 1, True), (3, 8, False)]
    assert shape(run_turn(scheduler)) == [(1, 1, True), (2, 1, True), (3, 8, False)]


def test_newest_tokens_come_first_even_of_younger_sequences():
    scheduler = new_scheduler(100, 4, 10)
    scheduler.add(sequence(1, 30))
    run_turn(scheduler)
    scheduler.add(sequence(2, 1))
    assert shape(run_turn(scheduler)) == [(2, 1, True), (1, 9, False)]


def test_new_sequence_joins_the_very_next_turn():
    scheduler = new_scheduler(100, 4, 10)
    scheduler.add(sequence(1, 2))
    run_turn(scheduler)
    scheduler.add(sequence(2, 4))
    assert shape(run_turn(scheduler)) == [(1, 1, True), (2, 4, True)]


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
    assert [chunk[0] for chunk in shape(run_turn(scheduler))] == [1, 2]
    scheduler.remove(scheduler.running[0])
    assert [chunk[0] for chunk in shape(run_turn(scheduler))] == [2, 3]


def test_removed_sequence_that_is_not_kept_has_its_slot_cleared():
    scheduler = new_scheduler(100, 1, 10)
    scheduler.add(sequence(1, 3))
    slot = run_turn(scheduler).chunks[0].slot
    scheduler.remove(scheduler.running[0], keep=False)
    assert scheduler.operations() == [("clear", slot)]


def test_removed_waiting_sequence_never_runs():
    scheduler = new_scheduler(100, 1, 10)
    first, second = sequence(1, 1), sequence(2, 1)
    scheduler.add(first)
    scheduler.add(second)
    run_turn(scheduler)
    scheduler.remove(second)
    scheduler.remove(first)
    assert scheduler.schedule().chunks == ()


def test_prompt_that_does_not_fit_beside_the_others_waits():
    scheduler = new_scheduler(20, 4, 10)
    scheduler.add(sequence(1, 10, 20))
    scheduler.add(sequence(2, 10, 20))
    run_turn(scheduler)
    assert [len(scheduler.running), len(scheduler.waiting)] == [1, 1]


def test_full_cells_preempt_the_newest_which_goes_on_later():
    scheduler = new_scheduler(20, 4, 20)
    scheduler.add(sequence(1, 8, 20))
    scheduler.add(sequence(2, 8, 20))
    newest = scheduler.waiting[1]
    run_turn(scheduler)
    assert len(scheduler.running) == 2
    while len(scheduler.running) == 2:
        run_turn(scheduler)
    assert newest.slot is None
    known = list(newest.tokens)
    scheduler.remove(scheduler.running[0], keep=False)
    run_turn(scheduler)
    assert newest.tokens == [*known, NEXT]


def test_sequence_that_may_fill_all_cells_runs_to_its_end_alone():
    scheduler = new_scheduler(20, 4, 10)
    scheduler.add(sequence(1, 5, 20))
    only = scheduler.waiting[0]
    while not only.is_full:
        assert run_turn(scheduler).chunks
    assert len(only.tokens) == 20


@pytest.mark.parametrize(
    ("n_prompt", "max_tokens"),
    [(0, 5), (5, 5), (5, 21)],
    ids=["no prompt", "no room for a token", "more than all cells"],
)
def test_sequence_that_can_never_run_is_refused(n_prompt: int, max_tokens: int):
    with pytest.raises(ValueError, match="20 cells"):
        new_scheduler(20, 4, 10).add(sequence(1, n_prompt, max_tokens))


@pytest.mark.parametrize(("n_running", "n_slots", "n_batch"), [(0, 4, 8), (4, 4, 8), (4, 8, 3)])
def test_room_that_cannot_run_is_refused(n_running: int, n_slots: int, n_batch: int):
    with pytest.raises(ValueError, match=f"{n_running} sequences at once"):
        CacheLimits(20, n_running, n_slots, n_batch)


def test_alone_splits_a_batch_into_one_for_each_sequence():
    scheduler = new_scheduler(100, 4, 10)
    scheduler.add(sequence(1, 3))
    scheduler.add(sequence(2, 4))
    singles = list(scheduler.schedule().alone())
    assert [shape(single) for single in singles] == [[(1, 3, True)], [(2, 4, True)]]
    assert all(single.chunks[0].first == 0 for single in singles)


def test_alone_leaves_guesses_out():
    scheduler = drafting()
    scheduler.running[0].draft = [4, 5]
    (single,) = scheduler.schedule().alone()
    assert shape(single) == [(1, 1, True)]
    assert single.chunks[0].tokens() == [NEXT]


# Shared prefixes.


def with_prompt(id: int, *prompt: int, max_tokens: int = 100) -> Sequence:
    return Sequence(id, list(prompt), max_tokens)


SYSTEM = list(range(50))


def finish(scheduler: SteppedScheduler, *, keep: bool = True) -> None:
    for running in list(scheduler.running):
        scheduler.remove(running, keep=keep)


def test_known_prefix_is_shared_and_not_computed_again():
    scheduler = new_scheduler(200, 4, 100)
    scheduler.add(with_prompt(1, *SYSTEM, 100, 101))
    first = run_turn(scheduler)
    scheduler.add(with_prompt(2, *SYSTEM, 200))
    batch = run_turn(scheduler)
    assert scheduler.operations() == [("share", first.chunks[0].slot, batch.chunks[1].slot, 50)]
    assert shape(batch) == [(1, 1, True), (2, 1, True)]
    assert scheduler.running[1].n_cached == 50


def test_finished_conversation_goes_on_in_its_own_slot():
    scheduler = new_scheduler(200, 4, 100)
    scheduler.add(with_prompt(1, 1, 2, 3))
    slot = run_turn(scheduler).chunks[0].slot
    run_turn(scheduler)
    said = list(scheduler.running[0].tokens)
    finish(scheduler)
    scheduler.add(with_prompt(2, *said, 8, 9))
    batch = run_turn(scheduler)
    assert scheduler.operations() == []
    assert [(chunk.slot, chunk.n_tokens) for chunk in batch.chunks] == [(slot, 3)]


def test_last_token_of_a_known_prompt_is_computed_for_its_logits():
    scheduler = new_scheduler(200, 4, 100)
    for id in (1, 2):
        scheduler.add(with_prompt(id, *SYSTEM))
        batch = run_turn(scheduler)
        finish(scheduler)
    assert shape(batch) == [(2, 1, True)]


def test_requests_that_come_together_compute_their_common_part_once():
    scheduler = new_scheduler(1000, 8, 20)
    for id in range(1, 6):
        scheduler.add(with_prompt(id, *SYSTEM, 100 + id, 200 + id))
    n_computed = 0
    while len([s for s in scheduler.running if s.n_missing == 1]) < 5:
        n_computed += run_turn(scheduler).n_tokens
    n_drawn = sum(len(s.tokens) - s.n_prompt - 1 for s in scheduler.running)
    assert n_computed - n_drawn == 50 + 5 * 2


def test_others_do_not_wait_for_a_part_that_is_not_theirs():
    scheduler = new_scheduler(1000, 8, 20)
    scheduler.add(with_prompt(1, *SYSTEM))
    scheduler.add(with_prompt(2, *SYSTEM))
    scheduler.add(sequence(3, 2))
    run_turn(scheduler)
    assert [s.id for s in scheduler.running] == [1, 3]


def test_who_waits_for_a_cancelled_part_computes_it():
    scheduler = new_scheduler(1000, 8, 20)
    first, second = with_prompt(1, *SYSTEM), with_prompt(2, *SYSTEM)
    scheduler.add(first)
    scheduler.add(second)
    run_turn(scheduler)
    scheduler.remove(first)
    run_turn(scheduler)
    assert (second.n_cached, second.n_computed) == (20, 40)


def test_resting_prefixes_make_room_by_least_recent_use():
    scheduler = new_scheduler(40, 2, 40)
    for id in (1, 2, 3):
        scheduler.add(sequence(id, 10, 40))
        run_turn(scheduler)
        finish(scheduler)
    assert scheduler.cache.n_cells_idle == 30
    scheduler.add(sequence(4, 15, 40))
    run_turn(scheduler)
    assert scheduler.cache.n_cells_idle == 20
    finish(scheduler)
    for id, n_known in ((1, 0), (2, 10)):
        again = sequence(id, 11, 40)
        again.tokens[:10] = sequence(id, 10).tokens
        assert scheduler.cache.n_cached(again.reusable_tokens) == n_known


def test_slots_run_out_before_cells_and_the_oldest_prefix_goes():
    scheduler = new_scheduler(1000, 1, 40, n_resting=2)
    for id in range(1, 6):
        scheduler.add(sequence(id, 5))
        run_turn(scheduler)
        finish(scheduler)
    assert scheduler.cache.n_cells_idle == 15


def test_same_answer_again_takes_no_second_place():
    scheduler = new_scheduler(400, 2, 100)
    for id in range(1, 6):
        scheduler.add(with_prompt(id, *SYSTEM))
        run_turn(scheduler)
        run_turn(scheduler)
        finish(scheduler)
    assert scheduler.cache.n_cells_idle == 51
    assert len(scheduler.cache.idle()) == 1


def test_prefix_that_is_used_again_and_again_goes_last():
    scheduler = new_scheduler(1000, 1, 100, n_resting=2)
    for id in (1, 2, 1, 3, 1, 4, 1):
        scheduler.add(with_prompt(10 * id, *range(100 * id, 100 * id + 20)))
        n_computed = run_turn(scheduler).n_tokens
        finish(scheduler)
    assert n_computed == 1


def test_forget_drops_all_that_rests():
    scheduler = new_scheduler(100, 2, 40)
    scheduler.add(sequence(1, 5))
    slot = run_turn(scheduler).chunks[0].slot
    finish(scheduler)
    scheduler.cache.forget()
    assert scheduler.operations() == [("clear", slot)]
    assert scheduler.cache.n_cells_used == 0


def test_memory_that_cannot_be_cut_takes_only_whole_resting_prefixes():
    scheduler = new_scheduler(1000, 4, 100, can_cut=False)
    scheduler.add(with_prompt(1, *SYSTEM))
    slot = run_turn(scheduler).chunks[0].slot
    run_turn(scheduler)
    scheduler.add(with_prompt(2, *SYSTEM, 1, 2))
    run_turn(scheduler)
    run_turn(scheduler)
    finish(scheduler)
    scheduler.add(with_prompt(3, *SYSTEM, NEXT, NEXT, 9))
    batch = run_turn(scheduler)
    assert scheduler.operations() == []
    assert [(chunk.slot, chunk.n_tokens) for chunk in batch.chunks] == [(slot, 1)]


def test_prompt_is_read_to_its_last_token_first_where_the_memory_cannot_be_cut():
    """There a copy is made, which others may begin with."""
    scheduler = new_scheduler(1000, 4, 30, can_cut=False)
    long = with_prompt(1, *SYSTEM)
    scheduler.add(long)
    seen = []
    while long.n_sampled < 2:
        seen.append((shape(run_turn(scheduler)), long.is_at_checkpoint))
    assert seen == [
        ([(1, 30, False)], False),
        ([(1, 19, False)], True),
        ([(1, 1, True)], False),
        ([(1, 1, True)], False),
    ]


def test_equal_prompts_wait_for_the_snapshot_where_slots_cannot_be_cut():
    scheduler = new_scheduler(1000, 4, 30, n_resting=8, can_cut=False, max_snapshot_bytes=1000)
    for id in (1, 2, 3):
        scheduler.add(with_prompt(id, *SYSTEM))
    n_computed = 0
    for _ in range(5):
        batch = run_turn(scheduler)
        n_computed += sum(chunk.n_tokens for chunk in batch.chunks if chunk.sequence.n_sampled < 2)
    assert n_computed == 49 + 3
    assert [(s.n_cached, s.n_sampled > 0) for s in scheduler.running] == [(0, True), (49, True), (49, True)]


class Machine:
    """Steps a scheduler on a simulated clock: 20 ms a step, 1 ms a row, and prompt chunks by the measured cost."""

    def __init__(self) -> None:
        self.scheduler = SteppedScheduler(CacheLimits(100_000, 16, 32, 2048))
        self.cost = StepCost()
        self.now = 0.0
        self.longest_step_s = 0.0
        # When each sequence got its first token, by its number.
        self.first_at: dict[int, float] = {}

    def add(self, id: int, n_prompt: int) -> None:
        self.scheduler.add(Sequence(id, [10_000 * id + i for i in range(n_prompt)], 9000))

    def step(self) -> None:
        lengths = [len(s.tokens) for s in self.scheduler.running if s.n_missing == 1]
        self.scheduler.n_prompt_batch = self.cost.prompt_tokens(StepSize(len(lengths), 0, sum(lengths)))
        batch = self.scheduler.schedule()
        seconds = 0.02 + 0.001 * batch.n_tokens
        self.cost.note(batch.size, seconds)
        self.now += seconds
        self.longest_step_s = max(self.longest_step_s, seconds)
        self.scheduler.compute(batch, [[NEXT] for _ in batch.outputs()])
        for chunk in batch.outputs():
            self.first_at.setdefault(chunk.sequence.id, self.now)

    def run_until_first_token(self, id: int) -> float:
        while id not in self.first_at:
            self.step()
        return self.first_at[id]


@pytest.mark.parametrize("n_decoding", [0, 4])
@pytest.mark.parametrize(
    ("n_long", "long", "short"), [(1, 900, 2), (7, 2000, 2), (7, 2000, 60), (7, 2000, 500), (7, 8000, 1500)]
)
def test_short_prompt_behind_long_ones_waits_at_most_twice_its_own_time_and_a_step(
    n_long: int, long: int, short: int, n_decoding: int
):
    machine, alone = Machine(), Machine()
    for each in (machine, alone):
        for id in range(1, n_decoding + 1):
            each.add(id, 20)
            each.run_until_first_token(id)
        for _ in range(20):
            each.step()
    for id in range(10, 10 + n_long):
        machine.add(id, long)
    for _ in range(3):
        machine.step()
    starts = machine.now, alone.now
    for each in (machine, alone):
        each.add(30, short)
    waited_s, own_s = (each.run_until_first_token(30) - start for each, start in zip((machine, alone), starts))
    assert waited_s <= 2 * own_s + machine.longest_step_s
    assert machine.longest_step_s <= 1.1 * MAX_GAP_S


def test_long_prompt_among_many_short_ones_has_half_of_the_machine():
    machine, alone = Machine(), Machine()
    alone.add(1, 4000)
    own_s = alone.run_until_first_token(1)
    machine.add(1, 4000)
    id = 1
    while 1 not in machine.first_at:
        others = [s for s in (*machine.scheduler.running, *machine.scheduler.waiting) if s.id > 1]
        for sequence in others:
            if sequence.n_sampled:
                machine.scheduler.remove(sequence, keep=False)
        for _ in range(8 - len(others)):
            id += 1
            machine.add(id, 300)
        machine.step()
    assert machine.now <= 2.5 * own_s


def test_prompt_budget_bounds_the_turns_in_which_others_wait():
    scheduler = new_scheduler(1000, 4, 100)
    scheduler.add(sequence(1, 2))
    run_turn(scheduler)
    scheduler.n_prompt_batch = 5
    scheduler.add(sequence(2, 30))
    assert shape(run_turn(scheduler)) == [(1, 1, True), (2, 5, False)]
    scheduler.remove(scheduler.running[0])
    assert shape(run_turn(scheduler)) == [(2, 25, True)]


# Drafts.


def drafting(n_drafted: int = 8, n_cells: int = 200, n_batch: int = 100, **limits: Any) -> SteppedScheduler:
    """A scheduler with one sequence that has read its prompt of 3 tokens and drawn one."""
    scheduler = new_scheduler(n_cells, 4, n_batch, n_drafted=n_drafted, **limits)
    scheduler.add(with_prompt(1, 1, 2, 3))
    run_turn(scheduler)
    return scheduler


def test_draft_is_computed_behind_the_newest_token_with_an_output_at_each():
    scheduler = drafting()
    (sequence,) = scheduler.running
    sequence.draft = [4, 5]
    (chunk,) = scheduler.schedule().chunks
    assert (chunk.tokens(), list(chunk.output_rows)) == ([NEXT, 4, 5], [0, 1, 2])
    assert sequence.draft == []


@pytest.mark.parametrize(
    ("drawn", "n_computed", "operations"),
    [
        ([4, 5, 6], 6, []),
        ([4, 6], 5, [("cut", 0, 5)]),
        ([6], 4, [("cut", 0, 4)]),
        ([4, 5], 5, [("cut", 0, 5)]),
    ],
    ids=["all right", "one right", "none right", "ended early"],
)
def test_wrong_part_of_a_draft_is_cut_off(drawn: list[int], n_computed: int, operations: list[tuple[Any, ...]]):
    scheduler = drafting()
    (sequence,) = scheduler.running
    sequence.draft = [4, 5]
    batch = scheduler.schedule()
    assert batch.chunks[0].slot == 0
    scheduler.compute(batch, [drawn])
    assert sequence.tokens == [1, 2, 3, NEXT, *drawn]
    assert (sequence.n_computed, sequence.n_missing, scheduler.cache.n_cells_active) == (n_computed, 1, n_computed)
    assert scheduler.operations() == operations
    assert shape(scheduler.schedule()) == [(1, 1, True)]


def test_cut_comes_before_the_slot_is_shared_or_cleared():
    scheduler = drafting()
    (sequence,) = scheduler.running
    sequence.draft = [4, 5]
    scheduler.compute(scheduler.schedule(), [[9]])
    scheduler.remove(sequence)
    scheduler.add(with_prompt(2, 1, 2, 3, 8, 8))
    scheduler.schedule()
    assert scheduler.operations() == [("cut", 0, 4), ("share", 0, 1, 3)]


def test_draft_never_goes_beyond_the_limit_of_the_answer():
    scheduler = new_scheduler(200, 4, 100, n_drafted=8)
    scheduler.add(with_prompt(1, 1, 2, 3, max_tokens=7))
    run_turn(scheduler)
    (sequence,) = scheduler.running
    sequence.draft = [4] * 8
    (chunk,) = scheduler.schedule().chunks
    assert len(chunk.draft) == 2  # and with the token that comes after it there are 7


def test_drafts_share_what_one_turn_may_guess():
    scheduler = new_scheduler(200, 4, 100, n_drafted=8)
    for id in (1, 2, 3):
        scheduler.add(sequence(id, 3))
    run_turn(scheduler)
    assert scheduler.n_to_draft == 2
    for running in scheduler.running:
        running.draft = [4] * 5
    batch = scheduler.schedule()
    assert [len(chunk.draft) for chunk in batch.chunks] == [5, 3, 0]
    assert [chunk.first for chunk in batch.chunks] == [0, 6, 10]


def test_nobody_drafts_beside_a_prompt_that_is_read():
    scheduler = drafting()
    scheduler.running[0].draft = [4, 5]
    scheduler.add(sequence(2, 30))
    batch = scheduler.schedule()
    assert shape(batch) == [(1, 1, True), (2, 30, True)]
    assert scheduler.n_to_draft == 0


def test_nobody_drafts_beside_many_others():
    scheduler = new_scheduler(200, 8, 100, n_drafted=40)
    for id in range(1, 6):
        scheduler.add(sequence(id, 3))
    run_turn(scheduler)
    assert scheduler.n_to_draft == 0
    scheduler.remove(scheduler.running[0])
    assert scheduler.n_to_draft == 10


def test_draft_takes_cells_of_what_rests_and_of_nobody_else():
    scheduler = new_scheduler(30, 4, 20, n_drafted=8)
    scheduler.add(sequence(1, 10, 30))
    run_turn(scheduler)
    finish(scheduler)
    scheduler.add(sequence(2, 14, 30))
    run_turn(scheduler)
    assert (scheduler.cache.n_cells_active, scheduler.cache.n_cells_idle) == (14, 10)
    scheduler.running[0].draft = [4] * 8
    batch = scheduler.schedule()
    assert [len(chunk.draft) for chunk in batch.chunks] == [8]
    assert [name for name, *_ in scheduler.operations()] == ["clear"]
    scheduler.compute(batch, [[9]])
    scheduler.add(sequence(3, 6, 30))
    run_turn(scheduler)
    assert scheduler.cache.n_cells_active == 22
    for running in scheduler.running:
        running.draft = [4] * 4
    batch = scheduler.schedule()
    assert [len(chunk.draft) for chunk in batch.chunks] == [4, 2]
    assert len(scheduler.running) == 2


def test_draft_that_found_no_room_is_tried_without():
    scheduler = drafting()
    scheduler.running[0].draft = [4] * 4
    assert scheduler.refuse(scheduler.schedule())
    assert shape(scheduler.schedule()) == [(1, 1, True)]


@pytest.mark.parametrize(("can_cut", "n_drafted"), [(False, 1), (True, 97)], ids=["no way back", "no rows"])
def test_drafts_without_room_for_them_are_refused(can_cut: bool, n_drafted: int):
    with pytest.raises(ValueError, match="draft tokens per step"):
        CacheLimits(200, 4, 8, 100, can_cut, n_drafted)


@pytest.mark.parametrize("seed", range(20))
def test_random_arrivals_and_departures_keep_every_rule(seed: int):
    """Everybody finishes; cells, slots and the batch stay within bounds; nobody running skips a turn."""
    random_ = random.Random(seed)
    n_cells, n_slots, n_batch = random_.choice([(40, 4, 8), (64, 8, 8), (30, 3, 30)])
    can_cut = random_.random() < 0.8
    n_drafted = random_.randint(0, n_batch - n_slots) if can_cut else 0
    scheduler = new_scheduler(
        n_cells, n_slots, n_batch, n_resting=random_.choice([1, 4]), can_cut=can_cut, n_drafted=n_drafted
    )
    to_come = [random_sequence(random_, id) for id in range(40)]
    all_of_them, n_turns = list(to_come), 0
    while to_come or scheduler.running or scheduler.waiting:
        n_turns += 1
        assert n_turns < 10_000, "a sequence starves"
        for _ in range(random_.randint(0, 2)):
            if to_come:
                scheduler.add(to_come.pop(0))
        ready = [s for s in scheduler.running if s.n_missing == 1]
        for s in ready if scheduler.n_to_draft else ():
            s.draft = random_.choices([0, 1, 2], k=random_.randint(0, scheduler.n_to_draft))
        batch = scheduler.schedule()
        assert batch.n_tokens <= n_batch
        assert len({chunk.slot for chunk in batch.chunks}) == len(batch.chunks) <= n_slots
        served = {chunk.sequence.id for chunk in batch.chunks}
        assert all(s.id in served for s in ready if s.slot is not None)
        assert sum(len(chunk.draft) for chunk in batch.chunks) <= n_drafted
        scheduler.compute(batch, [drawn_run(random_, chunk) for chunk in batch.outputs()])
        assert scheduler.cache.n_cells_used == scheduler.cells.n_cells_used()
        for s in [s for s in scheduler.running if s.is_full or random_.random() < 0.02]:
            scheduler.remove(s, keep=random_.random() < 0.8)
    assert all(s.slot is None for s in all_of_them)
    scheduler.cache.forget()
    assert scheduler.cells.n_cells_used() == 0


def drawn_run(random_: random.Random, chunk: BatchChunk) -> list[int]:
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
