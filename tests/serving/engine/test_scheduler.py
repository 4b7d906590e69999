"""The scheduler on fake cells, stepped by hand: prompts beside running sequences, cached prefixes, sets of adapters."""

import itertools
import random
from collections.abc import Iterable
from typing import Any

import pytest

from localchat.serving.core.params import GenerationParams, SamplingParams
from localchat.serving.engine.batch import TILE_ROWS, Batch, CacheLimits
from localchat.serving.engine.layouts import new_kv_cache
from localchat.serving.engine.protocols import NoFreeCells
from localchat.serving.engine.scheduler import Scheduler
from localchat.serving.engine.sequence import MediaChunk, Sequence
from localchat.serving.engine.tuning import CPU, GPU, Tuning
from localchat.serving.engine.values import SequenceRequest
from tests.support.fakes import FakeCells

# The token that every step samples.
NEXT = 7
SYSTEM = list(range(50))


def with_prompt(id: int, prompt: Iterable[int], max_length: int = 9000, **fields: Any) -> Sequence:
    """A sequence whose request has these fields."""
    return Sequence(id, list(prompt), max_length, SequenceRequest((), **fields))


def sequence(id: int, n_prompt: int, max_length: int = 9000) -> Sequence:
    """A sequence whose prompt has no prefix in common with other ones."""
    return with_prompt(id, range(1000 * id, 1000 * id + n_prompt), max_length)


class SteppedScheduler(Scheduler):
    """A scheduler on fake cells, which check its operations and record them."""

    def __init__(self, limits: CacheLimits):
        self.cells = FakeCells(limits)
        self.cache = new_kv_cache(self.cells, self.cells.clock)
        super().__init__(limits, self.cache)

    def step(self) -> Batch:
        """Computes a batch as the engine does. Each sequence samples NEXT."""
        for _ in range(100):
            batch = self.schedule()
            try:
                self.cache.decode(batch)
            except NoFreeCells:
                assert self.preempt_newest() is None
            else:
                self.update(batch, [[NEXT] for _ in batch.outputs()])
                self.cells.check(self.cache)
                return batch
        raise AssertionError("no step has enough cells")

    def finish(self) -> None:
        for one in list(self.running):
            self.remove(one)


def new_scheduler(n_cells: int, n_parallel: int, n_batch: int, **limits: Any) -> SteppedScheduler:
    n_slots = n_parallel + limits.pop("n_idle", 4)
    return SteppedScheduler(CacheLimits(n_cells, n_parallel, n_slots, n_batch, **limits))


def shape(batch: Batch) -> list[tuple[int, int, bool]]:
    """For each chunk: the id of its sequence, the number of tokens, and whether a token is sampled."""
    return [(chunk.sequence.id, chunk.n_tokens, chunk.wants_output) for chunk in batch.chunks]


# Prompts beside running sequences.


def test_half_of_the_prompt_tokens_go_to_the_shortest_prompts_and_the_rest_to_the_oldest():
    """So a short prompt waits for about twice its own time at most, and short ones do not stop a long one."""
    scheduler = new_scheduler(100_000, 16, 2048)
    scheduler.add(*(sequence(id, n_prompt) for id, n_prompt in ((1, 900), (2, 2000), (3, 10), (4, 300))))
    half = CPU.n_prompt_alone // 2
    assert shape(scheduler.step()) == [(1, half, False), (3, 10, True), (4, half - 10, False)]
    n_shared = CPU.n_prompt_beside // 2
    assert shape(scheduler.step()) == [(1, n_shared, False), (3, 1, True), (4, n_shared, False)]


# Seconds of a row: of a small model, one of 0.5B parameters, one of 7B, and on a GPU.
SPEEDS = {"small": (CPU, 0.0002), "0.5B": (CPU, 0.0023), "7B": (CPU, 0.03), "GPU": (GPU, 0.00008)}


@pytest.mark.parametrize(("tuning", "row_s"), SPEEDS.values(), ids=SPEEDS)
@pytest.mark.parametrize("is_unified", [True, False], ids=["one buffer", "streams"])
@pytest.mark.parametrize("n_prompt", [1500, 215, 100, 60])
def test_prompts_delay_running_streams_by_a_bounded_time(tuning: Tuning, row_s: float, is_unified: bool, n_prompt: int):
    """Of 0.5 s, or of the smallest step of a prompt where that takes longer. A short prompt that comes after them has
    its first token after two steps of prompts."""
    scheduler = new_scheduler(400_000, 32, 2048, is_unified=is_unified, tuning=tuning)
    scheduler.cells.row_s = row_s
    streams = [sequence(id, 5) for id in range(1, 9)]
    scheduler.add(*streams)
    scheduler.step()
    scheduler.step()
    late = sequence(30, 20)
    scheduler.add(*(sequence(id, n_prompt) for id in range(10, 26)))
    waits, ended_at, n_before_late = [], scheduler.cells.now, 0
    while scheduler.running[-1].is_prefilling or len(scheduler.running) < 25:
        if len(waits) == 3 and late not in (*scheduler.waiting, *scheduler.running):
            scheduler.add(late)
        batch = scheduler.step()
        ids = {chunk.sequence.id for chunk in batch.outputs()} & {one.id for one in streams}
        assert len(ids) in (0, 8)
        n_before_late += late.slot is not None and not late.n_sampled and any(c.n_tokens > 1 for c in batch.chunks)
        if ids:
            waits.append(scheduler.cells.now - ended_at)
            ended_at = scheduler.cells.now
    n_least = 16 + 17 if is_unified else 2 * TILE_ROWS - 1
    assert max(waits) <= max(0.5, n_least * row_s) + 25 * row_s
    assert n_before_late <= 2
    if not is_unified and row_s == 0.0002:
        assert max(waits) > 0.4 or n_prompt * 16 * row_s < 0.5, "passes follow one another within the time"


