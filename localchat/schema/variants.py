"""Variants of a JSON Schema for servers that refuse it as it is. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .keywords import parts_of, with_changed_parts
from .validator import Json, can_read_pattern

# Keywords that only constrain values of a type, and that some servers refuse. The client validates them itself.
_CONSTRAINT_KEYWORDS = (
    "format pattern uniqueItems contains minContains maxContains minItems maxItems minLength maxLength minProperties "
    "maxProperties minimum maximum exclusiveMinimum exclusiveMaximum multipleOf default examples"
)
_CONSTRAINTS = frozenset(_CONSTRAINT_KEYWORDS.split())

WRAPPED_NAME = "value"  # The property of the object that wraps a value.


def strict_schema(schema: Mapping[str, Any]) -> Json:
    """Apply OpenAI's rules for `strict`: closed objects, all properties required, no default, nothing beside a $ref."""
    closed = with_changed_parts(schema, strict_schema)
    closed.pop("default", None)
    if "$ref" in schema:
        return {keyword: value for keyword, value in closed.items() if keyword in ("$ref", "$defs")}
    if isinstance(schema.get("properties"), Mapping):
        closed.update(required=list(schema["properties"]), additionalProperties=False)
    return closed


def can_be_strict(schema: Any) -> bool:
    """Whether OpenAI accepts a strict schema: each part has a type, and no object has other properties."""
    return isinstance(schema, Mapping) and all(map(_is_strict_part, parts_of(schema)))


def _is_strict_part(part: Mapping[str, Any]) -> bool:
    if part.keys() & {"prefixItems", "uniqueItems", "oneOf", "allOf", "not"}:
        return False
    is_open = "object" in part.get("type", ()) and part.get("additionalProperties") is not False
    return not is_open and bool(part.keys() & {"$ref", "anyOf", "enum", "const", "type"})


def without_constraints(schema: Mapping[str, Any]) -> Json:
    """A schema without the keywords that only constrain values: what is left are types, properties and choices."""
    kept = {keyword: value for keyword, value in schema.items() if keyword not in _CONSTRAINTS}
    return with_changed_parts(kept, without_constraints)


def with_readable_patterns(schema: Mapping[str, Any]) -> Json:
    """A schema without the patterns that Python cannot read, for values that their user validates again."""
    kept: Json = {}
    for keyword, value in with_changed_parts(schema, with_readable_patterns).items():
        if keyword == "patternProperties" and isinstance(value, Mapping):
            kept[keyword] = {pattern: part for pattern, part in value.items() if can_read_pattern(pattern)}
        elif keyword != "pattern" or can_read_pattern(value):
            kept[keyword] = value
    return kept


def constraints_of(schema: Mapping[str, Any]) -> set[str]:
    """The keywords of a schema that `without_constraints` removes, and the names of its formats."""
    found: set[str] = set()
    for part in parts_of(schema):
        found |= _CONSTRAINTS & part.keys()
        if isinstance(part.get("format"), str):
            found.add(part["format"])
    return found


def is_object_schema(schema: Mapping[str, Any]) -> bool:
    """Whether the values of a schema are taken for objects, which servers may want at the top level."""
    return schema.get("type") == "object" or "properties" in schema


def object_schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema if its values are objects, else that of an object {"value": ...} that wraps the value."""
    if is_object_schema(schema):
        return schema
    inner = _with_moved_references(schema)
    definitions: Json = {name: inner.pop(name) for name in ("$defs", "definitions") if name in inner}
    fields = {"type": "object", "properties": {WRAPPED_NAME: inner}, "required": [WRAPPED_NAME]}
    return {**fields, "additionalProperties": False, **definitions}


def _with_moved_references(schema: Mapping[str, Any]) -> Json:
    """A schema whose references lead to the same parts after `object_schema` has moved all but its definitions."""
    moved = with_changed_parts(schema, _with_moved_references)
    reference = schema.get("$ref")
    if isinstance(reference, str) and not reference.startswith(("#/$defs/", "#/definitions/")):
        moved["$ref"] = f"#/properties/{WRAPPED_NAME}{reference[1:]}"
    return moved
