"""The KV cache: which slot has the cells of which tokens, and which cached prefixes other requests can reuse.

A slot is a sequence id of llama.cpp. It is free, active (a running sequence uses it) or idle: its sequence has ended or
was preempted, and its cells stay for requests that begin with the same tokens, until they are needed for others. The
least recently used idle prefix is evicted first.

`KVCache` has what both layouts of llama.cpp have in common. `SharedCells` and `OwnCells` decide which prefix a sequence
reuses, how it gets to its slot, and what a step computes.

Cells belong to the set of adapters with which they were computed: only sequences of the same set reuse them.

The methods run on the engine thread and apply their operations to the backend at once. The backend counts the cells.
"""

from __future__ import annotations

import itertools
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from .batch import Batch, BatchChunk
from .pace import Pace
from .protocols import CacheBackend, NoFreeCells
from .sequence import Sequence
from .values import Adapters

log = logging.getLogger("localchat.engine")


@dataclass(eq=False)
class SlotContent:
    """The tokens whose cells a slot has: those that a running sequence has computed, or an idle prefix."""

    adapters: Adapters  # The set of adapters with which the cells were computed.
    sequence: Sequence | None = None  # The running sequence; None: the prefix is idle.
    idle_tokens: list[int] = field(default_factory=list)  # The tokens of an idle prefix.
    last_use: int = 0  # Grows with each use of an idle prefix.
    # How many of the first cells are exact: they have the values that the prompt has when it is computed alone. See
    # docs/design.md, "Streams: cached prefixes".
    n_exact: int = 0

    @property
    def tokens(self) -> list[int]:
        """The tokens, of which the first `n_tokens` have cells."""
        sequence = self.sequence  # Read once: another thread reads this for the statistics.
        return self.idle_tokens if sequence is None else sequence.tokens

    @property
    def n_tokens(self) -> int:
        sequence = self.sequence
        return len(self.idle_tokens) if sequence is None else sequence.n_computed


class Candidate(NamedTuple):
    """A slot that has the first `n_common` tokens of a prompt, perhaps followed by others."""

    slot: int
    content: SlotContent
    n_common: int

    @property
    def is_active(self) -> bool:
        return self.content.sequence is not None

    @property
    def is_whole(self) -> bool:
        """Whether the slot has no other tokens."""
        return self.content.n_tokens == self.n_common


class Match(NamedTuple):
    """The first `length` tokens of a prompt, for which `slot` has cells."""

    slot: int
    length: int
    n_shared: int = 0  # How many of these cells stay in use by another running sequence.
    n_exact: int = 0  # How many of them are exact for the prompt (see `SlotContent`).


