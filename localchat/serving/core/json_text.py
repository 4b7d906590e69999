"""Encodes JSON for responses: without white space and without escapes for non-ASCII characters; NaN is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

# A shared encoder: json.dumps with options would build one for each call.
to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode

# Responses are encoded in pieces down to this depth, which includes the long lists of embeddings and logprobs.
_RESPONSE_LEVELS = 6
# The depth for schemas and tools in requests. A more deeply nested part is one piece.
_REQUEST_LEVELS = 60
# The number of numbers or short texts in a piece, which takes less than a millisecond to encode.
_SLICE = 2000


def json_text(value: Any) -> str:
    """Encode a value as JSON, piece by piece.

    The encoder holds the GIL. Encoding two million numbers in one call would delay the engine thread by a second.
    """
    return "".join(_pieces(value, _RESPONSE_LEVELS))


def json_bytes(value: Any) -> bytes:
    """Encode a value as JSON in UTF-8, piece by piece."""
    return json_text(value).encode("utf-8", "replace")


def is_longer(value: Any, n_chars: int) -> bool:
    """Whether the JSON text of a value has more than `n_chars` characters. Encoding stops at this length."""
    n_left = n_chars
    for piece in _pieces(value, _REQUEST_LEVELS):
        n_left -= len(piece)
        if n_left < 0:
            return True
    return False


def _pieces(value: Any, n_levels: int) -> Iterator[str]:
    if n_levels and value and isinstance(value, dict):
        start = "{"
        for name, item in value.items():
            yield f"{start}{to_json(name)}:"
            yield from _pieces(item, n_levels - 1)
            start = ","
        yield "}"
    # Test the last item: in `prompt_logprobs` the first one is null.
    elif n_levels and value and isinstance(value, (list, tuple)) and isinstance(value[-1], (dict, list, tuple)):
        start = "["
        for item in value:
            yield start
            yield from _pieces(item, n_levels - 1)
            start = ","
        yield "]"
    elif isinstance(value, (list, tuple)) and len(value) > _SLICE:
        start = "["
        for i in range(0, len(value), _SLICE):
            yield start + to_json(value[i : i + _SLICE])[1:-1]
            start = ","
        yield "]"
    else:
        yield to_json(value)
