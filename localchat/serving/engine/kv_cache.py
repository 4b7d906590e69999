"""The KV cache: which slot holds the tokens of which sequence, and which cached prefixes other requests can reuse.

A slot is a sequence id of llama.cpp. It is free, active (a running sequence uses it) or idle: its sequence has ended or
was preempted, and its cells stay for requests that begin with the same tokens, until they are needed for others. The
least recently used idle prefix is evicted first.

If all slots share one buffer of cells, a prefix is shared without a copy; if each has its own cells, it is copied. The
state of a recurrent model can be neither truncated nor shared: a request continues only a whole idle prefix, or a
snapshot, which is a copy of a state in memory that is taken before the last token of each prompt.

Every method runs on the engine thread and applies its operations to the backend at once. The backend counts the cells.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass

from .backend import CacheBackend, Data
from .batch import n_common_of

log = logging.getLogger("localchat.engine")

# If each slot has its own cells, a shorter prefix is not copied, since computing it is as fast.
_MIN_COPIED = 4


@dataclass(frozen=True)
class Match:
    """The first `length` tokens of a prompt, for which `slot` has cells."""

    slot: int
    length: int


class KVCache:
    """The slots of one backend, and the snapshots of a recurrent model."""

    def __init__(self, backend: CacheBackend, max_snapshot_bytes: int = 0):
        self._backend, self._limits = backend, backend.limits
        self.max_snapshot_bytes = max_snapshot_bytes
        # States by their tokens, the least recently used first.
        self._snapshots: OrderedDict[tuple[int, ...], Data] = OrderedDict()
        # The tokens of each slot in use, the least recently used first.
        self._tokens: OrderedDict[int, list[int]] = OrderedDict()
        self.active: set[int] = set()
        self._free = set(range(self._limits.n_slots))

    def forget(self) -> None:
        """Drops all idle prefixes and all snapshots."""
        while self.evict():
            pass
        self._snapshots.clear()

    def n_cells(self) -> tuple[int, int]:
        """Cells of running sequences, and of idle prefixes; any thread. A shared cell counts for each sequence, up to
        the capacity."""
        sizes = [(slot in self.active, len(tokens)) for slot, tokens in list(self._tokens.items())]
        n_active = min(sum(n for is_active, n in sizes if is_active), self._limits.n_cells)
        return n_active, min(sum(n for is_active, n in sizes if not is_active), self._limits.n_cells - n_active)

    def find(self, tokens: list[int]) -> Match | None:
        """The longest prefix of `tokens` that can be reused, and a slot that has it; None if there is none.

        Of slots that have equally long prefixes, it prefers an idle one that has no further tokens; then an active one
        if the cells are shared, and the shortest one if they are copied.
        """
        known = [(slot, len(held), n_common_of(held, tokens)) for slot, held in self._tokens.items()]
        n_least = 1 if self._limits.is_unified else _MIN_COPIED
        if not self._limits.can_truncate:
            known = [(slot, n, common) for slot, n, common in known if n == common and slot not in self.active]
            n_least = 0
        slot, _, length = max(known, key=lambda each: (each[2], self._rank(*each)), default=(0, 0, -1))
        return Match(slot, length) if length >= n_least else None

    def _rank(self, slot: int, n_held: int, n_common: int) -> tuple[int, int]:
        is_active = slot in self.active
        return int(n_held == n_common and not is_active), int(is_active) if self._limits.is_unified else -n_held

    def acquire(self, match: Match | None) -> int:
        """Makes a slot active that has the tokens of `match` and no others: the slot of the match, or another one that
        shares or copies its prefix. Not all slots may be active."""
        if match is None:
            return self._take_slot([])
        n_more = len(self._tokens[match.slot]) - match.length
        # The idle slot itself, if it loses no tokens; or few, where the prefix would be copied, or another one evicted.
        is_cheap = n_more <= match.length and not (self._limits.is_unified and self._free)
        if match.slot not in self.active and (n_more == 0 or is_cheap):
            self.active.add(match.slot)
            self.truncate(match.slot, match.length)
            return match.slot
        self._tokens.move_to_end(match.slot)
        slot = self._take_slot(self._tokens[match.slot][: match.length])
        self._backend.share(match.slot, slot, match.length)
        return slot

    def _take_slot(self, tokens: list[int]) -> int:
        """Makes a free slot active for these tokens, after the eviction of an idle prefix if there is none.

        If each slot has its own cells, sequences in neighbouring slots are computed in one pass, so it is the free slot
        nearest to an active one.
        """
        if not self._free:
            self.evict()
        slot = min(self._free, key=lambda slot: (min((abs(slot - other) for other in self.active), default=0), slot))
        self._free.remove(slot)
        self.active.add(slot)
        self._tokens[slot] = list(tokens)
        return slot

    def append(self, slot: int, tokens: list[int], n_rejected: int = 0) -> None:
        """Notes the tokens that the backend has computed in an active slot. Frees the cells of rejected draft tokens,
        which it has computed after them."""
        self._tokens[slot].extend(tokens)
        if n_rejected:
            self._backend.truncate(slot, len(self._tokens[slot]))

    def truncate(self, slot: int, n_tokens: int) -> None:
        """Removes all but the first `n_tokens` tokens of an active slot."""
        if n_tokens < len(self._tokens[slot]):
            del self._tokens[slot][n_tokens:]
            self._backend.truncate(slot, n_tokens)

    def release(self, slot: int, *, keep: bool) -> None:
        """Ends the use of an active slot. With `keep` its tokens become an idle prefix, if no other slot has them."""
        self.active.remove(slot)
        tokens = self._tokens[slot]
        n = len(tokens) if self._limits.can_truncate else None
        twin = next((other for other, held in self._tokens.items() if other != slot and held[:n] == tokens), None)
        if keep and tokens:
            self._tokens.move_to_end(slot if twin is None else twin)
        if not (keep and tokens) or twin is not None:
            self._drop(slot)

    def evict(self) -> bool:
        """Drops the least recently used idle prefix. False if there is none."""
        slot = next((slot for slot in self._tokens if slot not in self.active), None)
        if slot is not None:
            self._drop(slot)
        return slot is not None

    def _drop(self, slot: int) -> None:
        del self._tokens[slot]
        self._free.add(slot)
        self._backend.clear(slot)

    # Recurrent models.

    def take_snapshot(self, slot: int) -> None:
        """Copies the state of a slot to memory, within `max_snapshot_bytes`. An error is only logged."""
        tokens = tuple(self._tokens[slot])
        try:
            data = self._backend.read_state(slot)
        except Exception:
            log.exception("no snapshot of a prefix: its %d tokens are computed again when needed", len(tokens))
            return
        self._snapshots.pop(tokens, None)
        if len(data) <= self.max_snapshot_bytes:  # Otherwise all others would be dropped for nothing.
            self._snapshots[tokens] = data
        while sum(map(len, self._snapshots.values())) > self.max_snapshot_bytes:
            self._snapshots.popitem(last=False)

    def restore_snapshot(self, tokens: list[int]) -> None:
        """Makes an idle prefix from the longest snapshot for `tokens`, if it has more of them than an idle prefix."""
        wanted, match = tuple(tokens), self.find(tokens)
        best = max((known for known in self._snapshots if known == wanted[: len(known)]), key=len, default=())
        if len(best) <= (0 if match is None else match.length):
            return
        self._snapshots.move_to_end(best)
        slot = self._take_slot(list(best))
        while not self._backend.write_state(slot, self._snapshots[best], len(best)):
            if not self.evict():
                log.warning("the snapshot of %d tokens cannot be restored: they are computed again", len(best))
                self._drop(slot)
                break
        self.active.remove(slot)
