"""The KV cache on fake cells: slots, reservations, eviction, snapshots and loaded states."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest

from localchat.serving.engine.batch import Batch, BatchChunk, CacheLimits, Sequence
from localchat.serving.engine.kv_cache import KVCache
from localchat.serving.engine.snapshots import Snapshots

from .fakes import FakeCells


class Cached:
    """A KV cache on fake cells, with the state that a scheduler has: the tokens of each active slot."""

    def __init__(self, n_cells: int = 200, *, max_snapshot_bytes: int = 0, n_slots: int = 4, **limits: Any):
        limits = CacheLimits(n_cells, 2, n_slots, 50, **limits)
        # If slots have their own cells, they have more cells than the cache counts, which counts shared ones once.
        self.cells = FakeCells(limits, n_real_cells=n_cells if limits.is_unified else n_slots * n_cells)
        self.cache = KVCache(self.cells, Snapshots(max_snapshot_bytes, can_truncate=self.cells.limits.can_truncate))

    def start(self, tokens: list[int]) -> int:
        """Acquires a slot for these tokens and computes those that it does not hold."""
        match = self.cache.find(tokens)
        slot = self.cache.acquire(match)
        self.compute(slot, tokens, 0 if match is None else match.length)
        return slot

    def compute(self, slot: int, tokens: list[int], n_computed: int) -> None:
        sequence = Sequence(1, list(tokens), 1000)
        sequence.n_computed = n_computed
        if sequence.n_missing:
            self.cells.compute(Batch((BatchChunk(sequence, slot, 0, sequence.n_missing, True),)))
            self.cache.append(slot, tokens[n_computed:])

    def tokens(self, slot: int) -> list[int]:
        return [token for _, token in self.cells.slots[slot]]


def prompt(id: int, n_tokens: int) -> list[int]:
    return [1000 * id + i for i in range(n_tokens)]


def state(tokens: list[int]) -> bytes:
    return array("i", tokens).tobytes()


def test_reserved_cells_are_not_free():
    cached = Cached(100)
    slot = cached.start(prompt(1, 30))
    assert cached.cache.n_free == 70
    cached.cache.reserve(slot, 50)
    assert (cached.cache.n_free, cached.cache.fits(None, 20), cached.cache.fits(None, 21)) == (20, True, False)
    cached.cache.release(slot, keep=True)
    assert (cached.cache.n_free, cached.cache.n_cells_active, cached.cache.n_cells_idle) == (70, 0, 30)


def test_eviction_takes_the_least_recently_used_prefixes_and_no_more_than_needed():
    cached = Cached(100)
    for id in (1, 2, 3):
        cached.cache.release(cached.start(prompt(id, 30)), keep=True)
    assert cached.cache.evict(40)
    assert [cached.cache.n_cached(prompt(id, 30)) for id in (1, 2, 3)] == [0, 30, 30]
    assert not cached.cache.evict(101)
    assert cached.cache.n_cells_used == cached.cells.n_cells_used() == 0


@pytest.mark.parametrize(
    ("is_unified", "max_snapshot_bytes", "slot"),
    [(False, 1000, 3), (False, 0, 0), (True, 1000, 0)],
    ids=["nearest to an active slot", "least recent: its prefix is lost", "least recent: all slots share the cells"],
)
def test_slot_that_a_sequence_takes_from_an_idle_prefix(is_unified: bool, max_snapshot_bytes: int, slot: int):
    cached = Cached(400, max_snapshot_bytes=max_snapshot_bytes, is_unified=is_unified)
    slots = [cached.start(prompt(id, 40)) for id in range(1, 5)]
    for idle in (0, 1, 3):
        cached.cache.release(slots[idle], keep=True)
    # Slot 2 is active; slot 1 was used last.
    cached.cache.release(cached.start(prompt(2, 40)), keep=True)
    assert cached.start(prompt(5, 40)) == slot


def test_evicted_prefix_is_restored_from_its_snapshot():
    cached = Cached(100, max_snapshot_bytes=1000)
    cached.cache.release(cached.start(prompt(1, 60)), keep=True)
    cached.cache.evict(100)
    assert (cached.cache.n_cached(prompt(1, 60)), cached.cache.n_known(prompt(1, 60))) == (0, 60)
    cached.cache.restore_snapshot(prompt(1, 60))
    assert cached.cache.n_cached(prompt(1, 60)) == 60


def test_snapshot_of_few_tokens_is_not_restored():
    cached = Cached(100, max_snapshot_bytes=1000)
    cached.cache.release(cached.start(prompt(1, 60)), keep=True)
    cached.cache.evict(100)
    cached.cells.take_operations()
    cached.cache.restore_snapshot(prompt(1, 31))
    assert cached.cells.take_operations() == []


@pytest.mark.parametrize("is_unified", [True, False])
def test_sequence_with_cells_of_its_own_continues_in_the_restored_slot(is_unified: bool):
    cached = Cached(400, max_snapshot_bytes=1000, is_unified=is_unified)
    cached.cache.release(cached.start(prompt(1, 60)), keep=True)
    cached.cache.evict(400)
    tokens = prompt(1, 50)
    cached.cache.restore_snapshot(tokens)
    cached.cells.take_operations()
    slot = cached.start(tokens)
    assert cached.tokens(slot) == tokens
    assert cached.cells.take_operations() == ([("share", 0, 1, 50)] if is_unified else [])


@pytest.mark.parametrize(
    ("n_active", "n_reserved", "n_idle", "is_loaded"),
    [(0, 0, 0, True), (40, 0, 50, True), (40, 10, 0, True), (40, 11, 0, False), (51, 0, 0, False)],
)
def test_loaded_state_takes_cells_of_idle_prefixes_only(n_active: int, n_reserved: int, n_idle: int, is_loaded: bool):
    cached = Cached(100)
    if n_idle:
        cached.cache.release(cached.start(prompt(1, n_idle)), keep=True)
    if n_active:
        cached.cache.reserve(cached.start(prompt(2, n_active)), n_reserved)
    slot = cached.cache.load(prompt(3, 50), state(prompt(3, 50)))
    assert (slot is not None) == is_loaded
    assert cached.cache.n_cached(prompt(3, 50)) == 50 * is_loaded
    assert cached.cache.n_cells_active == n_active


def test_state_that_does_not_fit_evicts_nothing():
    cached = Cached(100)
    cached.cache.release(cached.start(prompt(1, 20)), keep=True)
    cached.cache.reserve(cached.start(prompt(2, 40)), 11)
    assert cached.cache.load(prompt(3, 50), state(prompt(3, 50))) is None
    assert cached.cache.n_cells_idle == 20


def test_state_that_the_backend_refuses_leaves_the_slot_free(caplog: pytest.LogCaptureFixture):
    cached = Cached(100, n_slots=3)
    for _ in range(4):
        assert cached.cache.load(prompt(1, 50), b"") is None
    assert cached.cache.n_cells_used == 0
    assert cached.cache.load(prompt(1, 50), state(prompt(1, 50))) is not None


def test_reset_empties_every_slot_and_forgets_reservations():
    cached = Cached(100)
    cached.cache.reserve(cached.start(prompt(1, 30)), 20)
    cached.cache.release(cached.start(prompt(2, 30)), keep=True)
    cached.cache.reset()
    assert (cached.cache.n_free, cached.cells.n_cells_used(), cached.cache.idle()) == (100, 0, [])


@pytest.mark.parametrize("is_unified", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_random_use_keeps_the_bookkeeping_equal_to_the_cells(seed: int, is_unified: bool):
    random_ = random.Random(seed)
    cached = Cached(300, n_slots=5, max_snapshot_bytes=random_.choice([0, 600, 5000]), is_unified=is_unified)
    active: dict[int, list[int]] = {}
    for _ in range(300):
        tokens = [*range(random_.choice([0, 40, 80])), *(random_.choices([7, 8], k=random_.randint(1, 20)))]
        if len(active) < 2 and random_.random() < 0.5:
            cached.cache.restore_snapshot(tokens)
            if cached.cache.fits(cached.cache.find(tokens), len(tokens)):
                cached.cache.evict(len(tokens))
                active[cached.start(tokens)] = tokens
        elif active:
            slot = random_.choice([*active])
            if random_.random() < 0.5:
                cached.cache.release(slot, keep=random_.random() < 0.8)
                del active[slot]
            elif cached.cache.evict(1):
                active[slot].append(9)
                cached.compute(slot, active[slot], len(active[slot]) - 1)
        for slot, known in (*active.items(), *cached.cache.idle()):
            assert cached.tokens(slot) == known
        n_tokens = sum(map(len, cached.cells.slots.values()))
        used = [slot for slot, cells in cached.cells.slots.items() if cells]
        assert sorted(used) == sorted([*active, *(slot for slot, _ in cached.cache.idle())])
        # Where each slot has cells of its own, a shared prefix is counted once and copied.
        assert cached.cache.n_cells_used <= 300
        assert cached.cells.n_cells_used() == (cached.cache.n_cells_used if is_unified else n_tokens)