@pytest.mark.parametrize("is_unified", [True, False], ids=["one buffer", "streams"])
def test_machine_that_becomes_slower_is_noticed_within_a_step(is_unified: bool):
    scheduler = new_scheduler(400_000, 4, 2048, is_unified=is_unified)
    stream, prompt = sequence(1, 5), sequence(2, 8000)
    scheduler.add(stream, prompt)
    waits, ended_at = [], 0.0
    for i in range(40):
        scheduler.cells.row_s = 0.0005 if i < 10 else 0.01
        n_sampled = stream.n_sampled
        scheduler.step()
        if stream.n_sampled > n_sampled:
            waits.append(scheduler.cells.now - ended_at)
            ended_at = scheduler.cells.now
    assert max(waits[-4:]) < 0.7 < 256 * 0.01


LAST_PASSES = [(63, [63]), (64, [64]), (65, [65]), (127, [127]), (128, [128]), (256, [256]), (257, [192, 65])]
LAST_PASSES += [(319, [192, 127]), (320, [256, 64]), (321, [256, 65]), (383, [256, 127]), (384, [256, 128])]


@pytest.mark.parametrize(("n_prompt", "passes"), LAST_PASSES)
def test_last_pass_of_a_prompt_takes_its_remainder_along(n_prompt: int, passes: list[int]):
    scheduler = new_scheduler(10_000, 4, 2048, is_unified=False)
    scheduler.add(sequence(1, n_prompt))
    assert [scheduler.step().n_tokens for _ in passes] == passes


@pytest.mark.parametrize(("n_prompt", "n_each"), [(10, 16), (63, 4), (64, 4), (85, 3), (100, 2), (128, 2), (130, 1)])
def test_prompts_of_one_length_share_a_pass(n_prompt: int, n_each: int):
    scheduler = new_scheduler(100_000, 16, 2048, is_unified=False)
    scheduler.add(*(sequence(id, n_prompt) for id in range(16)))
    assert len(scheduler.step().chunks) == n_each


def test_prompts_of_several_lengths_share_a_pass_only_if_they_are_short():
    scheduler = new_scheduler(100_000, 16, 2048, is_unified=False)
    scheduler.add(*(sequence(id, n) for id, n in enumerate((70, 9, 71, 30, 70, 60))))
    assert sorted(shape(scheduler.step()) for _ in range(3)) == [
        [(0, 70, True), (4, 70, True)],
        [(1, 9, True), (3, 30, True), (5, 60, True)],
        [(2, 71, True)],
    ]


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
def test_forced_tokens_are_computed_where_they_delay_none(is_unified: bool, n_forced: list[int], n_computed: list[int]):
    scheduler = new_scheduler(1000, 4, 256, is_unified=is_unified)
    sequences = [sequence(id, 10) for id in range(len(n_forced))]
    scheduler.add(*sequences)
    while not all(one.n_sampled for one in sequences):
        scheduler.step()
    for one, n in zip(sequences, n_forced):
        one.tokens += [NEXT] * (n + 1 - one.n_missing)
    found = {chunk.sequence: chunk.n_tokens for chunk in scheduler.schedule().chunks}
    assert [found[one] for one in sequences] == n_computed


# Cached prefixes.

