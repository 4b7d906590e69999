"""Copies of what the memory held, kept outside of it. Pure.

Two things are kept so. A memory that cannot be cut (recurrent, hybrid) knows only where it is: of a
conversation that goes on otherwise than it stands there, nothing is of use; a copy taken just before the
answer is, to the next turn and to who asks the same again. And prefixes that were evicted are restored from here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from .prefix import n_common_of
from .state_files import Data

# A recurrent state is some MB whatever its length; others take 10 to 200 KB a token.
DEFAULT_BYTES = 1 << 30


class Copies:
    """Copies by their tokens, within `max_bytes`; the least recently used go first.

    Of a memory that can be cut the beginning of a copy is of use, too.
    """

    def __init__(self, max_bytes: int = DEFAULT_BYTES, *, can_cut: bool):
        self.max_bytes = max_bytes
        self._can_cut = can_cut
        self._n_bytes = 0
        self._copies: OrderedDict[tuple[int, ...], Data] = OrderedDict()

    def add(self, tokens: Sequence[int], data: Data) -> None:
        if len(data) > self.max_bytes:  # all others would go in vain
            return
        key = tuple(tokens)
        self._drop(key)
        if self._can_cut:
            for part in [other for other in self._copies if other == key[: len(other)]]:
                self._drop(part)
        self._n_bytes += len(data)
        self._copies[key] = data
        while self._n_bytes > self.max_bytes:
            self._drop(next(iter(self._copies)))

    def n_known(self, tokens: Sequence[int]) -> int:
        """How many of the tokens, from the first one on, the best copy can give."""
        return self._best(tuple(tokens))[1]

    def find(self, tokens: Sequence[int], n_least: int = 1) -> tuple[list[int], Data] | None:
        """The copy that gives most of the tokens, with its own; None if that are fewer than `n_least`."""
        best, n_known = self._best(tuple(tokens))
        if n_known < n_least:
            return None
        self._copies.move_to_end(best)
        return list(best), self._copies[best]

    def clear(self) -> None:
        self._copies.clear()
        self._n_bytes = 0

    def _best(self, tokens: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        """Of copies that give the same the shortest."""
        known = ((key, n_common_of(key, tokens, 0)) for key in self._copies)
        usable = ((key, n) for key, n in known if self._can_cut or n == len(key))
        return max(usable, key=lambda found: (found[1], -len(found[0])), default=((), 0))

    def _drop(self, key: tuple[int, ...]) -> None:
        self._n_bytes -= len(self._copies.pop(key, b""))
