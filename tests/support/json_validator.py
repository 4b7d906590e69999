"""Validates JSON texts against a schema, to test grammars, with the client's validator, which shares no code with them.

Numbers are parsed as doubles.
"""

import json
import sys
from typing import Any

from localchat.schema import validator


def load(text: str) -> Any:
    """JSON; raises ValueError for NaN and Infinity, and for duplicate names."""
    return json.loads(text, parse_constant=_refuse, parse_float=_number, object_pairs_hook=_pairs)


def _refuse(name: str) -> Any:
    raise ValueError(name)


def _number(text: str) -> float:
    """A number of JSON text; the largest double in place of a larger number, such as 1e999, which JSON allows."""
    return max(-sys.float_info.max, min(sys.float_info.max, float(text)))


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a name comes twice")
    return dict(pairs)


def is_valid(text: str, schema: Any) -> bool:
    try:
        value = load(text)
    except ValueError:
        return False
    return not any(validator.validation_errors(value, schema))