LONG = list(range(100, 250))
TWICE = [*LONG, NEXT, *LONG]
THRICE = [*TWICE, NEXT, *LONG]
FORKED = [*LONG[:70], *range(200)]
SEEDED, GREEDY = {"sampling": SamplingParams(seed=1)}, {"sampling": SamplingParams(temperature=0)}
UNCACHED = {"params": GenerationParams(cache_prompt=False)}
STREAMS = {"is_unified": False}
ONE, TWO = ({"adapters": ((adapter, 1.0),)} for adapter in (1, 2))
OF_SETS: list[tuple[Any, ...]] = [(SYSTEM, 0), (SYSTEM, 0, ONE), (SYSTEM, 49, ONE), (SYSTEM, 49), (SYSTEM, 0, TWO)]
# By name: the limits, and requests that follow one another, each with its prompt, the number of its cached tokens, and
# other fields. Each request computes its prompt, samples two tokens and computes the first one.
CACHED: dict[str, tuple[dict[str, Any], list[tuple[Any, ...]]]] = {
    "same prompt": ({}, [(SYSTEM, 0), (SYSTEM, 49)]),
    "next turn": ({}, [(SYSTEM, 0), ([*SYSTEM, NEXT, 9], 51), ([*SYSTEM, NEXT, 9, NEXT, 8], 53)]),
    "a longer prefix stays beside a shorter prompt": ({}, [(SYSTEM, 0), (SYSTEM[:40], 39), (SYSTEM, 49)]),
    "a prefix that is as fast to compute": (STREAMS, [([1, 2, 3, 9], 0), ([1, 2, 3, 8], 0)]),
    "the shortest prefix that is copied": (STREAMS, [([1, 2, 3, 4, 9], 0), ([1, 2, 3, 4, 8], 4)]),
    "another beginning": ({}, [(SYSTEM, 0), ([9, *SYSTEM], 0)]),
    "the least recent prompt is dropped": (
        {"n_parallel": 1, "n_idle": 2},
        [([1, 1, 1], 0), ([2, 2], 0), ([1, 1, 1], 2), ([3, 3], 0), ([4, 4], 0), ([1, 1, 1], 2), ([2, 2], 0)],
    ),
    # Only the prompt without its last token is kept, and the end of the output.
    "no truncation": (
        {"can_truncate": False},
        [(SYSTEM, 0), ([*SYSTEM, NEXT], 49), (SYSTEM, 49), ([*SYSTEM[:40], 1], 0), ([*SYSTEM, NEXT, 9], 51)],
    ),
    "no truncation, and few slots": (
        {"can_truncate": False, "n_parallel": 1, "n_idle": 3},
        [(SYSTEM, 0), ([9, *SYSTEM], 0), (SYSTEM, 49), ([8, *SYSTEM], 0), ([9, *SYSTEM], 0)],
    ),
    "no truncation, and the same prompt computed again": (
        {"can_truncate": False, "n_parallel": 1, "n_idle": 5},
        [(SYSTEM, 0), ([9, *SYSTEM], 0), *[(SYSTEM, 0, UNCACHED)] * 3, ([9, *SYSTEM], 50)],
    ),
    # If sequences have their own cells, requests with a seed reuse whole tiles, and compute a tile or more.
    "repeated": (STREAMS, [(LONG, 0, SEEDED), (LONG, 64, SEEDED), (LONG, 149, GREEDY), (LONG, 149)]),
    "repeated with a seed": (STREAMS, [(LONG, 0), (LONG, 64, SEEDED)]),
    "repeated, whole tiles": (STREAMS, [(LONG[:128], 0, SEEDED), (LONG[:128], 64, SEEDED)]),
    "repeated, less than two tiles": (STREAMS, [(LONG[:127], 0, SEEDED), (LONG[:127], 0, SEEDED)]),
    "seeds in one buffer": ({}, [(LONG, 0, SEEDED), (LONG, 149, SEEDED)]),
    # The output is computed again once.
    "turns": (STREAMS, [(LONG, 0, SEEDED), (TWICE, 128, SEEDED), (THRICE, 256, SEEDED), ([*THRICE, NEXT, 9], 453)]),
    "greedy turns": (STREAMS, [(LONG, 0, GREEDY), (TWICE, 151, GREEDY), (THRICE, 302, GREEDY)]),
    "no cache": (STREAMS, [(LONG, 0), (LONG, 0, UNCACHED), (LONG, 149)]),
    "no cache, one buffer": ({}, [(LONG, 0), (LONG, 0, UNCACHED), (LONG, 149)]),
    # A prefix belongs to its set of adapters.
    "adapters": ({}, OF_SETS),
    "adapters, no truncation": ({"can_truncate": False}, OF_SETS),
    "prefix without a seed": (STREAMS, [(LONG, 0), (FORKED, 70), (FORKED, 64, SEEDED)]),
    "a longer prompt after one with a seed": (
        STREAMS,
        [(LONG, 0), (LONG, 64, SEEDED), ([*LONG, *LONG], 150), (TWICE, 128, SEEDED)],
    ),
    "a short end without a seed": (STREAMS, [(LONG, 0), (LONG[:100], 99), ([*LONG[:99], *THRICE], 64, SEEDED)]),
}


@pytest.mark.parametrize(("limits", "requests"), CACHED.values(), ids=CACHED)
def test_prefixes_of_ended_requests_are_cached(limits: dict[str, Any], requests: list[tuple[Any, ...]]):
    scheduler = new_scheduler(10_000, n_batch=2048, **{"n_parallel": 4, **limits})
    found = []
    for prompt, _, *fields in requests:
        one = with_prompt(1, prompt, **dict(*fields))
        scheduler.add(one)
        while one.n_sampled < 2:
            scheduler.step()
        found.append(one.n_cached)
        scheduler.finish()
    assert found == [n_cached for _, n_cached, *_ in requests]


def test_requests_that_arrive_together_compute_their_common_prefix_once():
    scheduler = new_scheduler(1000, 8, 20)
    sequences = [with_prompt(id, [*SYSTEM, 100 + id, 200 + id]) for id in range(1, 6)]
    scheduler.add(*sequences)
    n_computed = 0
    while not all(one.n_sampled for one in sequences):
        n_computed += scheduler.step().n_tokens
    assert n_computed - sum(one.n_sampled - 1 for one in sequences) == 50 + 5 * 2


OTHERS = [*SYSTEM, *[9] * 50]  # A prompt of five steps.


