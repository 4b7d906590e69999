"""Variants of a JSON Schema for servers that refuse it as it is. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .validator import Json

# Keywords whose values are not schemas, and keywords whose values have a schema for each name.
_VERBATIM = frozenset({"enum", "const", "required", "examples", "dependentRequired"})
_BY_NAME = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")

# Keywords that only constrain values of a type, and that some servers refuse. The client validates them itself.
_CONSTRAINT_KEYWORDS = (
    "format pattern uniqueItems contains minContains maxContains minItems maxItems minLength maxLength minProperties "
    "maxProperties minimum maximum exclusiveMinimum exclusiveMaximum multipleOf default examples"
)
_CONSTRAINTS = frozenset(_CONSTRAINT_KEYWORDS.split())


def _with_changed_parts(schema: Json, change: Callable[[Any], Any]) -> Json:
    """A schema in which a function has changed the schemas in it, or the lists of schemas."""
    changed = {}
    for keyword, value in schema.items():
        if keyword in _BY_NAME and isinstance(value, dict):
            changed[keyword] = {name: change(part) for name, part in value.items()}
        else:
            changed[keyword] = value if keyword in _VERBATIM else change(value)
    return changed


def strict_schema(schema: Any) -> Any:
    """Apply OpenAI's rules for `strict`: closed objects, all properties required, no default, nothing beside a $ref."""
    if isinstance(schema, list):
        return [strict_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = _with_changed_parts(schema, strict_schema)
    closed.pop("default", None)
    if "$ref" in schema:
        return {keyword: value for keyword, value in closed.items() if keyword in ("$ref", "$defs")}
    if isinstance(schema.get("properties"), dict):
        closed.update(required=list(schema["properties"]), additionalProperties=False)
    return closed


def can_be_strict(schema: Any) -> bool:
    """Whether OpenAI accepts a strict schema: each part has a type, and no object has other properties."""
    if not isinstance(schema, Mapping) or schema.keys() & {"prefixItems", "uniqueItems", "oneOf", "allOf", "not"}:
        return False
    is_open = "object" in schema.get("type", ()) and schema.get("additionalProperties") is not False
    if is_open or not schema.keys() & {"$ref", "anyOf", "enum", "const", "type"}:
        return False
    parts = [*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else [])]
    parts += [part for keyword in ("properties", "$defs") for part in schema.get(keyword, {}).values()]
    return all(map(can_be_strict, parts))


def without_constraints(schema: Any) -> Any:
    """A schema without the keywords that only constrain values: what is left are types, properties and choices."""
    if isinstance(schema, list):
        return [without_constraints(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {keyword: value for keyword, value in schema.items() if keyword not in _CONSTRAINTS}
    return _with_changed_parts(kept, without_constraints)


def constraints_of(schema: Any) -> set[str]:
    """The keywords of a schema that `without_constraints` removes, and the names of its formats."""
    found: set[str] = set()

    def collect(part: Any) -> None:
        if isinstance(part, list):
            for item in part:
                collect(item)
        elif isinstance(part, dict):
            found.update(_CONSTRAINTS & part.keys())
            if isinstance(part.get("format"), str):
                found.add(part["format"])
            _with_changed_parts(part, collect)  # Only visits the parts: its result is not used.

    collect(schema)
    return found
