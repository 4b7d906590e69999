"""The KV cache: which slot holds the tokens of which sequence, and which cached prefixes other requests can reuse.

A slot is a sequence id of llama.cpp. It is free, active (a running sequence uses it) or idle: its sequence has ended or
was preempted, and the cells stay for requests that begin with the same tokens until they are needed for others. The
least recently used idle prefix is evicted first, except where `_take_slot` prefers a slot beside an active one. A copy
of the state may stay in memory as a snapshot, from which it is restored. With a disk cache, idle prefixes are also
saved in files while nothing runs.

Every method applies its operations to the backend at once, so this bookkeeping and the cells of the backend agree after
each call. All methods run on the engine thread. This module does not know requests, scheduling or llama.cpp.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from .backend import CacheBackend
from .disk_cache import DiskCache
from .prefix import MIN_SAVED, Match, PrefixTree, n_common_of
from .snapshots import Snapshots
from .state_files import Data

log = logging.getLogger("localchat.engine")

# If each slot has its own cells, a shorter prefix is not copied, since computing it is as fast.
_MIN_SHARED = 4


class KVCache:
    """The slots and cells of one backend, its snapshots, and its disk cache."""

    def __init__(self, backend: CacheBackend, snapshots: Snapshots, disk: DiskCache | None = None):
        self._backend = backend
        self._limits = backend.limits
        self._snapshots = snapshots
        self._disk = disk
        # Cells to plan with: all of them, or fewer for some steps after the backend found no free cells.
        self.n_usable = self._limits.n_cells
        self._start_empty()

    def _start_empty(self) -> None:
        self._tree = PrefixTree()
        self._free_slots = set(range(self._limits.n_slots))
        # By active slot: the number of known tokens that have no cells yet.
        self._reserved: dict[int, int] = {}

    def reset(self) -> None:
        """Clears all slots, whatever state an error left. Snapshots stay."""
        self._start_empty()
        for slot in range(self._limits.n_slots):
            self._backend.clear(slot)

    def forget(self) -> None:
        """Drops all idle prefixes and all snapshots."""
        for slot in self._tree.idle():
            self._drop(slot)
        self._snapshots.clear()

    # Counts.

    @property
    def n_cells_active(self) -> int:
        """Cells of running sequences; shared ones count once."""
        return self._tree.n_cells_active

    @property
    def n_cells_idle(self) -> int:
        """Cells that only idle prefixes use."""
        return self._tree.n_cells - self._tree.n_cells_active

    @property
    def n_cells_used(self) -> int:
        """Cells of running sequences and of idle prefixes."""
        return self._tree.n_cells

    @property
    def n_free(self) -> int:
        """Cells that are neither used nor reserved; negative if running sequences need more than there are."""
        return self.n_usable - self._tree.n_cells - self._n_reserved

    @property
    def _n_reserved(self) -> int:
        return sum(self._reserved.values())

    # Reuse of prefixes.

    def find(self, tokens: list[int]) -> Match | None:
        """The longest prefix of `tokens` that can be reused, and a slot that has it; None if there is none."""
        if not self._limits.can_truncate:
            return self._tree.match_whole(tokens)
        match = self._tree.match(tokens, shortest=not self._limits.is_unified)
        if match is not None and match.length < _MIN_SHARED and not self._limits.is_unified:
            return None
        return match

    def n_cached(self, tokens: list[int]) -> int:
        """How many of the first tokens have cells that can be reused."""
        match = self.find(tokens)
        return 0 if match is None else match.length

    def n_known(self, tokens: list[int]) -> int:
        """How many of the first tokens need not be computed: they have cells, or are in a snapshot."""
        return max(self.n_cached(tokens), self._snapshots.n_known(tokens))

    def fits(self, match: Match | None, n_tokens: int) -> bool:
        """Whether a sequence of `n_tokens` that reuses `match` fits beside the active slots and their reservations."""
        if match is not None:
            n_tokens += self._tree.n_cells_inactive(match) - match.length
        return self._tree.n_cells_active + self._n_reserved + n_tokens <= self.n_usable

    def acquire(self, match: Match | None) -> int:
        """Makes a slot active that has the tokens of `match` and no others.

        It is the slot of the match, or another one that shares or copies its prefix. Not all slots may be active.
        """
        if match is not None and self._tree.is_idle(match.slot) and self._continues_in_place(match):
            self._tree.set_active(match.slot)
            self.truncate(match.slot, match.length)
            return match.slot
        slot = self._take_slot(None if match is None else match.slot)
        assert slot is not None
        self._tree.hold(slot, match)
        if match is not None:
            self._backend.share(match.slot, slot, match.length)
        return slot

    def _continues_in_place(self, match: Match) -> bool:
        """Whether to use the idle slot of a match itself: it loses no tokens, or no more than would be copied."""
        n_more = self._tree.length(match.slot) - match.length
        return n_more == 0 or (n_more <= match.length and not self._limits.is_unified)

    # Active slots.

    def append(self, slot: int, tokens: list[int]) -> None:
        """Notes that the backend has computed more tokens of an active slot."""
        self._tree.extend(slot, tokens)

    def drop_rejected(self, slot: int) -> None:
        """Frees the cells of the draft tokens that were computed in an active slot and not appended."""
        self._backend.truncate(slot, self._tree.length(slot))

    def truncate(self, slot: int, n_tokens: int) -> None:
        """Removes all but the first `n_tokens` tokens of an active slot."""
        if n_tokens < self._tree.length(slot):
            self._tree.truncate(slot, n_tokens)
            self._backend.truncate(slot, n_tokens)

    def reserve(self, slot: int, n_tokens: int) -> None:
        """Reserves cells for the `n_tokens` known tokens of an active slot that are not computed yet."""
        self._reserved[slot] = n_tokens

    def release(self, slot: int, *, keep: bool) -> None:
        """Ends the use of an active slot. With `keep` its tokens become an idle prefix, if no other slot has them."""
        self._reserved.pop(slot, None)
        twin = self._tree.twin(slot, exact=not self._limits.can_truncate) if keep else None
        if keep and twin is None and self._tree.length(slot):
            self._tree.set_idle(slot)
            if self._disk is not None:
                self._disk.note_idle_prefix()
            return
        if twin is not None:
            self._tree.refresh(twin)
        self._drop(slot)

    # Idle slots.

    def idle(self) -> list[tuple[int, list[int]]]:
        """The idle slots with their tokens, the least recently used first."""
        return [(slot, self._tree.tokens(slot)) for slot in self._tree.idle()]

    def evict(self, n_cells: int = 0) -> bool:
        """Evicts idle prefixes until `n_cells` cells are free. False if fewer are free without any idle prefix."""
        while self.n_free < n_cells:
            idle = self._tree.idle()
            if not idle:
                return False
            self._evict(idle[0])
        return True

    def _evict(self, slot: int) -> None:
        if self._takes_snapshots:
            tokens = self._tree.tokens(slot)
            if len(tokens) - self._snapshots.n_known(tokens) >= MIN_SAVED:
                self.take_snapshot(slot)
        self._drop(slot)

    @property
    def _takes_snapshots(self) -> bool:
        """Whether snapshots are taken of evicted prefixes."""
        return self._limits.can_truncate and self._limits.can_copy and self._snapshots.max_bytes > 0

    def _drop(self, slot: int) -> None:
        self._tree.drop(slot)
        self._free_slots.add(slot)
        self._backend.clear(slot)

    def _take_slot(self, except_slot: int | None = None) -> int | None:
        """Takes a free slot, or evicts an idle prefix from a slot other than `except_slot`; None if all are active.

        If each slot has its own cells, sequences in neighbouring slots are computed in one pass. So the slot nearest to
        an active one is taken. Of idle slots it is the least recently used one if the evicted prefix is lost.
        """
        active = self._tree.active()

        def distance(slot: int) -> int:
            return min((abs(slot - other) for other in active), default=0)

        if self._free_slots:
            slot = min(sorted(self._free_slots), key=distance)
        else:
            idle = [slot for slot in self._tree.idle() if slot != except_slot]
            if not idle:
                return None
            is_lost = self._limits.is_unified or not self._takes_snapshots
            slot = idle[0] if is_lost else min(idle, key=distance)
            self._evict(slot)
        self._free_slots.remove(slot)
        return slot

    # Copied states.

    def take_snapshot(self, slot: int) -> None:
        """Copies the state of a slot to memory. An error is only logged."""
        tokens = self._tree.tokens(slot)
        try:
            self._snapshots.add(tokens, self._backend.read_state(slot))
        except Exception:
            log.exception("no snapshot of a prefix: its %d tokens are computed again when needed", len(tokens))

    def restore_snapshot(self, tokens: list[int]) -> None:
        """Makes an idle prefix from the best snapshot for `tokens`, if that saves enough prefill."""
        n_gained = MIN_SAVED if self._limits.can_truncate else 1
        found = self._snapshots.find(tokens, self.n_cached(tokens) + n_gained)
        if found is None:
            return
        snapshot_tokens, data = found
        slot = self.load(snapshot_tokens, data)
        n_common = n_common_of(snapshot_tokens, tokens)
        if slot is not None and not self._limits.is_unified and n_common < len(snapshot_tokens):
            # Truncated here, so that `acquire` uses this slot and does not copy its prefix.
            self._tree.set_active(slot)
            self.truncate(slot, n_common)
            self._tree.set_idle(slot)

    def load(self, tokens: list[int], data: Data) -> int | None:
        """Makes an idle prefix from a copied state. Returns its slot; None if it does not fit or is refused.

        If it fits beside the active slots and their reservations, other idle prefixes are evicted for it.
        """
        if not self.fits(None, len(tokens)):
            return None
        slot = self._take_slot() if self.evict(len(tokens)) else None
        if slot is None:
            return None
        if not self._backend.write_state(slot, data, len(tokens)):
            log.warning("the saved state of %d tokens cannot be restored: they are computed again", len(tokens))
            self._free_slots.add(slot)
            return None
        self._tree.hold(slot)
        self._tree.extend(slot, tokens)
        self._tree.set_idle(slot)
        return slot

    # The disk cache.

    def fetch(self, tokens: list[int], then: Callable[[], None]) -> bool:
        """Loads a prefix of `tokens` from a file if it has enough more of them than the cells and the snapshots.

        Returns whether a file is read. If so, the engine thread calls `then` afterwards, even if the prefix could not
        be loaded.
        """
        return self._disk is not None and self._disk.fetch(tokens, self.n_known(tokens), self.load, then)

    @property
    def save_wait_s(self) -> float | None:
        """Seconds without a running sequence after which `save_next` is due; None if there is nothing to save."""
        return None if self._disk is None else self._disk.wait_s

    def save_next(self) -> None:
        """Saves one idle prefix that is in no file yet."""
        if self._disk is not None:
            self._disk.save_next(self.idle(), self._backend.read_state)

    def close(self, *, saves: bool = True) -> None:
        """Saves the idle prefixes that are in no file yet, or with `saves=False` none. Cancels every `fetch`."""
        if self._disk is not None:
            self._disk.close(self.idle() if saves else [], self._backend.read_state)
