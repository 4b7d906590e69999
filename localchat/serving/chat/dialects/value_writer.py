"""Writes the values of arguments in a notation: JSON, or that of Gemma 4 or LFM2. `values.py` reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Callable

from .values import GEMMA_QUOTE, NAME


def written_value(value: Any, notation: str) -> str:
    """A value in one of the notations "json", "gemma" and "python"."""
    return _WRITERS[notation](value)


def _gemma(value: Any) -> str:
    """A value in the notation of Gemma 4. A string with its quote is JSON."""
    if isinstance(value, str) and GEMMA_QUOTE not in value:
        return GEMMA_QUOTE + value + GEMMA_QUOTE
    if isinstance(value, dict):
        pairs = (f"{_gemma_key(key)}:{_gemma(value[key])}" for key in sorted(value, key=str.lower))
        return "{" + ",".join(pairs) + "}"
    return "[" + ",".join(map(_gemma, value)) + "]" if isinstance(value, list) else _json(value)


def _gemma_key(key: str) -> str:
    """The name of a field, with quotes if the parser needs them."""
    return key if key and key == key.strip() and NAME.fullmatch(key) else _json(key)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


_WRITERS: Mapping[str, Callable[[Any], str]] = {
    "json": _json,
    # The strings, lists and objects of LFM2's template are JSON.
    "python": lambda value: repr(value) if value is None or isinstance(value, bool) else _json(value),
    "gemma": _gemma,
}
