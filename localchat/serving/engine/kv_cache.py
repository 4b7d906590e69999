"""The KV cache: which slot holds the tokens of which sequence, and which cached prefixes other requests can reuse.

A slot is a sequence id of llama.cpp. It is free, active (a running sequence uses it) or idle: its sequence has ended or
was preempted, and its cells stay for requests that begin with the same tokens, until they are needed for others. The
least recently used idle prefix is evicted first.

If all slots share one buffer of cells, a prefix is shared without a copy; if each has its own cells, it is copied. The
state of a recurrent model cannot be truncated, so a request continues a copy of a whole idle prefix. For this, a copy
of the state before the last token of each prompt is kept as an idle prefix.

Cells belong to the set of adapters with which they were computed: only sequences of the same set reuse them.

llama.cpp rounds the cells of a chunk of TILE_ROWS in another way than those of other chunks. If each slot has its own
cells, repeatable requests reuse only whole chunks, so that their prompts are always computed in the same chunks.

The methods run on the engine thread and apply their operations to the backend at once. The backend counts the cells.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from .batch import MIN_SAVED, Batch, Sequence, n_common_of
from .protocols import CacheBackend, NoFreeCells
from .values import Adapters

# If each slot has its own cells, a prefix of fewer tokens is computed again, which is as fast as a copy.
_MIN_COPIED = 4
# To move as many tokens to another slot takes as long as another pass of a step.
_MOVED_PER_STEP = 1000


class Match(NamedTuple):
    """The first `length` tokens of a prompt, for which `slot` has cells."""

    slot: int
    length: int


class KVCache:
    """The slots of one backend."""

    def __init__(self, backend: CacheBackend):
        self._backend, self._limits = backend, backend.limits
        # By slot: the running sequence, whose computed tokens have cells in it.
        self.active: dict[int, Sequence] = {}
        # By slot: the tokens of an idle prefix, the least recently used one first.
        self._idle: OrderedDict[int, list[int]] = OrderedDict()
        self._free = set(range(self._limits.n_slots))
        # By slot: the number of first cells that were computed in chunks of TILE_ROWS.
        self._n_tiled = [0] * self._limits.n_slots
        # How many steps had gaps between the active slots since a sequence was moved.
        self._n_with_gaps = 0
        # By slot that is not free: the set of adapters with which its cells were computed.
        self._adapters: list[Adapters] = [()] * self._limits.n_slots

    def forget(self) -> None:
        """Drops all idle prefixes."""
        while self.evict():
            pass

    def decode(self, batch: Batch) -> None:
        """Computes a batch of running sequences, after the eviction of idle prefixes as far as it needs their cells.
        Raises NoFreeCells if all other cells are those of running sequences, or DecodeFailed."""
        while True:
            try:
                self._backend.decode(batch)
                break
            except NoFreeCells:
                if not self.evict():
                    raise
        for chunk in batch.chunks:
            if self._n_tiled[chunk.slot] == chunk.sequence.n_computed and chunk.ends_a_tile:
                self._n_tiled[chunk.slot] += chunk.n_tokens

    def n_cells(self) -> tuple[int, int]:
        """How many cells running sequences use, and how many idle prefixes. Any thread may call this. A cell that
        several share is counted for each of them, but both numbers together are at most the capacity."""
        n_cells = self._limits.n_cells
        n_active = min(sum(sequence.n_computed for sequence in list(self.active.values())), n_cells)
        return n_active, min(sum(map(len, list(self._idle.values()))), n_cells - n_active)

    def find(self, sequence: Sequence) -> Match | None:
        """The longest prefix that a sequence can reuse, and a slot that has it; None if there is none. The last token
        is always computed, since its logits are needed. Of slots that have equally long prefixes, it prefers an idle
        one that has no further tokens; then an active one if the cells are shared, or the slot that has the fewest
        tokens if they are copied."""
        known = [
            (slot, n_held, self._n_usable(sequence, n_common, self._n_tiled[slot]))
            for slot, n_held, n_common in self._slots_with(sequence.tokens[:-1], sequence.adapters)
        ]
        slot, _, length = max(known, key=lambda each: (each[2], self._rank(*each)), default=(0, 0, 0))
        return Match(slot, length) if length >= (1 if self._limits.is_unified else _MIN_COPIED) else None

    def _slots_with(self, tokens: list[int], adapters: Adapters) -> list[tuple[int, int, int]]:
        """The slots of a set of adapters: each with the number of its tokens, and how many of the first ones are those
        of `tokens`. If slots cannot be truncated, only the idle ones that have no others."""
        held = [(slot, own, len(own)) for slot, own in self._idle.items()]
        if self._limits.can_truncate:
            held += [(slot, one.tokens, one.n_computed) for slot, one in self.active.items()]
        held = [each for each in held if self._adapters[each[0]] == adapters]
        known = [(slot, n_held, min(n_common_of(own, tokens), n_held)) for slot, own, n_held in held]
        return [each for each in known if self._limits.can_truncate or each[1] == each[2]]

    def _n_usable(self, sequence: Sequence, n_common: int, n_tiled: int) -> int:
        """How many of the common tokens with a slot, of which so many are tiled, a sequence can reuse."""
        must_repeat = sequence.is_repeatable and not self._limits.is_unified
        return sequence.tiled(min(n_common, n_tiled)) if must_repeat else sequence.whole(n_common)

    def n_to_share(self, running: Sequence, sequence: Sequence) -> int:
        """How many tokens `sequence` can reuse when a running one has computed its prompt."""
        if running.adapters != sequence.adapters:
            return 0
        n_common, n_checkpoint = n_common_of(running.tokens, sequence.tokens[:-1]), running.n_prompt - 1
        if not self._limits.can_truncate:
            return n_checkpoint if MIN_SAVED <= n_checkpoint <= n_common else 0
        n_tiled = n_common if self._n_tiled[running.slot or 0] == running.n_computed else 0
        return self._n_usable(sequence, n_common, n_tiled)

    def _rank(self, slot: int, n_held: int, n_common: int) -> tuple[int, int]:
        is_active = slot in self.active
        return int(n_held == n_common and not is_active), int(is_active) if self._limits.is_unified else -n_held

    def acquire(self, sequence: Sequence, match: Match | None) -> None:
        """Gives a sequence a slot that has the tokens of `match` and no others. Not all slots may be active."""
        if match is None:
            slot, sequence.n_computed = self._take_slot(), 0
        else:
            slot, sequence.n_computed = self._slot_with(match, sequence), match.length
        sequence.slot = slot
        self.active[slot], self._adapters[slot] = sequence, sequence.adapters

    def _slot_with(self, match: Match, sequence: Sequence) -> int:
        """The slot of the match, or another one that shares or copies its prefix, which is that of the sequence."""
        position, n_tiled = sequence.position_of(match.length), sequence.tiled(match.length)
        held = self._idle.get(match.slot)
        if held is not None:
            n_more = len(held) - match.length
            # Use the idle slot itself if that drops no tokens, or if it drops at most as many as it keeps and the
            # alternative is to copy the prefix or to evict another one.
            is_cheap = n_more == 0 or (n_more <= match.length and not (self._limits.is_unified and self._free))
            if is_cheap and self._limits.can_truncate:
                del self._idle[match.slot]
                if n_more:
                    self._backend.truncate(match.slot, position)
                    self._n_tiled[match.slot] = min(self._n_tiled[match.slot], n_tiled)
                return match.slot
            self._idle.move_to_end(match.slot)
        slot = self._take_slot()
        self._backend.share(match.slot, slot, position)
        self._n_tiled[slot] = min(self._n_tiled[match.slot], n_tiled)
        return slot

    def _take_slot(self) -> int:
        """The free slot nearest to an active one. If none is free, evicts an idle prefix first. If each slot has its
        own cells, llama.cpp computes sequences in neighbouring slots in one pass."""
        if not self._free:
            self.evict()
        slot = min(self._free, key=lambda slot: (min((abs(slot - other) for other in self.active), default=0), slot))
        self._free.remove(slot)
        return slot

    def close_gaps(self) -> None:
        """Moves a running sequence into a gap between the others, once steps with gaps have cost as much as that. If
        each slot has its own cells, llama.cpp computes sequences in one pass only if their slots are consecutive."""
        n, slots = len(self.active), sorted(self.active)
        if self._limits.is_unified or not n or slots[-1] - slots[0] < n:
            self._n_with_gaps = 0
            return
        self._n_with_gaps += 1
        starts = range(self._limits.n_slots - n + 1)
        start = max(starts, key=lambda start: sum(start <= slot < start + n for slot in slots))
        slot = next(slot for slot in slots if not start <= slot < start + n)
        gap = next(slot for slot in range(start, start + n) if slot not in self.active)
        if self.active[slot].n_computed + len(self._idle.get(gap, ())) <= _MOVED_PER_STEP * self._n_with_gaps:
            self._n_with_gaps = 0
            self._swap(slot, gap)

    def _swap(self, slot: int, gap: int) -> None:
        """Exchanges an active slot with one that is free or idle."""
        self._backend.swap(slot, gap)
        self.active[gap] = sequence = self.active.pop(slot)
        sequence.slot = gap
        # The order of the idle prefixes stays.
        self._idle = OrderedDict((slot if idle == gap else idle, held) for idle, held in self._idle.items())
        if gap in self._free:
            self._free.remove(gap)
            self._free.add(slot)
        n_tiled, adapters = self._n_tiled, self._adapters
        n_tiled[slot], n_tiled[gap] = n_tiled[gap], n_tiled[slot]
        adapters[slot], adapters[gap] = adapters[gap], adapters[slot]

    def truncate(self, sequence: Sequence) -> None:
        """Frees the cells of a running sequence beyond its computed tokens, such as those of rejected draft tokens."""
        assert sequence.slot is not None
        self._backend.truncate(sequence.slot, sequence.position_of(sequence.n_computed))

    def keep_copy(self, sequence: Sequence) -> None:
        """Copies the computed tokens of a running sequence to an idle prefix, as slots cannot be truncated later."""
        assert sequence.slot is not None
        tokens = sequence.tokens[: sequence.n_computed]
        if (sequence.adapters, tokens) not in ((self._adapters[slot], held) for slot, held in self._idle.items()):
            slot = self._take_slot()
            self._backend.share(sequence.slot, slot, sequence.position_of(len(tokens)))
            self._idle[slot], self._adapters[slot] = tokens, sequence.adapters

    def release(self, sequence: Sequence, *, keep: bool) -> None:
        """Ends the use of a slot. With `keep` its tokens become an idle prefix, if no other slot has them."""
        assert sequence.slot is not None
        slot, tokens = sequence.slot, sequence.tokens[: sequence.n_computed]
        sequence.slot, sequence.n_computed = None, 0
        del self.active[slot]
        if keep and tokens:
            twins = [other for other, _, n in self._slots_with(tokens, sequence.adapters) if n == len(tokens)]
            if not twins:
                self._idle[slot] = tokens
                return
            for twin in self._idle.keys() & twins:
                self._idle.move_to_end(twin)
        self._give_back(slot)

    def evict(self) -> bool:
        """Drops the least recently used idle prefix. False if there is none."""
        if not self._idle:
            return False
        self._give_back(self._idle.popitem(last=False)[0])
        return True

    def _give_back(self, slot: int) -> None:
        self._free.add(slot)
        self._n_tiled[slot] = 0
        self._backend.clear(slot)
