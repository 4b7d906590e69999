"""The bytes of all tokens of a model, as a value that another process can use."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate


class TokenTexts:
    """The bytes of all tokens of a model, and which tokens are special. The server's process gets this once."""

    def __init__(self, pieces: Sequence[bytes], hidden: frozenset[int], ends: frozenset[int]) -> None:
        """
        Args:
            pieces: The bytes of each token.
            hidden: Control tokens, whose text is empty unless it is requested.
            ends: End-of-generation tokens.
        """
        self._bytes = b"".join(pieces)
        self._stops = array("I", accumulate(map(len, pieces), initial=0))
        self._hidden = hidden
        self._ends = ends

    def piece(self, token: int, special: bool = False) -> bytes:
        if not 0 <= token < len(self._stops) - 1:
            raise ValueError(f"token ids go from 0 to {len(self._stops) - 2}, not {token}")
        if token in self._hidden and not special:
            return b""
        return self._bytes[self._stops[token] : self._stops[token + 1]]

    def is_end(self, token: int) -> bool:
        return token in self._ends
