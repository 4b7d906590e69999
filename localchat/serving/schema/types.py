"""What a schema says of a value where that is plain: its types, the values that it lists, the limits of a text."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from .walk import ANNOTATIONS, resolved

TYPE_NAMES: Mapping[type, str] = {
    str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null", list: "array", dict: "object",
}  # fmt: skip
ALL_TYPES = frozenset(TYPE_NAMES.values())
STRING = frozenset({"string"})
_NO_TYPES: frozenset[str] = frozenset()

# Keywords that only objects have.
_OF_OBJECTS = frozenset(("properties", "required", "additionalProperties", "patternProperties", "propertyNames"))
# Keywords that restrict no values: `nullable` adds null.
_NO_RESTRICTIONS = ANNOTATIONS | {"nullable"}
# The limit of combinations within each other.
_MAX_DEPTH = 8


def with_integers(types: frozenset[str]) -> frozenset[str]:
    """Types, with that of integers if they include numbers."""
    return types | {"integer"} if "number" in types else types


def types_of(value: Any) -> frozenset[str]:
    """The types that a JSON value has; none if it is no JSON value. An integer is a number, and 1.0 is an integer."""
    name = TYPE_NAMES.get(type(value))
    if name == "integer" or (name == "number" and value.is_integer()):
        return frozenset({"integer", "number"})
    return frozenset() if name is None else frozenset({name})


def types_at(schema: Mapping[str, Any], *path: str | None) -> frozenset[str]:
    """The JSON types that a schema allows for the value at `path`; all types if it does not restrict them.

    The path is the name of an argument, or a longer path to a value inside the argument, with None for list items.
    """
    node: Any = schema
    for name in path:
        node = resolved(node, schema)
        if isinstance(node, Mapping):
            node = node.get("items") if name is None else node.get("properties")
        if name is not None and isinstance(node, Mapping):
            node = node.get(name)
    return _types(node, schema, _MAX_DEPTH)


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> frozenset[str]:
    target = resolved(schema, root)
    if not isinstance(target, Mapping) or depth == 0:
        return ALL_TYPES
    types = declared_types(target)
    if types is None:
        branches = next((target[word] for word in ("anyOf", "oneOf") if isinstance(target.get(word), list)), None)
        types = (
            ALL_TYPES if branches is None else _NO_TYPES.union(*(_types(item, root, depth - 1) for item in branches))
        )
    return types | {"null"} if is_nullable(schema) or is_nullable(target) else types


def is_nullable(schema: Mapping[str, Any]) -> bool:
    """Whether a schema allows null beside the values that its other keywords allow, by the `nullable` of OpenAPI."""
    return schema.get("nullable") is True


def declared_types(schema: Mapping[str, Any]) -> frozenset[str] | None:
    """The types that a schema names, or those of the values that it lists; None if it has neither."""
    if "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        return frozenset(name for name in names if isinstance(name, str))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return frozenset(TYPE_NAMES[type(value)] for value in values) if isinstance(values, list) else None


def is_of_objects(schema: Mapping[str, Any]) -> bool:
    """Whether a schema names no type, and has a keyword that only objects have."""
    return bool(_OF_OBJECTS & schema.keys()) and not {"type", "const", "enum", "$ref"} & schema.keys()


def possible_types(schema: Mapping[str, Any]) -> frozenset[str]:
    """The types of the values that a schema allows by its own keywords. Numbers include integers."""
    types = frozenset({"object"}) if is_of_objects(schema) else declared_types(schema)
    if types is None:
        return ALL_TYPES
    return with_integers(types) | ({"null"} if is_nullable(schema) else set())


def restrictions(schema: Mapping[str, Any]) -> frozenset[str]:
    """The keywords of a schema that may restrict values. Those that begin with "x-" are extensions, which do not."""
    return frozenset(keyword for keyword in schema.keys() - _NO_RESTRICTIONS if not keyword.startswith("x-"))


def allows_all_of_its_types(schema: Any) -> bool:
    """Whether every value of the types of a schema matches it."""
    if not isinstance(schema, dict):
        return schema is True
    keywords = restrictions(schema)
    return keywords <= {"type"} or (keywords == {"anyOf"} and all(map(allows_all_of_its_types, schema["anyOf"])))


def listed_values(schema: Any) -> frozenset[Hashable]:
    """The values of a constant or an enum, each with whether it is a boolean, since True == 1 in Python.

    Empty if the schema is another one, lists an object or a list, or allows null beside its values.
    """
    if not isinstance(schema, dict) or is_nullable(schema):
        return frozenset()
    values = [schema["const"]] if "const" in schema else schema.get("enum", [])
    is_plain = not any(isinstance(value, (dict, list)) for value in values)
    return frozenset((value, isinstance(value, bool)) for value in values) if is_plain else frozenset()