class KVCache(ABC):
    """The slots of one backend."""

    def __init__(self, backend: CacheBackend, clock: Callable[[], float] = time.perf_counter):
        self._backend, self._limits = backend, backend.limits
        # By slot: what its cells are of; None: the slot is free.
        self._contents: list[SlotContent | None] = [None] * self._limits.n_slots
        self._uses = itertools.count(1)
        self._pace = Pace(clock)

    # What the layouts decide.

    @abstractmethod
    def _best_match(self, sequence: Sequence, candidates: list[Candidate]) -> Match | None:
        """The prefix that a sequence reuses; None if there is none that is worth it."""

    @abstractmethod
    def _n_awaited(self, running: Sequence, sequence: Sequence, n_common: int) -> int:
        """See `n_awaited`. The sequences have `n_common` tokens in common, of which all may be reused."""

    @abstractmethod
    def plan(self, running: list[Sequence], *, others_wait: bool) -> Batch:
        """What the next step computes of the running sequences of one set of adapters, the oldest first.

        `others_wait`: whether sequences of another set wait for the end of the step (adapter_turns.py).
        """

    @abstractmethod
    def _slot_of_match(self, sequence: Sequence, match: Match) -> int | None:
        """A slot for a sequence, with the tokens of `match` alone: not active yet, but in `_contents`.

        It is the slot of the match, if that is idle, or another one that gets its cells. None if an error costs the
        prefix.
        """

    # What they have in common.

    def find(self, sequence: Sequence) -> Match | None:
        """The prefix that a sequence reuses; None if there is none."""
        if not sequence.reuses_prefixes:
            return None
        return self._best_match(sequence, self._candidates(sequence.reusable_tokens, sequence.adapters))

    def n_awaited(self, running: Sequence, sequence: Sequence) -> int:
        """How many tokens `sequence` can reuse if it waits until a running one has computed its prompt."""
        if running.adapters != sequence.adapters or not sequence.reuses_prefixes:
            return 0
        n_common = n_common_tokens(running.tokens, sequence.reusable_tokens)
        return self._n_awaited(running, sequence, n_common)

    @property
    def active(self) -> dict[int, Sequence]:
        """The running sequences by slot."""
        return {slot: content.sequence for slot, content in self._occupied() if content.sequence is not None}

    def _occupied(self) -> Iterator[tuple[int, SlotContent]]:
        """The slots that are not free, and their contents."""
        return ((slot, content) for slot, content in enumerate(self._contents) if content is not None)

    def _idle(self) -> list[tuple[int, SlotContent]]:
        """The slots with idle prefixes, the least recently used one first."""
        idle = [(slot, content) for slot, content in self._occupied() if content.sequence is None]
        return sorted(idle, key=lambda item: item[1].last_use)

    def n_cells(self) -> tuple[int, int]:
        """How many cells running sequences use, and how many idle prefixes. Any thread may call this.

        A cell that several share is counted for each of them, but both numbers together are at most the capacity.
        """
        contents = [content for content in list(self._contents) if content is not None]
        n_active = sum(content.n_tokens for content in contents if content.sequence is not None)
        n_idle = sum(len(content.idle_tokens) for content in contents)
        n_active = min(n_active, self._limits.n_cells)
        return n_active, min(n_idle, self._limits.n_cells - n_active)

    def acquire(self, sequence: Sequence, match: Match | None) -> None:
        """Give a sequence a slot that has the tokens of `match` and no others. Not all slots may be active."""
        slot = None if match is None else self._slot_of_match(sequence, match)
        if match is None or slot is None:
            slot, sequence.n_computed, sequence.n_shared = self._free_slot(), 0, 0
            content = SlotContent(sequence.adapters)
        else:
            sequence.n_computed, sequence.n_shared = match.length, match.n_shared
            content = self._content(slot)
        content.sequence, content.idle_tokens = sequence, []
        sequence.slot, self._contents[slot] = slot, content

    def decode(self, batch: Batch) -> None:
        """Compute a batch of running sequences, after the eviction of idle prefixes as far as it needs their cells.

        Raises NoFreeCells if all other cells are those of running sequences, or DecodeFailed.
        """
        while True:
            started = self._pace.clock()
            try:
                self._backend.decode(batch)
                break
            except NoFreeCells:
                if not self.evict():
                    raise
        self._pace.add(batch, self._pace.clock() - started)

    def advance(self, chunk: BatchChunk, n_kept: int) -> None:
        """Count the first `n_kept` tokens of a decoded chunk as computed.

        The others are rejected draft tokens, whose cells are freed.
        """
        sequence = chunk.sequence
        sequence.n_computed += n_kept
        if n_kept < chunk.n_tokens and not self._truncate(chunk.slot, sequence, sequence.n_computed):
            sequence.n_computed = sequence.n_shared = 0  # All of its tokens are computed again.

    def release(self, sequence: Sequence, *, keep: bool) -> None:
        """End the use of a slot. With `keep` its tokens become an idle prefix, if no other slot has them."""
        assert sequence.slot is not None
        slot, tokens = sequence.slot, sequence.tokens[: sequence.n_computed]
        content = self._content(slot)
        content.sequence = None
        sequence.slot, sequence.n_computed = None, 0
        twins = [twin for twin in self._candidates(tokens, sequence.adapters) if twin.n_common == len(tokens)]
        for twin in twins:
            self._use(twin.content)
        if keep and tokens and not twins:
            content.idle_tokens = tokens
            self._use(content)
        else:
            self._clear(slot)

    def evict(self) -> bool:
        """Drop the least recently used idle prefix. False if there is none."""
        idle = self._idle()
        if not idle:
            return False
        self._clear(idle[0][0])
        return True

    def forget(self) -> None:
        """Drop all idle prefixes."""
        while self.evict():
            pass

    def _candidates(self, tokens: list[int], adapters: Adapters) -> list[Candidate]:
        """The slots that have the first of these tokens, in cells that were computed with a set of adapters."""
        contents = [(slot, content) for slot, content in self._occupied() if content.adapters == adapters]
        numbers = (min(n_common_tokens(content.tokens, tokens), content.n_tokens) for _, content in contents)
        return [Candidate(slot, content, n) for (slot, content), n in zip(contents, numbers) if n]

    def _content(self, slot: int) -> SlotContent:
        content = self._contents[slot]
        assert content is not None, f"slot {slot} is free"
        return content

    def _use(self, content: SlotContent) -> None:
        """Let the other idle prefixes be evicted before this one."""
        content.last_use = next(self._uses)

    def _truncate(self, slot: int, sequence: Sequence, n_tokens: int) -> bool:
        """Free the cells of a slot behind the first tokens of a sequence. If the backend cannot, free all: False."""
        if self._backend.truncate(slot, sequence.position_of(n_tokens)):
            return True
        log.warning("the cells of slot %d cannot be truncated to %d tokens, which are computed again", slot, n_tokens)
        self._backend.clear(slot)
        self._content(slot).n_exact = 0
        return False

    def _free_slot(self) -> int:
        """The free slot nearest to an active one. If none is free, evict an idle prefix first.

        llama.cpp computes sequences that have their own cells in one pass if their slots are consecutive.
        """
        free = [slot for slot, content in enumerate(self._contents) if content is None]
        if not free:
            self.evict()
            return self._free_slot()
        active = self.active
        return min(free, key=lambda slot: (min((abs(slot - other) for other in active), default=0), slot))

    def _clear(self, slot: int) -> None:
        self._backend.clear(slot)
        self._contents[slot] = None


def n_common_tokens(first: list[int], second: list[int]) -> int:
    """How many tokens two lists have in common at their start: an exponential search by slices."""
    low, high, most = 0, 0, min(len(first), len(second))
    while low == high < most:
        high = min(2 * high + 32, most)
        if first[low:high] == second[low:high]:
            low = high
    while low < high - 1:
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low
