"""Writes a schema in fewer keywords: a step of its preparation.

Each function takes and returns one schema, and leaves the schemas inside it as they are.
"""

from __future__ import annotations

from typing import Any

from .patterns import whole_names
from .types import is_nullable, is_of_objects, restrictions
from .walk import DEFINITIONS, IN_PLACE, Schema, resolved, schemas_of_value

SOURCE = "$comment"
"""The keyword in which `source_places.py` keeps the place of a schema. As an annotation, it has no other effect."""

# The formats that llguidance enforces. By the standard, all others are annotations.
_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"))


def simplified(schema: Schema, root: Any, *, may_lack_type: bool) -> Any:
    """A schema of the same values, which has `type`, `properties` and `patternProperties` in place of other keywords.

    Later steps read what is written here. The result may be true or false.

    Args:
        root: The schema in which references lead.
        may_lack_type: Whether a schema with keywords of objects alone also allows other values.
    """
    schema = _unwrapped(schema)
    if not isinstance(schema, dict):
        return schema
    if is_of_objects(schema) and not may_lack_type:
        schema = {**schema, "type": "object"}
    return _without_property_names(_without_listed_patterns(_with_null(schema), root), root)


def keywords_beside_type(schema: Schema) -> frozenset[str]:
    """The keywords of a schema that may restrict values, without its type."""
    return restrictions(schema) - {"type"}


def _without_defaults(schema: Schema) -> Schema:
    """A schema without keywords that restrict nothing, or that are none of JSON Schema."""

    def is_default(keyword: str, value: Any) -> bool:
        if keyword == "propertyNames":
            is_free = isinstance(value, dict) and not keywords_beside_type(value)
            return value is True or (is_free and "string" in value.get("type", "string"))
        if keyword == "format":
            return str(value) not in _FORMATS
        return keyword == "x-guidance" or (keyword == "uniqueItems" and value is False)

    return {keyword: value for keyword, value in schema.items() if not is_default(keyword, value)}


def _unwrapped(schema: Schema) -> Any:
    """A schema without defaults. {"allOf": [A]} becomes A, with the annotations of both."""
    schema = _without_defaults(schema)
    while keywords_beside_type(schema) == {"allOf"} and len(schema["allOf"]) == 1 and "type" not in schema:
        (only,) = schema.pop("allOf")
        if not isinstance(only, dict):
            return only
        source = {SOURCE: only[SOURCE]} if SOURCE in only else {}
        schema = _without_defaults({**only, **schema, **source})
    return schema


def _with_null(schema: Schema) -> Schema:
    """A schema whose other keywords allow null if it has `nullable`. It changes

    {"type": "string", "enum": ["a"], "nullable": true}    to {"type": ["string", "null"], "enum": ["a", null]}
    {"$ref": "#/$defs/a", "nullable": true}                to {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}
    """
    if "nullable" not in schema:
        return schema
    is_needed = is_nullable(schema) and bool(restrictions(schema))
    schema = {keyword: value for keyword, value in schema.items() if keyword != "nullable"}
    if not is_needed:
        return schema
    if schema.keys() & {"$ref", *IN_PLACE} or {"const", "enum"} <= schema.keys():
        definitions = {keyword: schema.pop(keyword) for keyword in DEFINITIONS & schema.keys()}
        return {**definitions, "anyOf": [schema, {"type": "null"}]}
    if "const" in schema:
        schema["enum"] = [schema.pop("const")]
    if "enum" in schema:
        schema["enum"] = [*schema["enum"], None]
    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        schema["type"] = [*types, *({"null"} - set(types))]
    return schema


def _without_listed_patterns(schema: Schema, root: Any) -> Schema:
    """A schema whose patterns of a few names are properties, so that no name is repeated. It changes

        {"patternProperties": {"^(a|b)$": A}}    to {"properties": {"a": A, "b": A}, "additionalProperties": true}

    An object for which no schema declares properties stays open to other names: these properties would close it.
    """
    listed = {pattern: whole_names(pattern) for pattern in schema.get("patternProperties", ())}
    if not any(listed.values()):
        return schema
    declares = any("properties" in part for part in schemas_of_value(schema, root))
    others_by_default = {} if declares else {"additionalProperties": True}
    schema = {**others_by_default, **schema, "properties": dict(schema.get("properties", {}))}
    patterns, properties = schema.pop("patternProperties"), schema["properties"]
    for pattern, names in listed.items():
        for name in names:
            value = patterns[pattern]
            properties[name] = {"allOf": [properties[name], value]} if name in properties else value
    others = {pattern: value for pattern, value in patterns.items() if not listed[pattern]}
    return {**schema, "patternProperties": others} if others else schema


def _without_property_names(schema: Schema, root: Any) -> Schema:
    """A schema that allows other names by its other keywords than `propertyNames`, if that is plain. It changes

        {"propertyNames": {"enum": ["a"]}, "additionalProperties": A}      to {"properties": {"a": A}}
        {"propertyNames": {"pattern": "^x"}, "additionalProperties": A}    to {"patternProperties": {"^x": A}}

    `additionalProperties` becomes false.
    """
    names, others = schema.get("propertyNames"), schema.get("additionalProperties", True)
    if isinstance(names, dict) and keywords_beside_type(names) == {"$ref"}:
        names = resolved(names, root)
    if not isinstance(names, dict) or schema.get("patternProperties"):
        return schema
    keywords, properties = keywords_beside_type(names), schema.get("properties", {})
    closed = {keyword: value for keyword, value in schema.items() if keyword != "propertyNames"}
    closed["additionalProperties"] = False
    if keywords in ({"const"}, {"enum"}) and names.get("type", "string") == "string":
        values = [names["const"]] if keywords == {"const"} else names["enum"]
        listed = [name for name in values if isinstance(name, str)]
        return {**closed, "properties": {name: properties.get(name, others) for name in listed}}
    if keywords and not properties and (keywords == {"pattern"} or keywords <= {"minLength", "maxLength"}):
        return {**closed, "patternProperties": {names.get("pattern", _pattern_of_length(names)): others}}
    return schema


def _pattern_of_length(names: Schema) -> str:
    most = int(names["maxLength"]) if "maxLength" in names else ""
    return f"^[\\s\\S]{{{int(names.get('minLength', 0))},{most}}}$"