@pytest.mark.parametrize(
    ("n_steps", "prompt", "id", "waits"),
    [
        (1, [*SYSTEM, 8], 2, True),
        (0, [*SYSTEM[:17], 8], 2, True),
        (0, [*SYSTEM[:16], 8], 2, False),  # Templates begin all prompts in the same way.
        (3, [*SYSTEM, 8], 2, False),  # The prefix is computed, and the prompt of the other one goes on.
        (5, [*OTHERS, *[NEXT] * 9], 2, False),  # The other one generates what the prompt goes on with.
        (1, [9, *SYSTEM], 2, False),
        (1, [*SYSTEM, 8], 0, False),  # It was preempted, and is older. Otherwise both could wait for each other.
    ],
)
def test_sequence_waits_for_a_prefix_only_while_an_older_one_computes_it(n_steps, prompt, id, waits):
    scheduler = new_scheduler(1000, 4, 20)
    other, one = with_prompt(1, OTHERS), with_prompt(id, prompt)
    scheduler.add(other)
    for _ in range(n_steps):
        scheduler.step()
    assert other.n_computed == 20 * n_steps
    scheduler.add(one)
    scheduler.schedule()
    assert (one in scheduler.waiting) == waits


def test_sequence_does_not_wait_for_a_prefix_that_is_cached():
    scheduler = new_scheduler(1000, 4, 20)
    first = with_prompt(1, [*SYSTEM, 8])
    scheduler.add(first)
    while not first.n_sampled:
        scheduler.step()
    scheduler.remove(first)
    computing = with_prompt(2, OTHERS, params=GenerationParams(cache_prompt=False))
    scheduler.add(computing)
    scheduler.step()
    one = with_prompt(3, [*SYSTEM, 9])
    scheduler.add(one)
    scheduler.schedule()
    assert (one.n_cached, computing.n_computed) == (50, 20)


def test_only_sequences_of_a_prefix_wait_for_it_and_compute_it_if_it_is_cancelled():
    scheduler = new_scheduler(1000, 8, 20)
    first, second, other = with_prompt(1, SYSTEM), with_prompt(2, SYSTEM), sequence(3, 2)
    scheduler.add(first, second, other)
    scheduler.step()
    assert scheduler.running == [first, other]
    n_computed = first.n_computed
    scheduler.remove(first)
    scheduler.step()
    assert (second.n_cached, second.n_computed > n_computed > 0) == (n_computed, True)


def test_cells_of_an_idle_prefix_count_once_it_is_in_use():
    """Else more sequences would start than fit, and be preempted."""
    scheduler = new_scheduler(100, 4, 200)
    first = sequence(1, 60, 80)
    scheduler.add(first)
    scheduler.step()
    scheduler.remove(first)
    second = with_prompt(2, [*range(1000, 1060), 7], 80)
    scheduler.add(second, sequence(3, 40, 60))
    scheduler.schedule()
    assert (scheduler.running, second.n_cached) == ([second], 60)


@pytest.mark.parametrize(("n_prompt", "n_running"), [(49, 2), (50, 1)])
def test_sequence_starts_only_if_all_have_a_cell_for_their_next_token(n_prompt: int, n_running: int):
    scheduler = new_scheduler(100, 4, 200)
    scheduler.add(sequence(1, 49), sequence(2, n_prompt))
    scheduler.schedule()
    assert len(scheduler.running) == n_running


def test_nothing_starts_after_a_preemption_until_a_sequence_has_ended():
    scheduler = new_scheduler(100, 4, 200)
    scheduler.cells._n_real_cells = 85  # Fewer than by the count of the scheduler, as those that llama.cpp pads.
    first, second, third = sequence(1, 40), sequence(2, 40), sequence(3, 2)
    scheduler.add(first, second)
    for _ in range(8):
        scheduler.step()
    assert scheduler.waiting == [second]
    scheduler.add(third)
    for _ in range(2):  # It would fit by the count, and be preempted again.
        scheduler.schedule()
        assert (scheduler.running, scheduler.waiting) == ([first], [second, third])
        scheduler.step()
    scheduler.remove(first)
    scheduler.step()
    assert (scheduler.running, scheduler.waiting) == ([second, third], [])


def test_new_sequence_in_streams_takes_the_slot_beside_an_active_one():
    scheduler = running_in_streams(50, 50, 50, 50, 50)
    for one in scheduler.running[:4]:
        scheduler.remove(one, keep=False)
    new = sequence(9, 50)
    scheduler.add(new)
    scheduler.schedule()
    assert new.slot in (3, 5)


@pytest.mark.parametrize("is_unified", [True, False])
def test_prompt_of_a_set_delays_the_streams_of_others_by_a_bounded_time(is_unified: bool):
    scheduler = new_scheduler(20_000, 4, 2048, is_unified=is_unified)
    scheduler.cells.row_s = 0.01
    scheduler.add(with_adapters(1, [1], 1), with_adapters(2, list(range(300, 1500)), 2))
    steps = [scheduler.step() for _ in range(60)]
    assert max(step.n_tokens for step in steps[8:]) < 2 * TILE_ROWS


