"""The keywords of JSON Schema whose values are schemas: the walk through a schema. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .validator import Json

# The keywords by what their values are: one schema, a list of schemas, either of these, and a schema for each name. In
# older drafts `items` may be a list, and `dependencies` may have a list of names in place of a schema.
ONE_SCHEMA = frozenset(
    {
        "additionalProperties",
        "additionalItems",
        "propertyNames",
        "contains",
        "not",
        "if",
        "then",
        "else",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
SCHEMAS = frozenset({"prefixItems", "allOf", "anyOf", "oneOf"})
ONE_OR_SCHEMAS = frozenset({"items"})
SCHEMAS_BY_NAME = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)


def with_changed_parts(schema: Mapping[str, Any], change: Callable[[Any], Any]) -> Json:
    """A schema in which a function has changed the schemas directly in it. All other values stay."""
    changed: Json = {}
    for keyword, value in schema.items():
        if keyword in SCHEMAS_BY_NAME and isinstance(value, Mapping):
            changed[keyword] = {name: _changed(part, change) for name, part in value.items()}
        elif keyword in SCHEMAS | ONE_OR_SCHEMAS and isinstance(value, list):
            changed[keyword] = [_changed(part, change) for part in value]
        else:
            changed[keyword] = _changed(value, change) if keyword in ONE_SCHEMA | ONE_OR_SCHEMAS else value
    return changed


def _changed(part: Any, change: Callable[[Any], Any]) -> Any:
    """A changed schema. What is no object, such as true, stays."""
    return change(part) if isinstance(part, Mapping) else part


def parts_of(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A schema and all schemas in it, without those that are true or false."""
    yield schema
    for part in _direct_parts(schema):
        yield from parts_of(part)


def _direct_parts(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    parts: list[Mapping[str, Any]] = []
    with_changed_parts(schema, parts.append)  # Only for the walk: the changed schema is not used.
    return parts
