"""The JSON of OpenAI's API, with the variants that other servers send: numbers, lists, usage. No I/O."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

from ..events import Usage

Json = dict[str, Any]

_INTEGER = re.compile("-?[0-9]{1,18}")  # Python refuses to parse very long ones.

_MAX_SENT_DEPTH = 100  # Of values that the next request has to contain, if they cannot be written as they are.

# The fields of token counts, in the order of their precedence; a dot leads to a field of an object. A zero does not
# hide a count in a later field.
_INPUT_NAMES = "prompt_tokens input_tokens prompt_eval_count"
_OUTPUT_NAMES = "completion_tokens output_tokens eval_count"
_CACHED_NAMES = (
    "prompt_tokens_details.cached_tokens input_tokens_details.cached_tokens prompt_cache_hit_tokens "
    "cache_read_input_tokens cached_tokens"
)
_REASONING_NAMES = "completion_tokens_details.reasoning_tokens output_tokens_details.reasoning_tokens reasoning_tokens"


def dump(value: Any) -> str:
    """The value as JSON."""
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:  # JSON can be parsed at a depth at which it cannot be written.
        return "JSON that is nested too deeply"


def sendable(value: Any, warn: Callable[[str], object]) -> Any:
    """A value that the next request has to contain. What JSON cannot hold is replaced by null, with a warning."""
    try:
        json.dumps(value, allow_nan=False)
        return value
    except (ValueError, RecursionError):
        warn("a field for the next request had NaN, infinity or too many levels, which JSON cannot hold: null is sent")
        return _with_nulls(value, 0)


def _with_nulls(value: Any, depth: int) -> Any:
    if depth >= _MAX_SENT_DEPTH or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, dict):
        return {name: _with_nulls(item, depth + 1) for name, item in value.items()}
    return [_with_nulls(item, depth + 1) for item in value] if isinstance(value, list) else value


def find_usage(payload: Json) -> Usage | None:
    """The usage of a payload: at the top, in `x_groq` (Groq), in a choice (Moonshot), or the whole payload (Ollama)."""
    best: Usage | None = None
    places = as_list(payload.get("choices"))
    if "usage" in payload or "x_groq" in payload:
        places = [payload, payload.get("x_groq"), *places]
    for place in places:
        usage = place.get("usage") if isinstance(place, dict) else None
        if usage and isinstance(usage, dict) and (best is None or not best.total_tokens):
            best = _parse_usage(usage)
    is_usage = best is None and ("eval_count" in payload or "prompt_eval_count" in payload)
    return _parse_usage(payload) if is_usage else best


def _parse_usage(raw: Json) -> Usage:
    n_input, n_output = _count(raw, _INPUT_NAMES) or 0, _count(raw, _OUTPUT_NAMES) or 0
    n_cached, n_reasoning = _count(raw, _CACHED_NAMES), _count(raw, _REASONING_NAMES)
    return Usage(n_input, n_output, _count(raw, "total_tokens") or n_input + n_output, n_cached, n_reasoning, raw)


def _count(raw: Json, names: str) -> int | None:
    """The first non-zero count in these fields; 0 if all counts are zero, None if there is none."""
    count = None
    for name in names.split():
        value: Any = raw
        for step in name.split("."):
            value = value.get(step) if isinstance(value, dict) else None
        number = as_integer(value)
        if number:
            return number
        count = number if count is None else count
    return count


def as_integer(value: Any) -> int | None:
    """An integer that a server may write as 1, 1.0 or "1"; None for anything else, such as 1.5, NaN or true."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        return int(value)
    return value if type(value) is int else None


def as_list(value: Any) -> list[Any]:
    """The list; an object (which some servers send in place of a list of one) as a list of one; else an empty list."""
    if isinstance(value, list):
        return value
    return [value] if isinstance(value, dict) else []


def non_blank(value: Any) -> str | None:
    """The text if it is not blank, else None: some servers send "" in place of null."""
    return value if isinstance(value, str) and value.strip() else None
