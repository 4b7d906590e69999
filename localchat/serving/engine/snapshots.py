"""Snapshots: states of sequences, copied from the KV cache to memory, by their tokens. Pure.

If the KV cache can be truncated, a snapshot is taken when an idle prefix is evicted, and restored for a request that
begins with it. The state of a recurrent or hybrid model cannot be truncated: only a request that begins with all of its
tokens can use it. So a snapshot is taken before the last token of each prompt, since the next turn of a conversation
begins with these tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from .prefix import n_common_of
from .state_files import Data

# A recurrent state takes a few MB for any number of tokens; other states take 10 to 200 KB per token.
DEFAULT_SNAPSHOT_BYTES = 1 << 30


class Snapshots:
    """States by their tokens, within `max_bytes`; the least recently used are dropped first.

    With `can_truncate` the beginning of a snapshot can be used as well.
    """

    def __init__(self, max_bytes: int = DEFAULT_SNAPSHOT_BYTES, *, can_truncate: bool):
        self.max_bytes = max_bytes
        self._can_truncate = can_truncate
        self._n_bytes = 0
        self._snapshots: OrderedDict[tuple[int, ...], Data] = OrderedDict()

    def add(self, tokens: Sequence[int], data: Data) -> None:
        """Adds a snapshot, unless it is larger than the limit. With `can_truncate`, drops those of its prefixes."""
        if len(data) > self.max_bytes:  # It would be dropped at once, and all others before it.
            return
        key = tuple(tokens)
        self._drop(key)
        if self._can_truncate:
            for part in [other for other in self._snapshots if other == key[: len(other)]]:
                self._drop(part)
        self._n_bytes += len(data)
        self._snapshots[key] = data
        while self._n_bytes > self.max_bytes:
            self._drop(next(iter(self._snapshots)))

    def n_known(self, tokens: Sequence[int]) -> int:
        """How many of the first tokens are in the best snapshot."""
        return self._best(tuple(tokens))[1]

    def find(self, tokens: Sequence[int], n_least: int = 1) -> tuple[list[int], Data] | None:
        """The tokens and the data of the best snapshot; None if it has fewer than `n_least` of the first tokens."""
        best, n_known = self._best(tuple(tokens))
        if n_known < n_least:
            return None
        self._snapshots.move_to_end(best)
        return list(best), self._snapshots[best]

    def clear(self) -> None:
        self._snapshots.clear()
        self._n_bytes = 0

    def _best(self, tokens: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        """The snapshot with the most tokens in common, the shortest of equal ones, and the number of these tokens."""
        known = ((key, n_common_of(key, tokens)) for key in self._snapshots)
        usable = ((key, n) for key, n in known if self._can_truncate or n == len(key))
        return max(usable, key=lambda found: (found[1], -len(found[0])), default=((), 0))

    def _drop(self, key: tuple[int, ...]) -> None:
        self._n_bytes -= len(self._snapshots.pop(key, b""))
