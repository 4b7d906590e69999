"""Convert types to JSON Schema, also in OpenAI's strict form, and the text of a response to values of them. No I/O.

A target is a dataclass, a TypedDict, any other annotation that JSON can hold, a function (its parameters), a class with
`model_json_schema`, or a schema as a mapping. `json_schema` converts a target to a schema; `build` validates JSON and
makes the value. JSON that is not valid raises DoesNotFit with the path; a target that JSON Schema cannot describe
raises TypeError, and a schema that is wrong ValueError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import DoesNotFit
from .schema_check import checked_schema
from .shapes import Shape, document, plain, record, shape_of
from .signatures import function_fields, is_function
from .validator import Json, validation_errors

_SHOWN_ERRORS = 3


def json_schema(target: Any, *, strict: bool = False) -> Json:
    """The JSON Schema of a target. `strict` applies OpenAI's rules: all properties are required, no others allowed."""
    try:
        schema = document(target_shape(target))
    except RecursionError as error:
        raise TypeError(f"{target!r} contains itself: only a class may refer to itself") from error
    return strict_schema(schema) if strict else schema


def build(target: Any, value: Any) -> Any:
    """Convert parsed JSON to a value of the target. Raises DoesNotFit if the JSON is not valid."""
    return build_shape(target_shape(target), value)


def target_shape(target: Any) -> Shape:
    if isinstance(target, str):
        raise TypeError(f"{target[:100]!r} is a text: give a type such as a dataclass, or a JSON Schema as a dict")
    if isinstance(target, Mapping):
        return plain(checked_schema(target))
    if not is_function(target):
        return shape_of(target)
    name = getattr(target, "__name__", None) or type(target).__name__
    return record(id(target), name, "", lambda: function_fields(target, name), dict)


def build_shape(shape: Shape, value: Any) -> Any:
    """Convert parsed JSON to a value of a shape. Raises DoesNotFit if the JSON is not valid."""
    try:
        errors = list(validation_errors(value, document(shape)))
        if not errors:
            return shape.build(value, "$")
    except RecursionError as error:
        raise DoesNotFit("$: nested too deeply") from error
    shown = "; ".join(map(str, errors[:_SHOWN_ERRORS]))
    others = f" (and {len(errors) - _SHOWN_ERRORS} more)" if len(errors) > _SHOWN_ERRORS else ""
    raise DoesNotFit(shown + others, path=errors[0].path)


def strict_schema(schema: Any) -> Any:
    """Apply OpenAI's rules for `strict`: closed objects, all properties required, no default, nothing beside a $ref."""
    if isinstance(schema, list):
        return [strict_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: value if name in _VERBATIM else strict_schema(value) for name, value in schema.items()}
    closed.pop("default", None)
    for name in _BY_NAME:
        if isinstance(schema.get(name), dict):
            closed[name] = {key: strict_schema(value) for key, value in schema[name].items()}
    if "$ref" in schema:
        return {name: value for name, value in closed.items() if name in ("$ref", "$defs")}
    if isinstance(schema.get("properties"), dict):
        closed.update(required=list(schema["properties"]), additionalProperties=False)
    return closed


# Keywords whose values are not schemas, and keywords whose keys are names and not keywords.
_VERBATIM = frozenset({"enum", "const", "required", "examples", "dependentRequired"})
_BY_NAME = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")


def can_be_strict(schema: Any) -> bool:
    """Whether OpenAI accepts a strict schema: each part has a type, and no object has other properties."""
    if not isinstance(schema, Mapping) or schema.keys() & {"prefixItems", "uniqueItems", "oneOf", "allOf", "not"}:
        return False
    is_open = "object" in schema.get("type", ()) and schema.get("additionalProperties") is not False
    if is_open or not schema.keys() & {"$ref", "anyOf", "enum", "const", "type"}:
        return False
    parts = [*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else [])]
    parts += [part for name in ("properties", "$defs") for part in schema.get(name, {}).values()]
    return all(map(can_be_strict, parts))


# Keywords that only limit values and that some servers refuse. The client validates them itself.
_LIMITS = (
    "format pattern uniqueItems contains minContains maxContains minItems maxItems minLength maxLength minProperties "
    "maxProperties minimum maximum exclusiveMinimum exclusiveMaximum multipleOf default examples"
)
_LIMITING = frozenset(_LIMITS.split())


def without_limits(schema: Any) -> Any:
    """A schema without the keywords that only limit values: what is left are types, properties and choices."""
    if isinstance(schema, list):
        return [without_limits(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {
        name: value if name in _VERBATIM else without_limits(value)
        for name, value in schema.items()
        if name not in _LIMITING
    }
    for name in _BY_NAME:
        if isinstance(schema.get(name), dict):
            kept[name] = {key: without_limits(value) for key, value in schema[name].items()}
    return kept


def limits_of(schema: Any) -> set[str]:
    """The keywords of a schema that `without_limits` removes, and the names of its formats."""
    if isinstance(schema, list):
        return {name for item in schema for name in limits_of(item)}
    if not isinstance(schema, dict):
        return set()
    names = {name for name in schema if name in _LIMITING}
    names |= {schema["format"]} if isinstance(schema.get("format"), str) else set()
    parts = [value for name, value in schema.items() if name not in _VERBATIM and name not in _BY_NAME]
    parts += [part for name in _BY_NAME if isinstance(schema.get(name), dict) for part in schema[name].values()]
    return names.union(*map(limits_of, parts))
