"""Candidates of a sampler chain: arrays of llama_token_data, and a fast search for the likeliest tokens (numpy)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from .library import L, pointer_to

CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])

# The fast search first compares the maxima of columns of this many logits. It takes a fifth of the time of a partition.
_COLUMN = 64


def is_quick(n_logits: int, n: int) -> bool:
    """Whether the fast search can be used for the `n` largest."""
    return n_logits // _COLUMN > 4 * n


def largest(logits: Any, n: int) -> Any:
    """The indexes of the `n` largest logits, and perhaps of some of the next ones."""
    found = largest_of_rows(logits[None], n)[0] if is_quick(len(logits), n) else None
    return np.argpartition(logits, -n)[-n:] if found is None else found


def largest_of_rows(logits: Any, n: int) -> list[Any]:
    """As `largest` for each row [rows, tokens], by the fast search; None for a row with too many equal logits."""
    n_rows, n_logits = logits.shape
    n_columns = n_logits // _COLUMN
    row_step, step = logits.strides
    columns = as_strided(logits, (n_rows, _COLUMN, n_columns), (row_step, n_columns * step, step), writeable=False)
    # `least` is the n-th largest maximum of a column, so at least n logits are as large. They are all in columns with
    # such a maximum, or among the logits after the last column.
    highest = columns.max(axis=1)
    least = np.partition(highest, -n, axis=1)[:, -n, None]
    rows, among = np.nonzero(highest >= least)
    found, places = np.nonzero(columns[rows, :, among] >= least[rows])
    rows, ids = rows[found], places * n_columns + among[found]
    n_in_columns = n_columns * _COLUMN
    if n_in_columns < n_logits:
        rest_rows, rest = np.nonzero(logits[:, n_in_columns:] >= least)
        rows, ids = np.concatenate((rows, rest_rows)), np.concatenate((ids, rest + n_in_columns))
        order = np.argsort(rows, kind="stable")
        rows, ids = rows[order], ids[order]
    parts = np.split(ids, np.searchsorted(rows, np.arange(1, n_rows)))
    return [part if len(part) <= 4 * n else None for part in parts]


def with_others(ids: Any, others: Any) -> Any:
    """The ids of both arrays."""
    return np.union1d(ids, others) if len(others) else ids


def candidates(ids: Any, logits: Any) -> Any:
    """An array of llama_token_data."""
    made = np.empty(len(ids), CANDIDATE)
    made["id"], made["logit"], made["p"] = ids, logits, 0
    return made


def token_array(data: Any) -> Any:
    """A llama_token_data_array that points to candidates, which must outlive it."""
    return L.llama_token_data_array(
        data=pointer_to(data, L.llama_token_data), size=len(data), selected=-1, sorted=False
    )
