"""The scheduler on fake cells, stepped by hand: order of arrival, prompts, preemption, drafts, cached prefixes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from localchat.serving.core.params import SamplingParams
from localchat.serving.engine.batch import TILE_ROWS, Batch, BatchChunk, CacheLimits, Sequence
from localchat.serving.engine.kv_cache import KVCache
from localchat.serving.engine.protocols import NoFreeCells
from localchat.serving.engine.scheduler import Scheduler
from localchat.serving.engine.tuning import CPU, GPU, Tuning
from localchat.serving.engine.values import GenerationRequest
from tests.support.fakes import FakeCells

# The token that every step samples.
NEXT = 7


def sequence(id: int, n_prompt: int, max_tokens: int = 100) -> Sequence:
    """A sequence whose prompt has no prefix in common with other ones."""
    return Sequence(id, [1000 * id + i for i in range(n_prompt)], max_tokens)


class SteppedScheduler(Scheduler):
    """A scheduler on fake cells, which check its operations and record them."""

    def __init__(self, limits: CacheLimits):
        self.cells = FakeCells(limits)
        self.cache = KVCache(self.cells)
        super().__init__(limits, self.cache)

    def compute(self, batch: Batch, sample: Callable[[BatchChunk], list[int]]) -> Batch:
        """Computes a batch as the engine does. Returns it without drafts if there were no cells for them; an empty one
        if a sequence was preempted."""
        try:
            self.cache.decode(batch)
        except NoFreeCells:
            if any(chunk.draft for chunk in batch.chunks):
                return self.compute(batch.without_drafts(), sample)
            assert self.refuse() is None
            return Batch()
        self.update(batch, [sample(chunk) for chunk in batch.outputs()])
        return batch


def new_scheduler(n_cells: int, n_parallel: int, n_batch: int, **limits: Any) -> SteppedScheduler:
    n_slots = n_parallel + limits.pop("n_idle", 4)
    return SteppedScheduler(CacheLimits(n_cells, n_parallel, n_slots, n_batch, n_slots, **limits))


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


def finish(scheduler: SteppedScheduler) -> None:
    for running in list(scheduler.running):
        scheduler.remove(running)


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
@pytest.mark.parametrize("n_prompt", [1500, 60])
def test_prompts_delay_running_streams_by_one_bounded_step(tuning: Tuning, is_unified: bool, n_prompt: int):
    """And a short prompt that comes after them has its first token within two steps."""
    scheduler = new_scheduler(400_000, 32, 2048, is_unified=is_unified, tuning=tuning)
    for id in range(1, 9):
        scheduler.add(sequence(id, 5, 9000))
    run_step(scheduler)
    for id in range(10, 26):
        scheduler.add(sequence(id, n_prompt, 9000))
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


@pytest.mark.parametrize("seed", range(20))
def test_random_arrivals_and_ends_keep_all_invariants(seed: int):
    """All sequences finish; cells, slots and the batch stay within bounds; no running sequence skips a step."""
    random_ = random.Random(seed)
    n_cells, n_parallel, n_batch = random_.choice([(40, 4, 8), (64, 8, 8), (30, 3, 30)])
    can_truncate = random_.random() < 0.8
    max_drafted = random_.randint(0, n_batch - n_parallel) if can_truncate else 0
    options = {"can_truncate": can_truncate, "is_unified": not can_truncate or seed % 2 == 0}
    n_idle = random_.choice([1, 4])
    scheduler = new_scheduler(n_cells, n_parallel, n_batch, n_idle=n_idle, max_drafted=max_drafted, **options)
    to_come = [random_sequence(random_, id) for id in range(40)]
    all_of_them, n_steps = list(to_come), 0
    while to_come or scheduler.running or scheduler.waiting:
        n_steps += 1
        assert n_steps < 10_000, "a sequence starves"
        for _ in range(random_.randint(0, 2)):
            if to_come:
                scheduler.add(to_come.pop(0))
        ready = [s for s in scheduler.running if s.n_missing == 1]
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
        for s in [s for s in scheduler.running if len(s.tokens) >= s.max_length or random_.random() < 0.02]:
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


# Cached prefixes.


# By name: the limits, and the prompts of requests that follow one another, each with the number of its cached tokens.
# Each request computes its prompt, samples two tokens and computes the first one.
CACHED: dict[str, tuple[dict[str, Any], list[tuple[tuple[int, ...], int]]]] = {
    "same prompt": ({}, [((*SYSTEM,), 0), ((*SYSTEM,), 49)]),
    "next turn": ({}, [((*SYSTEM,), 0), ((*SYSTEM, NEXT, 9), 51), ((*SYSTEM, NEXT, 9, NEXT, 8), 53)]),
    "another beginning": ({}, [((*SYSTEM,), 0), ((9, *SYSTEM), 0)]),
    "the least recent prompt is dropped": (
        {"n_parallel": 1, "n_idle": 2},
        [((1, 1, 1), 0), ((2, 2), 0), ((1, 1, 1), 2), ((3, 3), 0), ((4, 4), 0), ((1, 1, 1), 2), ((2, 2), 0)],
    ),
    # Only the prompt without its last token is kept, and the end of the output.
    "no truncation": (
        {"can_truncate": False},
        [((*SYSTEM,), 0), ((*SYSTEM, NEXT), 49), ((*SYSTEM,), 49), ((*SYSTEM[:40], 1), 0), ((*SYSTEM, NEXT, 9), 51)],
    ),
    "no truncation, and few slots": (
        {"can_truncate": False, "n_parallel": 1, "n_idle": 3},
        [((*SYSTEM,), 0), ((9, *SYSTEM), 0), ((*SYSTEM,), 49), ((8, *SYSTEM), 0), ((9, *SYSTEM), 0)],
    ),
}


def n_cached(scheduler: SteppedScheduler, sequences: list[Sequence]) -> list[int]:
    """The number of cached tokens of each of these sequences, which follow one another."""
    found = []
    for one in sequences:
        scheduler.add(one)
        while one.n_sampled < 2:
            run_step(scheduler)
        found.append(one.n_cached)
        finish(scheduler)
    return found


@pytest.mark.parametrize(("limits", "prompts"), CACHED.values(), ids=CACHED)
def test_prefixes_of_ended_requests_are_cached(limits: dict[str, Any], prompts: list[tuple[tuple[int, ...], int]]):
    scheduler = new_scheduler(1000, n_batch=100, **{"n_parallel": 4, **limits})
    assert n_cached(scheduler, [with_prompt(1, *tokens) for tokens, _ in prompts]) == [n for _, n in prompts]


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


def test_equal_prompts_wait_for_the_first_one_where_slots_cannot_be_truncated():
    scheduler = new_scheduler(1000, 4, 30, n_idle=8, can_truncate=False)
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
    """With few cells or slots, no more is computed. If the cells hold all prefixes, only the last tokens are."""
    scheduler = new_scheduler(n_streams * n_cells_each, n_streams, 512, n_idle=4, is_unified=is_unified)
    costs = []
    for _ in range(3):
        for i in range(n_streams):
            scheduler.add(sequence(i + 1, 100, 110))
        n_tokens = n_steps = 0
        while scheduler.running or scheduler.waiting:
            n_tokens += run_step(scheduler).n_tokens
            n_steps += 1
            for running in [running for running in scheduler.running if len(running.tokens) >= running.max_length]:
                scheduler.remove(running)
        costs.append((n_tokens, n_steps, len(scheduler.cells.take_operations()) <= 3 * n_streams))
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


def test_sequences_in_streams_close_the_gaps_between_them():
    scheduler = new_scheduler(10_000, 5, 2048, is_unified=False)
    for id in range(5):
        scheduler.add(sequence(id, 50, max_tokens=3000))
    while len(scheduler.running) < 5 or not all(one.n_sampled for one in scheduler.running):
        run_step(scheduler)
    for id, keep in ((1, True), (2, False), (3, False)):
        scheduler.remove(next(one for one in scheduler.running if one.id == id), keep=keep)
    scheduler.cells.take_operations()
    n_before = len(scheduler.running[0].tokens)
    for _ in range(3):
        run_step(scheduler)
    # The idle prefix that was there stays, and is continued where it is now.
    assert scheduler.cells.take_operations() == [("swap", 4, 1)]
    assert sorted(scheduler.cache.active) == [0, 1]
    assert [len(one.tokens) - n_before for one in scheduler.running] == [3, 3]
    scheduler.add(with_prompt(5, *range(1000, 1050), 9))
    run_step(scheduler)
    assert scheduler.running[-1].n_cached == 50


def test_long_sequences_move_only_after_steps_that_cost_as_much():
    scheduler = new_scheduler(20_000, 3, 4000, is_unified=False)
    for id, n in enumerate((3000, 10, 2500)):
        scheduler.add(sequence(id, n, max_tokens=4000))
    while len(scheduler.running) < 3 or not all(one.n_sampled for one in scheduler.running):
        run_step(scheduler)
    scheduler.remove(scheduler.running[1])
    scheduler.cells.take_operations()
    n_steps = 0
    while not scheduler.cells.take_operations():
        run_step(scheduler)
        n_steps += 1
    assert n_steps == 3, "a thousand tokens for each step"


@pytest.mark.parametrize(
    ("is_unified", "n_forced", "n_computed"),
    [
        (False, [0, 0, 2], [1, 1, 1]),  # Another pass for 2 tokens would delay 3 sequences.
        (False, [1, 1, 2], [2, 2, 2]),  # All have one.
        (False, [0, 0, 4], [1, 1, 5]),
        (False, [3], [4]),
        (True, [0, 0, 2], [1, 1, 3]),
    ],
)
def test_forced_tokens_are_computed_where_they_delay_no_other_sequence(
    is_unified: bool, n_forced: list[int], n_computed: list[int]
):
    scheduler = new_scheduler(1000, 4, 64, is_unified=is_unified)
    for id in range(len(n_forced)):
        scheduler.add(sequence(id, 10))
    while any(one.is_prefilling for one in scheduler.running) or not scheduler.running:
        scheduler.compute(scheduler.schedule(), lambda chunk: [NEXT])
    for one, n in zip(scheduler.running, n_forced):
        one.tokens += [NEXT] * (n + 1 - one.n_missing)
    batch = scheduler.schedule()
    assert [chunk.n_tokens for chunk in sorted(batch.chunks, key=lambda chunk: chunk.sequence.id)] == n_computed


# Repeatable requests, if sequences have their own cells.


def with_sampling(id: int, prompt: list[int], **sampling: Any) -> Sequence:
    return Sequence(id, list(prompt), 1000, GenerationRequest((), sampling=SamplingParams(**sampling)))


LONG = list(range(100, 250))
SEEDED, GREEDY, RANDOM = {"seed": 1}, {"temperature": 0}, {"temperature": 1}
# By name: requests that follow one another, each with the number of its cached tokens. Each request samples two tokens
# and computes the first one. The first 128 tokens of LONG are computed in chunks of TILE_ROWS.
REPEATED: dict[str, list[tuple[list[int], dict[str, Any], int]]] = {
    "same prompt": [(LONG, SEEDED, 0), (LONG, SEEDED, 128), (LONG, GREEDY, 128), (LONG, RANDOM, 149)],
    "same prompt, without seed": [(LONG, RANDOM, 0), (LONG, SEEDED, 128)],
    "same prompt, whole chunks": [(LONG[:128], SEEDED, 0), (LONG[:128], SEEDED, 64)],
    # The output is computed again once.
    "next turns": [
        (LONG, SEEDED, 0),
        ([*LONG, NEXT, *LONG], SEEDED, 128),
        ([*LONG, NEXT, *LONG, NEXT, *LONG], SEEDED, 256),
        ([*LONG, NEXT, *LONG, NEXT, *LONG, NEXT, 9], RANDOM, 453),
    ],
    "prefix of a request without seed": [
        (LONG, RANDOM, 0),
        ([*LONG[:70], *range(200)], RANDOM, 70),
        ([*LONG[:70], *range(200)], SEEDED, 64),
    ],
}


@pytest.mark.parametrize("requests", REPEATED.values(), ids=REPEATED)
def test_repeatable_requests_reuse_whole_chunks(requests: list[tuple[list[int], dict[str, Any], int]]):
    sequences = [with_sampling(1, tokens, **sampling) for tokens, sampling, _ in requests]
    assert n_cached(new_scheduler(10_000, 4, 2048, is_unified=False), sequences) == [n for _, _, n in requests]


def test_choices_with_seeds_compute_whole_chunks_once():
    scheduler = new_scheduler(10_000, 4, 2048, is_unified=False)
    for id in (1, 2, 3):
        scheduler.add(with_sampling(id, LONG, seed=id))
    steps = [shape(run_step(scheduler)) for _ in range(3)]
    assert steps == [
        [(1, 128, False)],
        [(1, 22, True), (2, 22, True), (3, 22, True)],
        [(1, 1, True), (2, 1, True), (3, 1, True)],
    ]


@pytest.mark.parametrize("seed", range(20))
def test_random_repeatable_prompts_are_computed_as_without_a_cached_prefix(seed: int):
    """Whole chunks first, then smaller ones, whatever runs and ran before."""
    random_ = random.Random(seed)
    scheduler = new_scheduler(8000, 4, 2048, n_idle=random_.choice([1, 4]), is_unified=False)
    texts: list[list[int]] = [[]]
    for id in range(60):
        text = random_.choice(texts)[: random_.choice([64, 100, 1000])]
        prompt = [*text, *random_.choices(range(3), k=random_.choice([1, 2, 20, 64, 150]))]
        if len(prompt) < 800:
            scheduler.add(with_sampling(id, prompt, **random_.choice([SEEDED, GREEDY, RANDOM])))
        for _ in range(random_.randint(0, 12)):
            run_step(scheduler)
            for one in [one for one in scheduler.running if one.n_sampled]:
                n_tiled = one.n_prompt - one.n_prompt % TILE_ROWS
                n_rows = [n for _, _, n in scheduler.cells.slots[one.slot or 0]][: one.n_prompt]
                if one.is_repeatable:
                    assert [n >= TILE_ROWS for n in n_rows] == [i < n_tiled for i in range(one.n_prompt)]
                if one.n_sampled == one.id % 40 + 1:
                    texts.append(one.tokens[: one.n_computed])
                    scheduler.remove(one)
    assert len(texts) > 20


# Sets of adapters.


def with_adapters(id: int, prompt: list[int], adapter: int) -> Sequence:
    adapters = ((adapter, 1.0),) if adapter else ()
    return Sequence(id, prompt, 1000, GenerationRequest((), adapters=adapters))


@pytest.mark.parametrize("is_unified", [True, False])
def test_sets_of_adapters_take_turns_of_some_steps(is_unified: bool):
    scheduler = new_scheduler(8000, 4, 64, is_unified=is_unified)
    scheduler.add(*(with_adapters(id, [1000 * id], id // 2) for id in (1, 2, 3, 4)))
    steps = [[chunk.sequence.id for chunk in run_step(scheduler).chunks] for _ in range(48)]
    # A set that has just begun waits for those before it.
    assert steps == 2 * [*([[1]] * 8), *([[2, 3]] * 8), *([[4]] * 8)]


def test_a_chunk_of_a_prompt_takes_a_turn_of_its_set():
    """While a long prompt of one set is computed, the others go on for as long."""
    scheduler = new_scheduler(8000, 4, 2048)
    scheduler.add(with_adapters(1, [1], 1))
    run_step(scheduler)
    scheduler.add(with_adapters(2, list(range(500, 800)), 2))
    steps = [shape(run_step(scheduler)) for _ in range(30)]
    assert [i for i, step in enumerate(steps) if step[0][0] == 2][:3] == [7, 16, 25]
    assert steps[7] == [(2, 64, False)]


def test_no_set_starves_while_others_come_and_go():
    """Each new request has another set, and ends after a token."""
    scheduler = new_scheduler(8000, 3, 2048)
    scheduler.add(with_adapters(1, [1], 1))
    for id in range(2, 200):
        scheduler.add(with_adapters(id, [1000 * id], id))
        run_step(scheduler)
        for one in [one for one in scheduler.running if one.id > 1 and one.n_sampled]:
            scheduler.remove(one)
    assert next(one for one in scheduler.running if one.id == 1).n_sampled > 60


@pytest.mark.parametrize("can_truncate", [True, False])
def test_a_cached_prefix_belongs_to_its_set(can_truncate: bool):
    scheduler = new_scheduler(8000, 4, 2048, can_truncate=can_truncate)
    for id, adapter, n_cached in ((1, 0, 0), (2, 1, 0), (3, 1, 49), (4, 0, 49), (5, 2, 0)):
        scheduler.add(with_adapters(id, SYSTEM[:], adapter))
        run_step(scheduler)
        assert scheduler.running[0].n_cached == n_cached
        finish(scheduler)


def test_sequences_of_two_sets_do_not_wait_for_a_common_prefix():
    scheduler = new_scheduler(8000, 4, 2048)
    scheduler.add(*(with_adapters(id, SYSTEM[:], id % 2) for id in range(4)))
    run_step(scheduler)
    assert [one.id for one in scheduler.running] == [0, 1]


def test_nothing_is_drafted_while_several_sets_run():
    scheduler = new_scheduler(8000, 4, 2048, max_drafted=8)
    for id, n_drafted in ((1, 8), (2, 0)):
        scheduler.add(with_adapters(id, [1000 * id], id))
        batches = [run_step(scheduler) for _ in range(12)]
        assert [len(chunk.draft) for chunk in batches[-1].chunks] == [n_drafted]
