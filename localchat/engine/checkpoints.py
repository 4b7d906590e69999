"""Copies of the memory at the ends of prompts, for memories that cannot be cut back to them. Pure.

Such a memory (recurrent, hybrid) knows only where it is: of a conversation that goes on otherwise than
it stands there, nothing is of use. A copy taken just before the answer is, to the next turn and to who
asks the same again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Optional

from .state_files import Data

# A recurrent state is some MB whatever its length; a hybrid one grows with it.
MAX_BYTES = 1 << 30


class Checkpoints:
    """Copies by their tokens, within `max_bytes`; the least recently used go first."""

    def __init__(self, max_bytes: int = MAX_BYTES):
        self._max_bytes = max_bytes
        self._n_bytes = 0
        self._copies: OrderedDict[tuple[int, ...], Data] = OrderedDict()

    def add(self, tokens: Sequence[int], data: Data) -> None:
        key = tuple(tokens)
        self._n_bytes += len(data) - len(self._copies.pop(key, b""))
        self._copies[key] = data
        while self._n_bytes > self._max_bytes:
            _, dropped = self._copies.popitem(last=False)
            self._n_bytes -= len(dropped)

    def find(self, tokens: Sequence[int]) -> Optional[tuple[list[int], Data]]:
        """The longest copy that `tokens` begin with, and its tokens."""
        whole = tuple(tokens)
        fitting = [key for key in self._copies if len(key) <= len(whole) and key == whole[: len(key)]]
        if not fitting:
            return None
        best = max(fitting, key=len)
        self._copies.move_to_end(best)
        return list(best), self._copies[best]

    def clear(self) -> None:
        self._copies.clear()
        self._n_bytes = 0
