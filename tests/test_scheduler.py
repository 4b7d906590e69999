"""Scheduling by hand: order of arrival, chunks of prompts, preemption, scored prompts, drafts; and at random."""

from __future__ import annotations

import random
from typing import Any

import pytest

from localchat.serving.engine.batch import BatchChunk, Sequence
from localchat.serving.engine.tuning import CPU, GPU, Tuning

from .engines import request_for
from .stepped_scheduler import NEXT, SteppedScheduler, finish, new_scheduler, run_step, sequence, shape, with_prompt

SCORED = request_for((), prompt_logprobs=0)


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
    scheduler.add(Sequence(2, list(prompt), 200, SCORED))
    scheduler.add(Sequence(3, prompt[::-1], 200, SCORED))
    scheduler.add(Sequence(4, list(prompt), 200))
    rows = []
    for _ in range(6):
        batch = run_step(scheduler)
        rows.append([(chunk.sequence.id, chunk.n_tokens, len(chunk.scored_rows)) for chunk in batch.chunks])
    # At most 32 scored rows a step; they use no cached prefix, and no other sequence waits for theirs.
    assert rows[0] == [(1, 1, 0), (4, 1, 0), (2, 32, 32)]
    assert rows[2] == [(1, 1, 0), (4, 1, 0), (2, 16, 15), (3, 16, 16)]
    assert rows[3] == [(1, 1, 0), (2, 1, 0), (4, 1, 0), (3, 32, 32)]
    scored = [sequence for sequence in scheduler.running if sequence.request is SCORED]
    assert [sequence.n_cached for sequence in scored] == [0, 0]


def test_preempted_prompt_continues_scoring_at_the_same_token():
    scheduler = new_scheduler(60, 2, 10)
    scheduler.add(sequence(1, 20, 60))
    scored = Sequence(2, [*range(35)], 60, SCORED)
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


def test_sequences_beyond_the_slots_wait_in_order():
    scheduler = new_scheduler(100, 2, 10)
    for id in (1, 2, 3, 4):
        scheduler.add(sequence(id, 1))
    assert [chunk[0] for chunk in shape(run_step(scheduler))] == [1, 2]
    scheduler.remove(scheduler.running[0])
    assert [chunk[0] for chunk in shape(run_step(scheduler))] == [2, 3]


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


def test_half_of_the_prompt_tokens_go_to_the_shortest_prompts_and_the_rest_to_the_oldest():
    """So a short prompt waits for about twice its own time at most, and short ones do not stop a long one."""
    scheduler = new_scheduler(100_000, 16, 2048)
    for id, n_prompt in ((1, 900), (2, 2000), (3, 10), (4, 300)):
        scheduler.add(sequence(id, n_prompt, 9000))
    half = CPU.n_prompt_alone // 2
    assert shape(run_step(scheduler)) == [(1, half, False), (3, 10, True), (4, half - 10, False)]
    n_shared = CPU.n_prompt_beside // 2
    assert shape(run_step(scheduler)) == [(3, 1, True), (1, n_shared, False), (4, n_shared, False)]


@pytest.mark.parametrize("tuning", [CPU, GPU], ids=["CPU", "GPU"])
@pytest.mark.parametrize("is_unified", [True, False], ids=["one buffer", "streams"])
def test_long_prompts_delay_running_streams_by_one_bounded_step(tuning: Tuning, is_unified: bool):
    """And a short prompt that comes after them has its first token within two steps."""
    scheduler = new_scheduler(400_000, 32, 2048, is_unified=is_unified, tuning=tuning)
    for id in range(1, 9):
        scheduler.add(sequence(id, 5, 9000))
    run_step(scheduler)
    for id in range(10, 26):
        scheduler.add(sequence(id, 1500, 9000))
    n_between, gaps, waited = 0, [], None
    for i in range(120):
        if i == 5:
            scheduler.add(sequence(30, 20, 9000))
        batch = run_step(scheduler)
        if i >= 5 and waited is None and any(chunk.sequence.id == 30 for chunk in batch.outputs()):
            waited = i - 5
        decoding = {chunk.sequence.id for chunk in batch.outputs()} & {*range(1, 9)}
        n_between += batch.n_tokens - len(decoding)
        assert len(decoding) in (0, 8)
        if decoding:
            gaps.append(n_between)
            n_between = 0
    assert max(gaps) <= tuning.n_prompt_beside + 64
    assert waited is not None
    assert waited <= 1


def test_alone_splits_a_batch_into_one_for_each_sequence_without_drafts():
    scheduler = new_scheduler(100, 4, 10, max_drafted=4)
    scheduler.add(sequence(1, 3))
    scheduler.add(sequence(2, 4))
    assert [shape(single) for single in scheduler.schedule().alone()] == [[(1, 3, True)], [(2, 4, True)]]
    run_step(scheduler)
    for running in scheduler.running:
        running.draft = [4, 5]
    singles = list(scheduler.schedule().alone())
    assert [single.chunks[0].tokens() for single in singles] == [[NEXT], [NEXT]]
    assert all(single.chunks[0].first == 0 for single in singles)


# Drafts.


def drafting(max_drafted: int = 8, n_cells: int = 200, n_batch: int = 100, **limits: Any) -> SteppedScheduler:
    """A scheduler with one sequence that has computed its prompt of 3 tokens and sampled one."""
    scheduler = new_scheduler(n_cells, 4, n_batch, max_drafted=max_drafted, **limits)
    scheduler.add(with_prompt(1, 1, 2, 3))
    run_step(scheduler)
    return scheduler


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
    (chunk,) = batch.chunks
    assert (chunk.slot, chunk.tokens(), list(chunk.output_rows), sequence.draft) == (0, [NEXT, 4, 5], [0, 1, 2], [])
    scheduler.compute(batch, lambda chunk: sampled)
    assert sequence.tokens == [1, 2, 3, NEXT, *sampled]
    assert (sequence.n_computed, sequence.n_missing, scheduler.cache.n_cells_active) == (n_computed, 1, n_computed)
    assert scheduler.cells.take_operations() == operations
    assert shape(scheduler.schedule()) == [(1, 1, True)]


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
        assert [chunk.first for chunk in batch.chunks] == [
            sum(chunk.n_tokens for chunk in batch.chunks[:i]) for i in range(len(batch.chunks))
        ]
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
