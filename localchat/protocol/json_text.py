"""JSON as the server writes it: without white space, characters as they are, never NaN."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

# One encoder for all: json.dumps with options builds a new one for each call.
to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode

# Containers are split to this depth, at which the lists of all large bodies are: embeddings, logprobs.
_SPLIT_LEVELS = 6


def json_bytes(value: Any) -> bytes:
    """The text of `to_json` in UTF-8, encoded in pieces.

    The encoder holds the interpreter lock: a body of two million numbers at once would hold up the engine thread for
    a second.
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
