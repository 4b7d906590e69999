"""Decodes the JSON of request bodies. A large body is decoded in slices, so that other threads do not wait for long.

The C decoder of the json module holds the GIL until it is done: a second for 3 MB of empty lists. A large body is
therefore decoded by json's decoder in Python, with callbacks that count the values and pause after each slice.
"""

from __future__ import annotations

import json
import json.decoder
import json.scanner
import math
from collections.abc import Callable
from typing import Any, NoReturn

from . import time_slices

# The limits of a text for the C decoder: characters, and lists and objects. At these limits it takes some milliseconds.
# Decoding in slices takes up to forty times as long.
_SMALL_CHARS = 1 << 20
_SMALL_CONTAINERS = 20_000
# The size of a slice: about a millisecond of work.
_SLICE_VALUES = 1000

MAX_VALUES = 1_000_000
"""The limit of values in a body; a list or object counts as four. Freeing the values holds the GIL as well."""
_CONTAINER_VALUES = 4

# The limit of digits in an integer: the time that Python takes to convert one is quadratic. The largest double has 309
# digits.
_MAX_INTEGER_DIGITS = 300
_SHOWN_DIGITS = 60


def decode_json(text: str) -> Any:
    """Decode a JSON text. Unlike Python's json, this refuses NaN, infinities and numbers beyond a double.

    Raises:
        ValueError: The text is not JSON, or has too many values.
        RecursionError: The text is nested too deeply.
    """
    if len(text) <= _SMALL_CHARS and text.count("[") + text.count("{") <= _SMALL_CONTAINERS:
        return _DECODER.decode(text)
    values = _CountedValues()
    decoder = json.JSONDecoder(
        parse_constant=_refuse_constant,
        parse_float=values.counted(_parse_float),
        parse_int=values.counted(_parse_int),
    )
    # json's scanner in Python calls these attributes of the decoder; the C scanner ignores them.
    parts: Any = decoder
    parts.parse_string = values.counted(json.decoder.scanstring)  # type: ignore[attr-defined]  # not in typeshed
    parts.parse_array = values.counted(json.decoder.JSONArray, _CONTAINER_VALUES)  # type: ignore[attr-defined]
    parts.parse_object = values.counted(json.decoder.JSONObject, _CONTAINER_VALUES)  # type: ignore[attr-defined]
    parts.scan_once = json.scanner.py_make_scanner(decoder)  # type: ignore[attr-defined]
    with time_slices.working:
        return decoder.decode(text)


class _CountedValues:
    """Counts the values of a text, and pauses after each slice. A text with too many values is refused."""

    def __init__(self) -> None:
        self._n = 0
        self._pause_at = _SLICE_VALUES

    def counted(self, parse: Callable[..., Any], n_values: int = 1) -> Callable[..., Any]:
        """Wrap `parse` so that each call counts as `n_values` values."""

        def parse_and_count(*args: Any) -> Any:
            self._n += n_values
            if self._n >= self._pause_at:
                self._pause()
            return parse(*args)

        return parse_and_count

    def _pause(self) -> None:
        if self._n > MAX_VALUES:
            raise ValueError(f"it has more than {MAX_VALUES} values (a list or object counts as four)")
        self._pause_at = self._n + _SLICE_VALUES
        time_slices.pause()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _parse_float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"the number {digits[:_SHOWN_DIGITS]} is too large")
    return value


def _parse_int(digits: str) -> int:
    if len(digits) > _MAX_INTEGER_DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits is too large")
    return int(digits)


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_parse_float, parse_int=_parse_int)
