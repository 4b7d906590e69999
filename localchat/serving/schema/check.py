"""Checks that a JSON Schema is well-formed: the value of each keyword, and the targets of its references."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable

from ..core.fields import show
from .walk import LISTS, MAPS, is_pointer, subschemas, target_of, used_schemas


class Malformed(ValueError):
    """A schema is not one of JSON Schema. The message is what is wrong at the place."""

    def __init__(self, pointer: str, problem: str) -> None:
        super().__init__(problem)
        self.pointer = pointer  # To the keyword, or to the schema if it is none.
        self.problem = problem


def checked(schema: Any) -> Any:
    """A copy of a schema, without keywords that are null.

    Raises:
        Malformed: A keyword has a wrong value, or a reference leads to no part of the schema.
    """
    schema = json.loads(json.dumps(schema))
    has_ids = False  # A reference below an `$id` inside the schema may begin there.
    for place, part in subschemas(schema):
        if isinstance(part, bool):
            continue
        if not isinstance(part, dict):
            raise Malformed(place.pointer, f"must be a JSON schema, got {show(part)}")
        has_ids = has_ids or (part is not schema and "$id" in part)
        _remove_null_keywords(part)
        for keyword, value in part.items():
            check = _CHECKS.get(keyword)
            if check is not None and not check.is_right(value):
                raise Malformed(f"{place.pointer}/{keyword}", f"must be {check.expected}, got {show(value)}")
    for node in () if has_ids else used_schemas(schema):
        reference = node.schema.get("$ref", "")
        if is_pointer(reference) and not isinstance(target_of(reference, schema), (dict, bool)):
            raise Malformed(f"{node.place.pointer}/$ref", f"leads to no part of the schema: {show(reference)}")
    return schema


def _remove_null_keywords(schema: dict[str, Any]) -> None:
    """Remove keywords that are null: generators write `"required": null` for an absent keyword."""
    for keyword, value in list(schema.items()):
        if value is None and keyword not in ("const", "default"):
            del schema[keyword]
        elif keyword in MAPS and isinstance(value, dict):
            schema[keyword] = {name: child for name, child in value.items() if child is not None}


# --- the value of each keyword ---


_TYPES = frozenset(("array", "boolean", "integer", "null", "number", "object", "string"))


@dataclass(frozen=True)
class _Check:
    is_right: Callable[[Any], bool]
    expected: str  # What the value must be, for the error.


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_bound(value: Any) -> bool:
    """Whether a value may be an exclusive bound. In draft 4 it is a boolean, which is an int of Python."""
    return isinstance(value, (int, float))


def _is_above_zero(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value % 1 == 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_list_of_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_type(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in _TYPES for name in names)


_TYPE = _Check(_is_type, f"one of {', '.join(sorted(_TYPES))}, or a list of these: leave it out to allow all")
_NAMES = _Check(_is_list_of_names, "a list of names (write it beside 'properties', not inside them)")
_COUNTS = ("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties")
_CHECKS: Mapping[str, _Check] = {
    "type": _TYPE,
    "required": _NAMES,
    "enum": _Check(_is_list, "a list"),
    "multipleOf": _Check(_is_above_zero, "a number above 0"),
    **dict.fromkeys(MAPS, _Check(_is_object, "an object of JSON schemas")),
    **dict.fromkeys(LISTS, _Check(_is_list, "a list of JSON schemas")),
    **dict.fromkeys(("$ref", "pattern"), _Check(_is_text, "a string")),
    **dict.fromkeys(("maximum", "minimum"), _Check(_is_number, "a number")),
    **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum"), _Check(_is_bound, "a number")),
    **dict.fromkeys(_COUNTS, _Check(_is_count, "an integer of at least 0")),
}
