"""Snapshots: the states of sequences, copied out of the KV cache into memory, by their tokens. Pure.

Of a KV cache that can be cut, a snapshot is taken when an idle prefix is evicted, and restored for a request that
begins with it. The state of a recurrent or hybrid model cannot be cut, so of a conversation that goes on differently
nothing can be used; there a snapshot is taken before the last token of each prompt, where the conversation's next
turn begins.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from .prefix import n_common_of
from .state_files import Data

# A recurrent state is some MB whatever its length; others take 10 to 200 KB a token.
DEFAULT_SNAPSHOT_BYTES = 1 << 30


class Snapshots:
    """States by their tokens, within `max_bytes`; the least recently used are dropped first.

    If the KV cache can be cut, the beginning of a snapshot can be used as well.
    """

    def __init__(self, max_bytes: int = DEFAULT_SNAPSHOT_BYTES, *, can_cut: bool):
        self.max_bytes = max_bytes
        self._can_cut = can_cut
        self._n_bytes = 0
        self._snapshots: OrderedDict[tuple[int, ...], Data] = OrderedDict()

    def add(self, tokens: Sequence[int], data: Data) -> None:
        if len(data) > self.max_bytes:  # all others would go in vain
            return
        key = tuple(tokens)
        self._drop(key)
        if self._can_cut:
            for part in [other for other in self._snapshots if other == key[: len(other)]]:
                self._drop(part)
        self._n_bytes += len(data)
        self._snapshots[key] = data
        while self._n_bytes > self.max_bytes:
            self._drop(next(iter(self._snapshots)))

    def n_known(self, tokens: Sequence[int]) -> int:
        """How many of the tokens, from the first one on, the best copy can give."""
        return self._best(tuple(tokens))[1]

    def find(self, tokens: Sequence[int], n_least: int = 1) -> tuple[list[int], Data] | None:
        """The copy that gives most of the tokens, with its own; None if that are fewer than `n_least`."""
        best, n_known = self._best(tuple(tokens))
        if n_known < n_least:
            return None
        self._snapshots.move_to_end(best)
        return list(best), self._snapshots[best]

    def clear(self) -> None:
        self._snapshots.clear()
        self._n_bytes = 0

    def _best(self, tokens: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        """Of copies that give the same the shortest."""
        known = ((key, n_common_of(key, tokens, 0)) for key in self._snapshots)
        usable = ((key, n) for key, n in known if self._can_cut or n == len(key))
        return max(usable, key=lambda found: (found[1], -len(found[0])), default=((), 0))

    def _drop(self, key: tuple[int, ...]) -> None:
        self._n_bytes -= len(self._snapshots.pop(key, b""))
