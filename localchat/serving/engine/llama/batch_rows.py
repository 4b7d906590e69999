"""The input of `llama_decode`: a `llama_batch` whose arrays are reused."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence

from .library import L


class BatchRows:
    """The arrays of a `llama_batch`, allocated once. A step clears it, adds its rows, and decodes `batch`."""

    def __init__(self, n_rows: int, n_ids: int):
        """Allocate the arrays for `n_rows` tokens, each of which belongs to `n_ids` sequences of llama.cpp."""
        self._n_ids = n_ids
        self._tokens = (L.llama_token * n_rows)()
        self._positions = (L.llama_pos * n_rows)()
        self._ids = (L.llama_seq_id * (n_rows * n_ids))()
        self._outputs = (ctypes.c_int8 * n_rows)()
        self._counts = (ctypes.c_int32 * n_rows)(*[n_ids] * n_rows)
        pointer = ctypes.POINTER(L.llama_seq_id)
        size = ctypes.sizeof(L.llama_seq_id) * n_ids
        start = ctypes.addressof(self._ids)
        # The list of row i begins at _ids[i * n_ids].
        self._id_lists = (pointer * n_rows)(*[ctypes.cast(start + row * size, pointer) for row in range(n_rows)])
        self.batch = L.llama_batch(
            n_tokens=0,
            token=self._tokens,
            embd=None,
            pos=self._positions,
            n_seq_id=self._counts,
            seq_id=self._id_lists,
            logits=self._outputs,
        )

    def clear(self) -> None:
        self.batch.n_tokens = 0

    def add(self, ids: Sequence[int], position: int, tokens: Sequence[int], with_output: Iterable[int] = ()) -> None:
        """Add a row for each token, at consecutive positions of the sequences `ids`.

        `with_output` are the indexes of the tokens whose logits or vectors are computed.
        """
        first, n_tokens = self.batch.n_tokens, len(tokens)
        end = first + n_tokens
        self._tokens[first:end] = tokens
        self._positions[first:end] = range(position, position + n_tokens)
        self._ids[first * self._n_ids : end * self._n_ids] = [*ids] * n_tokens
        self._outputs[first:end] = [0] * n_tokens
        for i in with_output:
            self._outputs[first + i] = 1
        self.batch.n_tokens = end