@pytest.mark.parametrize("is_unified", [True, False])
@pytest.mark.parametrize(
    ("n_streams", "has_prompt", "n_drafted"), [(1, False, 8), (4, False, 2), (5, False, 0), (1, True, 0)]
)
def test_few_sequences_draft_and_none_beside_prompts(
    is_unified: bool, n_streams: int, has_prompt: bool, n_drafted: int
):
    scheduler = new_scheduler(20_000, 8, 2048, max_drafted=8, is_unified=is_unified)
    scheduler.cells.step_s, scheduler.cells.row_s = 0.1, 0.0001
    scheduler.add(*(with_prompt(id, [id, *[NEXT] * 20]) for id in range(n_streams)))
    for _ in range(20):
        scheduler.step()
    if has_prompt:
        scheduler.add(sequence(20, 4000))
    chunks = [chunk for _ in range(10) for chunk in scheduler.step().outputs()]
    assert {len(chunk.draft) for chunk in chunks} == {n_drafted}


@pytest.mark.parametrize("n_left", [1, 2, 3])
def test_draft_ends_before_the_limit_of_its_sequence(n_left: int):
    scheduler = new_scheduler(2000, 4, 2048, max_drafted=8)
    scheduler.cells.step_s, scheduler.cells.row_s = 0.1, 0.0001
    one = with_prompt(1, [NEXT] * 20, 40 + n_left)
    scheduler.add(one)
    while len(one.tokens) < 40:
        scheduler.step()
    assert [len(chunk.draft) for chunk in scheduler.schedule().chunks] == [n_left - 1]


@pytest.mark.parametrize("is_unified", [True, False])
def test_equal_prefixes_are_kept_once(is_unified: bool):
    scheduler = new_scheduler(1000, 4, 200, is_unified=is_unified)
    scheduler.add(*(with_prompt(id, SYSTEM) for id in (1, 2, 3)))
    for _ in range(8):
        scheduler.step()
    assert [one.n_sampled > 0 for one in scheduler.running] == [True] * 3
    n_longest = max(one.n_computed for one in scheduler.running)
    scheduler.finish()
    assert scheduler.cache.n_cells() == (0, n_longest)


def test_short_prompt_takes_one_step_where_slots_cannot_be_truncated():
    scheduler = new_scheduler(1000, 4, 200, can_truncate=False)
    scheduler.add(sequence(1, 32))
    assert shape(scheduler.step()) == [(1, 32, True)]


@pytest.mark.parametrize("is_unified", [True, False])
def test_images_alternate_with_the_tokens_of_streams_where_they_take_long(is_unified: bool):
    scheduler = new_scheduler(50_000, 4, 2048, is_unified=is_unified)
    scheduler.cells.row_s = 0.02
    stream = sequence(1, 20)
    scheduler.add(stream)
    scheduler.step()
    scheduler.add(with_images(2, [5, *[-3] * 700]))
    steps = [shape(scheduler.step()) for _ in range(22)]
    n_images = sum(step == [(2, 70, False)] for step in steps)
    assert (n_images, stream.n_sampled) == (10, 13 if is_unified else 12)
    assert not any(step == following == [(2, 70, False)] for step, following in zip(steps, steps[1:]))


def test_equal_prompts_wait_for_the_first_one_where_slots_cannot_be_truncated():
    scheduler = new_scheduler(1000, 4, 30, n_idle=8, can_truncate=False)
    scheduler.add(*(with_prompt(id, SYSTEM) for id in (1, 2, 3)))
    n_computed = 0
    for _ in range(5):
        n_computed += sum(chunk.n_tokens for chunk in scheduler.step().chunks if chunk.sequence.n_sampled < 2)
    assert n_computed == 49 + 3
    assert [(one.n_cached, one.n_sampled > 0) for one in scheduler.running] == [(0, True), (49, True), (49, True)]


@pytest.mark.parametrize("is_unified", [True, False], ids=["one buffer", "streams"])
@pytest.mark.parametrize("n_streams", [1, 8, 32])
@pytest.mark.parametrize("n_cells_each", [120, 240], ids=["few cells", "many cells"])
def test_prompts_that_were_seen_are_never_slower_than_new_ones(n_cells_each: int, n_streams: int, is_unified: bool):
    """With few cells or slots, no more is computed. If the cells hold all prefixes, only the last tokens are."""
    scheduler = new_scheduler(n_streams * n_cells_each, n_streams, 512, n_idle=4, is_unified=is_unified)
    costs = []
    for _ in range(3):
        scheduler.add(*(sequence(id + 1, 100, 110) for id in range(n_streams)))
        n_tokens = n_steps = 0
        while scheduler.running or scheduler.waiting:
            n_tokens += scheduler.step().n_tokens
            n_steps += 1
            for running in [running for running in scheduler.running if len(running.tokens) >= running.max_length]:
                scheduler.remove(running)
        costs.append((n_tokens, n_steps))
        assert len(scheduler.cells.take_operations()) <= 3 * n_streams
    assert max(costs[1:]) <= costs[0]
    if n_cells_each > 200:
        assert costs[1][0] == costs[2][0] == 10 * n_streams


