"""Encodes the JSON of responses, and decodes that of requests. The size of a body is limited where it is read."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

# A shared encoder: json.dumps with options would build one for each call. It writes no white space, leaves non-ASCII
# characters as they are, and refuses NaN.
to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode

MAX_CONTAINERS = 500_000
"""The limit of lists and objects in a text: an empty one takes two characters, and 60 bytes of memory."""

# The limit of digits in an integer: the time that Python takes to convert one is quadratic. The largest double has 309
# digits.
_MAX_INTEGER_DIGITS = 300


def json_bytes(value: Any) -> bytes:
    """Encode a value as JSON in UTF-8."""
    return to_json(value).encode("utf-8", "replace")


def decode_json(text: str) -> Any:
    """Decode a JSON text. Unlike Python's json, this refuses NaN, infinities and numbers beyond a double.

    Raises:
        ValueError: The text is not JSON, or has too many lists and objects.
        RecursionError: The text is nested too deeply.
    """
    # Brackets in strings count as well: a body of text has far fewer.
    n_containers = text.count("[") + text.count("{")
    if n_containers > MAX_CONTAINERS:
        raise ValueError(f"it has {n_containers} opening brackets, the limit is {MAX_CONTAINERS}")
    return _DECODER.decode(text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _parse_float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"the number {digits[:60]} is too large")
    return value


def _parse_int(digits: str) -> int:
    if len(digits) > _MAX_INTEGER_DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits is too large")
    return int(digits)


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_parse_float, parse_int=_parse_int)
