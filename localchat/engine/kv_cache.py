"""The KV cache: which slot holds the tokens of which sequence, and which cached prefixes other requests can reuse.

A slot is a sequence id of llama.cpp. It is free, active (a running sequence uses it) or idle: the sequence has ended,
and its cells stay for requests that begin with the same tokens until the cells are needed. Idle prefixes are evicted
in order of least recent use; a copy of the state may remain in memory as a snapshot and is restored from there. With a
disk cache, idle prefixes are also saved in files while nothing runs.

Every method applies its operations to the backend at once, so the bookkeeping here and the cells of the backend agree
after each call. Runs on the engine thread. Knows nothing of requests, of scheduling or of llama.cpp.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from .backend import CacheBackend
from .disk_cache import DiskCache
from .prefix import Match, PrefixTree, n_common_of
from .snapshots import Snapshots
from .state_files import Data

log = logging.getLogger("localchat.engine")

# Where each sequence has cells of its own, a prefix is copied only if it has this many tokens: fewer are computed as
# fast as they are copied.
_MIN_SHARED = 4
# A snapshot is taken or restored only if it saves at least this many tokens of prefill.
_MIN_SNAPSHOT = 32


class KVCache:
    """The slots and cells of one backend, copies of evicted prefixes in `snapshots`, and files of idle ones."""

    def __init__(self, backend: CacheBackend, snapshots: Snapshots, disk: DiskCache | None = None):
        self._backend = backend
        self._limits = backend.limits
        self._snapshots = snapshots
        self._disk = disk
        # Cells to plan with: all of them, or fewer for some steps after the backend found no free cells.
        self.n_usable = self._limits.n_cells
        # Whether a slot can be truncated; if not, only whole prefixes can be reused.
        self.can_truncate = self._limits.can_truncate
        self._start_empty()

    def _start_empty(self) -> None:
        self._tree = PrefixTree()
        self._free_slots = set(range(self._limits.n_slots))
        # For each active slot the number of tokens that are known and have no cells yet.
        self._reserved: dict[int, int] = {}

    def reset(self) -> None:
        """Empties all slots, whatever state an error left. Snapshots stay."""
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
        """The longest prefix of `tokens` that has cells, and the slot to take it from; None if none can be reused."""
        if not self._limits.can_truncate:
            return self._tree.match_whole(tokens)
        match = self._tree.match(tokens, shortest=not self._limits.is_unified)
        if match is not None and match.length < _MIN_SHARED and not self._limits.is_unified:
            return None
        return match

    def n_cached(self, tokens: list[int]) -> int:
        """How many of the first tokens have cells."""
        match = self.find(tokens)
        return 0 if match is None else match.length

    def n_known(self, tokens: list[int]) -> int:
        """How many of the first tokens need not be computed: they have cells, or are in a snapshot."""
        return max(self.n_cached(tokens), self._snapshots.n_known(tokens))

    def fits(self, match: Match | None, n_tokens: int) -> bool:
        """Whether a sequence of `n_tokens` that reuses `match` fits beside the active slots and what they reserve."""
        if match is not None:
            n_tokens += self._tree.n_cells_inactive(match) - match.length
        return self._tree.n_cells_active + self._n_reserved + n_tokens <= self.n_usable

    def acquire(self, match: Match | None) -> int:
        """An active slot that holds the tokens of `match` and no others; it is the match's own slot where possible.

        With n sequences active, there must be more than n slots.
        """
        if match is not None and self._tree.is_idle(match.slot) and self._continues_in_place(match):
            self._tree.set_active(match.slot)
            self.truncate(match.slot, match.length)
            return match.slot
        slot = self._take_slot(but=match)
        assert slot is not None
        self._tree.hold(slot, match)
        if match is not None:
            self._backend.share(match.slot, slot, match.length)
        return slot

    def _continues_in_place(self, match: Match) -> bool:
        n_more = self._tree.length(match.slot) - match.length
        return n_more == 0 or (n_more <= match.length and not self._limits.is_unified)

    # Active slots.

    def append(self, slot: int, tokens: list[int]) -> None:
        """Notes that the backend has computed cells for more tokens of an active slot."""
        self._tree.extend(slot, tokens)

    def drop_rejected(self, slot: int) -> None:
        """Frees the cells behind the tokens of an active slot: those of draft tokens that were not appended."""
        self._backend.truncate(slot, self._tree.length(slot))

    def truncate(self, slot: int, n_tokens: int) -> None:
        """Frees the cells of an active slot behind its first `n_tokens` tokens."""
        if n_tokens < self._tree.length(slot):
            self._tree.truncate(slot, n_tokens)
            self._backend.truncate(slot, n_tokens)

    def reserve(self, slot: int, n_tokens: int) -> None:
        """Sets the number of cells that the sequence of an active slot needs for the tokens known by now."""
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
        """Evicts idle prefixes until `n_cells` are free. False if that many are not free with all of them evicted."""
        while self.n_free < n_cells:
            idle = self._tree.idle()
            if not idle:
                return False
            self._evict(idle[0])
        return True

    def _evict(self, slot: int) -> None:
        if self._takes_snapshots:
            tokens = self._tree.tokens(slot)
            if len(tokens) - self._snapshots.n_known(tokens) >= _MIN_SNAPSHOT:
                self.take_snapshot(slot)
        self._drop(slot)

    @property
    def _takes_snapshots(self) -> bool:
        """Whether an evicted prefix stays in memory as a snapshot."""
        return self._limits.can_truncate and self._limits.can_copy and self._snapshots.max_bytes > 0

    def _drop(self, slot: int) -> None:
        self._tree.drop(slot)
        self._free_slots.add(slot)
        self._backend.clear(slot)

    def _take_slot(self, but: Match | None = None) -> int | None:
        """A slot without cells, if need be by evicting an idle prefix other than `but`; None if all are active.

        Sequences with cells of their own are computed in one pass if their slots are side by side. So the slot that is
        nearest to an active one is taken, unless the prefix in it would be lost.
        """
        active = self._tree.active()

        def distance(slot: int) -> int:
            return min((abs(slot - other) for other in active), default=0)

        if self._free_slots:
            slot = min(sorted(self._free_slots), key=distance)
        else:
            idle = [slot for slot in self._tree.idle() if but is None or slot != but.slot]
            if not idle:
                return None
            is_lost = self._limits.is_unified or not self._takes_snapshots
            slot = idle[0] if is_lost else min(idle, key=distance)
            self._evict(slot)
        self._free_slots.remove(slot)
        return slot

    # Copies.

    def take_snapshot(self, slot: int) -> None:
        """Copies the state of a slot to memory. If that fails, the log says so and nothing else happens."""
        tokens = self._tree.tokens(slot)
        try:
            self._snapshots.add(tokens, self._backend.read_state(slot))
        except Exception:
            log.exception("no snapshot of a prefix: its %d tokens are computed again when needed", len(tokens))

    def restore_snapshot(self, tokens: list[int]) -> None:
        """Makes an idle prefix of the snapshot that `tokens` begin with, if that saves enough prefill."""
        n_gained = _MIN_SNAPSHOT if self._limits.can_truncate else 1
        found = self._snapshots.find(tokens, self.n_cached(tokens) + n_gained)
        if found is None:
            return
        snapshot_tokens, data = found
        slot = self.load(snapshot_tokens, data)
        n_common = n_common_of(snapshot_tokens, tokens, 0)
        if slot is not None and not self._limits.is_unified and n_common < len(snapshot_tokens):
            # The sequence then continues in this very slot, and no second copy is made.
            self._tree.set_active(slot)
            self.truncate(slot, n_common)
            self._tree.set_idle(slot)

    def load(self, tokens: list[int], data: Data) -> int | None:
        """Makes an idle prefix of a copied state: its slot, or None if there are no cells or the backend refuses it.

        Other idle prefixes are evicted for it; cells of running sequences and those that they reserve are not taken.
        """
        if self._tree.n_cells_active + self._n_reserved + len(tokens) > self.n_usable:
            return None
        slot = self._take_slot() if self.evict(len(tokens)) else None
        if slot is None:
            return None
        if not self._backend.write_state(slot, data, len(tokens)):
            log.warning("the backend does not take back a copy of %d tokens: they are computed", len(tokens))
            self._free_slots.add(slot)
            return None
        self._tree.hold(slot)
        self._tree.extend(slot, tokens)
        self._tree.set_idle(slot)
        return slot

    # Files.

    def fetch(self, tokens: list[int], then: Callable[[], None]) -> bool:
        """Loads a saved prefix of `tokens` if it has enough more of them than the cells and the snapshots.

        Returns whether a file is read. If so, the engine thread calls `then` afterwards, whether or not the prefix
        could be loaded.
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
