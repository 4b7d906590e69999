"""Encodes JSON for responses: without white space and without escapes for non-ASCII characters; NaN is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

# A shared encoder: json.dumps with options would build one for each call.
to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode

# Lists and objects are encoded in pieces down to this depth, which includes the long lists of embeddings and logprobs.
_SPLIT_LEVELS = 6


def json_bytes(value: Any) -> bytes:
    """Encode a value as JSON in UTF-8, piece by piece.

    The encoder holds the GIL. Encoding two million numbers in one call would delay the engine thread by a second.
    """
    return "".join(_pieces(value, _SPLIT_LEVELS)).encode("utf-8", "replace")


def _pieces(value: Any, n_levels: int) -> Iterator[str]:
    if n_levels and value and isinstance(value, dict):
        start = "{"
        for name, item in value.items():
            yield f"{start}{to_json(name)}:"
            yield from _pieces(item, n_levels - 1)
            start = ","
        yield "}"
    elif n_levels and value and isinstance(value, (list, tuple)) and isinstance(value[0], (dict, list, tuple)):
        start = "["
        for item in value:
            yield start
            yield from _pieces(item, n_levels - 1)
            start = ","
        yield "]"
    else:
        yield to_json(value)