def test_cells_in_streams_are_copied_from_the_shortest_slot_and_continued_in_place():
    scheduler = new_scheduler(1000, 4, 200, is_unified=False)
    for id, n_more in ((1, 60), (2, 10)):
        scheduler.add(with_prompt(id, [*SYSTEM, *[100 * id] * n_more], 200))
        while not scheduler.running or not scheduler.running[0].n_sampled:
            scheduler.step()
        scheduler.finish()
    # More tokens would be lost than are copied.
    assert scheduler.cells.take_operations() == [("state", 0), ("set_state", 1), ("truncate", 1, 50)]
    copied = [("state", 1), ("set_state", 2), ("truncate", 2, 50)]
    for id, more, operations in ((3, [7, 8], [("truncate", 1, 50)]), (4, [9], copied)):
        scheduler.add(with_prompt(id, [*SYSTEM, *more], 100))
        scheduler.step()
        assert scheduler.cells.take_operations() == operations


def running_in_streams(*n_prompts: int) -> SteppedScheduler:
    """Sequences with prompts of these lengths, in slots of their own, of which each has sampled a token."""
    scheduler = new_scheduler(20_000, len(n_prompts), 4000, is_unified=False)
    sequences = [sequence(id, n_prompt) for id, n_prompt in enumerate(n_prompts)]
    scheduler.add(*sequences)
    while not all(one.n_sampled for one in sequences):
        scheduler.step()
    scheduler.cells.take_operations()
    return scheduler


def test_sequences_in_streams_close_the_gaps_between_them():
    scheduler = running_in_streams(50, 50, 50, 50, 50)
    for one, keep in zip(scheduler.running[1:4], (True, False, False)):
        scheduler.remove(one, keep=keep)
    n_before = len(scheduler.running[0].tokens)
    for _ in range(3):
        scheduler.step()
    # The idle prefix that was there stays, and is continued where it is now.
    copies = [one for one in scheduler.cells.take_operations() if one[0] != "clear"]
    assert copies == [("state", 4), ("state", 1), ("set_state", 1), ("set_state", 4)]
    assert sorted(scheduler.cache.active) == [0, 1]
    assert [len(one.tokens) - n_before for one in scheduler.running] == [3, 3]
    scheduler.add(with_prompt(5, [*range(1000, 1050), 9]))
    scheduler.step()
    assert scheduler.running[-1].n_cached == 50


def test_long_sequences_move_only_after_steps_that_cost_as_much():
    scheduler = running_in_streams(3000, 10, 2500)
    scheduler.remove(scheduler.running[1])
    n_steps = 0
    while not scheduler.cells.take_operations():
        scheduler.step()
        n_steps += 1
    assert n_steps == 3, "a thousand tokens for each step"


def test_choices_with_seeds_compute_whole_tiles_once():
    scheduler = new_scheduler(10_000, 4, 2048, is_unified=False)
    scheduler.add(*(with_prompt(id, LONG, **SEEDED) for id in (1, 2, 3)))
    assert [shape(scheduler.step()) for _ in range(3)] == [
        [(1, 150, True)],
        [(2, 86, True), (3, 86, True)],
        [(1, 1, True), (2, 1, True), (3, 1, True)],
    ]


@pytest.mark.parametrize("operation", ["state", "set_state"])
def test_prefix_that_cannot_be_copied_is_computed(operation: str):
    scheduler = new_scheduler(10_000, 4, 2048, is_unified=False)
    first = with_prompt(1, [*SYSTEM, *LONG])
    scheduler.add(first)
    scheduler.step()
    scheduler.cells.failing = {operation}
    second, third = with_prompt(2, [*SYSTEM, 8]), with_prompt(3, [*SYSTEM, 9])
    scheduler.add(second)
    while not second.n_sampled:
        scheduler.step()
    assert second.n_cached == 0
    scheduler.cells.failing = set()
    scheduler.add(third)
    while not third.n_sampled:
        scheduler.step()
    assert third.n_cached == 50
    assert scheduler.running == [first, second, third]


@pytest.mark.parametrize("is_unified", [True, False])
def test_prefix_that_cannot_be_truncated_is_computed(is_unified: bool):
    scheduler = new_scheduler(10_000, 1, 2048, n_idle=1, is_unified=is_unified)
    scheduler.cells.failing = {"truncate"}
    prompts = ([*SYSTEM, 1, 2], sequence(9, 5).tokens, [*SYSTEM, 8])
    sequences = [with_prompt(id, prompt) for id, prompt in enumerate(prompts)]
    for one in sequences:
        scheduler.add(one)
        while not one.n_sampled:
            scheduler.step()
        scheduler.finish()
    assert [one.n_cached for one in sequences] == [0, 0, 0]
    assert any(name == "truncate" for name, *_ in scheduler.cells.take_operations())


@pytest.mark.parametrize("operation", ["state", "set_state"])
def test_sequence_that_cannot_be_moved_stays_where_it_is(operation: str):
    scheduler = running_in_streams(50, 50, 50, 50, 50)
    for one, keep in zip(scheduler.running[1:4], (True, False, False)):
        scheduler.remove(one, keep=keep)
    scheduler.cells.failing = {operation}
    for _ in range(5):
        scheduler.step()
    assert sorted(scheduler.cache.active) == [0, 4]
    scheduler.cells.failing = set()
    for _ in range(5):
        scheduler.step()
    assert sorted(scheduler.cache.active) == [0, 1]
    assert [one.n_sampled for one in scheduler.running] == [11, 11]


