"""JSON as the server writes it: without white space, characters as they are, never NaN."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

# One encoder for all: json.dumps with options builds a new one for each call.
to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode

# Containers are split to this depth, at which the lists of all large bodies are: embeddings, logprobs.
_SPLIT_LEVELS = 6
# Deeper than any schema is: requests of more levels are refused before, or encoded in a larger piece.
_ALL_LEVELS = 60
# So many numbers or short texts are encoded at once, in less than a millisecond.
_SLICE = 2000


def json_text(value: Any) -> str:
    """The text of `to_json`, encoded in pieces.

    The encoder holds the interpreter lock: a body of two million numbers at once would hold up the engine thread for
    a second.
    """
    return "".join(_pieces(value, _SPLIT_LEVELS))


def json_bytes(value: Any) -> bytes:
    """The same in UTF-8."""
    return json_text(value).encode("utf-8", "replace")


def is_longer(value: Any, n_chars: int) -> bool:
    """Whether the JSON text of a value has more characters; encodes no more of it than that."""
    n_left = n_chars
    for piece in _pieces(value, _ALL_LEVELS):
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
    # The first item alone may be null: nothing precedes the first token of a prompt.
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
