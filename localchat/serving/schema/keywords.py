"""The keywords of a prepared schema that no grammar enforces.

`unenforced` reads one schema, without those inside it. Each function of `_KEYWORDS` returns why a keyword is not
enforced, or "".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Callable

from .compiler import has_other_names, is_empty, json_rule
from .patterns import too_long
from .prepare import MAX_INTEGER
from .types import possible_types
from .walk import Schema, is_pointer


def unenforced(schema: Schema, *, is_lenient: bool) -> Iterator[tuple[str, str]]:
    """The keywords of a schema that are not enforced, each with the reason; "" for several keywords together.

    With `is_lenient`, those that llguidance ignores in its lenient mode are left out.
    """
    for keyword in filter(schema.__contains__, _KEYWORDS):
        reason = _KEYWORDS[keyword](keyword, schema, is_lenient)
        if reason:
            yield keyword, reason
    number = _inexact(schema)
    if number is not None:
        yield "", f"{number} is beyond 2^53, so it would be rounded"
    if _has_near_bounds(schema):
        yield "", "an exclusive bound that is less than 1 from the other bound is not supported"


# --- the functions that refuse a keyword ---


def _unsupported(keyword: str, schema: Schema, is_lenient: bool) -> str:
    return "" if is_lenient else f"'{keyword}' is not supported"


def _reference(keyword: str, schema: Schema, is_lenient: bool) -> str:
    """Refuse a reference that is no JSON pointer: the checks do not follow it, and llguidance may."""
    return "" if is_pointer(schema[keyword]) else "only a JSON pointer or an '$anchor' of the same schema is supported"


def _min_properties(keyword: str, schema: Schema, is_lenient: bool) -> str:
    least, required = schema[keyword], schema.get("required", ())
    names = schema.get("properties", {}).keys() | set(required)
    if schema.get("additionalProperties", True) is False and not schema.get("patternProperties"):
        return f"it is {least}, and the number of possible names is {len(names)}" if least > len(names) else ""
    if least <= len(required) + 1 or is_lenient:
        return ""
    return "2 or more can only be enforced for names that are listed"


def _pattern(keyword: str, schema: Schema, is_lenient: bool) -> str:
    length = too_long(schema[keyword])
    return f"it has {length}" if length else ""


def _pattern_properties(keyword: str, schema: Schema, is_lenient: bool) -> str:
    """Refuse a pattern that matches no name beside the listed ones, or patterns that match all names."""
    patterns, listed = schema[keyword], dict.fromkeys(schema.get("properties", ()), False)
    length = too_long(max(patterns, key=len, default=""))
    if length:
        return f"a pattern has {length}"
    tests = [{keyword: {pattern: True}, "additionalProperties": False} for pattern in patterns]
    if patterns and has_other_names(schema):
        tests.append({keyword: dict.fromkeys(patterns, False), "additionalProperties": True})
    for test in tests:
        tested = {"type": "object", "properties": listed, "minProperties": 1, **test}
        if is_empty("start: " + json_rule(tested), '{"'):
            return "a pattern matches only names that are in 'properties', or all"
    return ""


# Keywords that no grammar enforces.
_NOT_ENFORCED = (
    "$dynamicRef", "$recursiveRef", "contains", "dependencies", "dependentRequired", "dependentSchemas", "else", "if",
    "maxContains", "minContains", "not", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
    "uniqueItems",
)  # fmt: skip
_KEYWORDS: Mapping[str, Callable[[str, Schema, bool], str]] = {
    **dict.fromkeys(_NOT_ENFORCED, _unsupported),
    "$ref": _reference,
    "minProperties": _min_properties,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
}


# --- numbers, whose bounds are keywords together ---

_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


def _inexact(schema: Schema) -> float | None:
    """A bound, or an integer in a listed value, that llguidance would round; None if there is none."""
    bounds = [schema[keyword] for keyword in _BOUNDS if keyword in schema]
    large = next((bound for bound in bounds if abs(bound) > MAX_INTEGER), None)
    stack = [schema.get("const"), schema.get("enum")]
    while large is None and stack:
        value = stack.pop()
        if isinstance(value, (dict, list)):
            stack += value.values() if isinstance(value, dict) else value
        elif isinstance(value, int) and abs(value) > MAX_INTEGER:
            large = value
    return large


def _has_near_bounds(schema: Schema) -> bool:
    """Whether a whole number is an exclusive bound near the other one: llguidance includes it."""
    if possible_types(schema) == {"integer"}:
        return False
    lows, highs = _bounds_of(schema, "Minimum"), _bounds_of(schema, "Maximum")
    if not lows or not highs:
        return False
    # The narrower bound of each side counts, the exclusive one of two equal ones.
    low, excludes_low = max(lows)
    high, excludes_high = min(highs, key=lambda bound: (bound[0], not bound[1]))
    is_whole = (excludes_low and low % 1 == 0) or (excludes_high and high % 1 == 0)
    return is_whole and 0 < high - low < 1


def _bounds_of(schema: Schema, name: str) -> list[tuple[float, bool]]:
    """The bounds of one side of a schema, each with whether it is exclusive."""
    exclusive, bound = schema.get(f"exclusive{name}", False), schema.get(name.lower())
    # In draft 4, a boolean makes the other bound exclusive.
    is_exclusive = exclusive is True
    bounds = [] if bound is None else [(bound, is_exclusive)]
    return bounds if isinstance(exclusive, bool) else [*bounds, (exclusive, True)]