def test_long_prompt_and_images_go_on_beside_ever_new_short_prompts():
    scheduler = new_scheduler(50_000, 8, 2048, is_unified=False)
    long, seeing = sequence(1, 3000), with_images(2, [5, *[-2] * 600])
    scheduler.add(long, seeing)
    n_steps = 0
    while not (long.n_sampled and seeing.n_sampled):
        scheduler.add(sequence(n_steps + 10, 100))
        scheduler.step()
        for one in [one for one in scheduler.running if one.n_sampled and one not in (long, seeing)]:
            scheduler.remove(one)
        n_steps += 1
        assert n_steps < 4 * (3000 // 192 + 1)


def test_prompt_with_a_seed_does_not_wait_for_cells_that_it_cannot_reuse():
    scheduler = new_scheduler(50_000, 8, 2048, is_unified=False)
    first = with_prompt(1, LONG[:50])
    scheduler.add(first)
    scheduler.step()
    scheduler.remove(first)
    prompt = [*LONG, *range(2000, 3000)]
    second, third = with_prompt(2, prompt), with_prompt(3, prompt, **SEEDED)
    scheduler.add(second, third)
    scheduler.step()
    assert (second.n_cached, scheduler.running) == (50, [second, third])


# Images by their cells: the number of cells and of positions, and whether they are causal.
IMAGES = {-1: (40, 40, True), -2: (100, 100, True), -3: (70, 70, False), -4: (36, 6, True)}


def with_images(id: int, tokens: list[int], **fields: Any) -> Sequence:
    """A sequence whose prompt are these tokens, without images that are cut."""
    prompt: list[int] = []
    chunks: list[MediaChunk] = []
    for token, run in itertools.groupby(tokens):
        n_cells, n_positions, is_causal = IMAGES.get(token, (1, 1, True))
        n_whole = len(list(run)) // n_cells
        prompt += [token] * n_whole * n_cells
        if token < 0:
            chunks += [MediaChunk(n_cells, n_positions, is_causal, placeholder=token, rows=b"encoded")] * n_whole
    return Sequence(id, [*prompt, 1], 1000, SequenceRequest((), **fields), chunks=chunks)


def test_sequence_that_loses_its_image_after_a_preemption_starts_again():
    scheduler = new_scheduler(400, 4, 200)
    first, second = with_images(1, [5, *[-1] * 40]), sequence(2, 40)
    scheduler.add(first, second)
    for _ in range(4):
        scheduler.step()
    assert scheduler.preempt_newest() is None
    first.n_computed = 0  # As if a rejected draft could not be truncated.
    scheduler.cells.clear(first.slot or 0)
    (span,) = first.spans
    span.chunk.rows = None
    scheduler.schedule()
    span.chunk.rows = b"encoded"
    for _ in range(4):
        scheduler.step()
    assert (scheduler.running, scheduler.waiting) == ([first, second], [])


def test_image_of_one_long_step_does_not_follow_a_step_of_a_prompt(monkeypatch: pytest.MonkeyPatch):
    """Its 400 rows take 1.2 s, longer than a stream may wait. So the stream waits for nothing else in addition."""
    monkeypatch.setitem(IMAGES, -5, (400, 400, False))
    scheduler = new_scheduler(50_000, 4, 512, is_unified=False)
    scheduler.cells.row_s = 0.003
    stream, prompt, seeing = sequence(1, 300), sequence(2, 3 * TILE_ROWS), with_images(3, [-5] * 1600)
    scheduler.add(stream)
    for _ in range(3):
        scheduler.step()
    scheduler.add(prompt, seeing)
    waits, ended_at = [], scheduler.cells.now
    while not seeing.n_sampled:
        n_sampled = stream.n_sampled
        scheduler.step()
        if stream.n_sampled > n_sampled:
            waits.append(scheduler.cells.now - ended_at)
            ended_at = scheduler.cells.now
        assert len(waits) < 50
    assert prompt.n_sampled
    assert 1.2 < max(waits) < 1.25


@pytest.mark.parametrize("n_prompt", [5, 800], ids=["a stream", "a long prompt"])
def test_text_and_images_alternate_in_one_buffer(n_prompt: int):
    scheduler = new_scheduler(50_000, 4, 128)
    text, seeing = sequence(1, n_prompt), with_images(2, [-2] * 500)
    scheduler.add(text)
    scheduler.step()
    scheduler.add(seeing)
    steps = [{chunk.sequence for chunk in scheduler.step().chunks} for _ in range(8)]
    assert steps == [{seeing}, {text}] * 4


def parts_of(sequence: Sequence) -> Iterable[tuple[int, int]]:
    """The start and the end of each text and image of a prompt."""
    edges = sorted({0, sequence.n_prompt, *(edge for span in sequence.spans for edge in (span.start, span.end))})
    return zip(edges, edges[1:])


@pytest.mark.parametrize("images", [[], list(IMAGES)], ids=["text", "images"])
@pytest.mark.parametrize("seed", range(10))
def test_prompts_with_a_seed_are_computed_as_without_a_cached_prefix(seed: int, images: list[int]):
    """Each text and image in passes of a tile or more, unless it is shorter, whatever runs and ran before."""
    random_ = random.Random(seed)
    scheduler = new_scheduler(8000, 4, 2048, n_idle=random_.choice([1, 4]), is_unified=False)
    scheduler.cells.row_s = random_.choice([0.0001, 0.01])
    texts: list[list[int]] = [[]]
    n_reused = 0
    for id in range(80):
        tokens = random_.choice(texts)[: random_.choice([64, 100, 150, 1000])]
        tokens = [*tokens, *random_.choices(range(3), k=random_.choice([0, 1, 2, 20, 64, 150]))]
        for image in random_.choices(images, k=random_.choice([0, 1, 2])) if images else ():
            tokens += [*[image] * IMAGES[image][0], *random_.choices(range(2), k=random_.choice([1, 40, 70]))]
        if len(tokens) < 800:
            scheduler.add(with_images(id, tokens, **random_.choice([SEEDED, SEEDED, {}])))
        for _ in range(random_.randint(0, 12)):
            scheduler.step()
            for one in [one for one in scheduler.running if one.n_sampled]:
                if one.request.sampling.seed is not None and one.n_sampled == 1:
                    n_rows = [cell.n_rows for cell in scheduler.cells.slots[one.slot or 0]]
                    n_reused += one.n_cached or 0
                    for start, end in parts_of(one):
                        assert {n >= TILE_ROWS for n in n_rows[start:end]} == {end - start >= TILE_ROWS}
                if one.n_sampled == one.id % 40 + 1:
                    texts.append(one.tokens[: one.n_computed])
                    scheduler.remove(one)
    assert len(texts) > 15
    assert n_reused > 0


# Sets of adapters.


def with_adapters(id: int, prompt: list[int], adapter: int) -> Sequence:
    return with_prompt(id, prompt, 1000, adapters=((adapter, 1.0),) if adapter else ())


@pytest.mark.parametrize("is_unified", [True, False])
def test_sets_of_adapters_take_turns_of_some_steps(is_unified: bool):
    scheduler = new_scheduler(8000, 4, 256, is_unified=is_unified)
    scheduler.add(*(with_adapters(id, [1000 * id], id // 2) for id in (1, 2, 3, 4)))
    steps = [[chunk.sequence.id for chunk in scheduler.step().chunks] for _ in range(48)]
    # A set that has just begun waits for those before it.
    assert steps == 2 * [*([[1]] * 8), *([[2, 3]] * 8), *([[4]] * 8)]


def test_a_chunk_of_a_prompt_takes_a_turn_of_its_set():
    """While a long prompt of one set is computed, the others go on for as long."""
    scheduler = new_scheduler(8000, 4, 2048)
    scheduler.add(with_adapters(1, [1], 1))
    scheduler.step()
    scheduler.add(with_adapters(2, list(range(500, 800)), 2))
    steps = [shape(scheduler.step()) for _ in range(30)]
    assert [i for i, step in enumerate(steps) if step[0][0] == 2][:3] == [7, 16, 25]
    assert steps[7] == [(2, 64, False)]


@pytest.mark.parametrize("row_s", [0.001, 0.01])
def test_long_prompt_of_a_set_does_not_stop_its_running_sequence(row_s: float):
    scheduler = new_scheduler(20_000, 4, 2048, is_unified=False)
    scheduler.cells.row_s = row_s
    running, prompt = with_adapters(1, [1], 1), with_adapters(3, list(range(300, 6000)), 1)
    scheduler.add(running, with_adapters(2, [2000], 2), prompt)
    while not prompt.n_sampled:
        scheduler.step()
    # A wait of 0.5 s or of a pass, and then a turn of the other set.
    longest_s = max(0.5, 127 * row_s) + 64 * row_s + 10 * row_s
    assert running.n_sampled > scheduler.cells.now / longest_s - 1


def test_no_set_starves_while_others_come_and_go():
    """Each new request has another set, and ends after a token."""
    scheduler = new_scheduler(8000, 3, 2048)
    first = with_adapters(1, [1], 1)
    scheduler.add(first)
    for id in range(2, 200):
        scheduler.add(with_adapters(id, [1000 * id], id))
        scheduler.step()
        for one in [one for one in scheduler.running if one is not first and one.n_sampled]:
            scheduler.remove(one)
    assert first.n_sampled > 60


@pytest.mark.parametrize("is_unified", [True, False])
def test_sequences_of_two_sets_do_not_wait_for_a_common_prefix(is_unified: bool):
    scheduler = new_scheduler(8000, 4, 2048, is_unified=is_unified)
    scheduler.add(*(with_adapters(id, SYSTEM, id % 2) for id in range(4)))
    scheduler.step()
    assert [one.id for one in scheduler.running] == [0, 1]


def test_nothing_is_drafted_while_several_sets_run():
    scheduler = new_scheduler(8000, 4, 2048, max_drafted=8)
    scheduler.cells.step_s = 0.1
    for id, n_drafted in ((1, 8), (2, 0)):
        scheduler.add(with_adapters(id, [1000 * id], id))
        batches = [scheduler.step() for _ in range(20)]
        assert [len(chunk.draft) for chunk in batches[-1].chunks] == [n_drafted]
