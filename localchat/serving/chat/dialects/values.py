"""Converts argument values from bare text to JSON of the type that the schema of the tool states."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

TYPE_NAMES: Mapping[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    list: "array",
    dict: "object",
}
ALL_TYPES = frozenset(TYPE_NAMES.values())
STRING = frozenset({"string"})

# The limit of a chain of references, which may be circular. No real schema needs more.
_MAX_REFERENCES = 8
_WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None, "none": None}


def parameter_types(schema: Mapping[str, Any], *path: str | None) -> frozenset[str]:
    """The JSON types that a schema allows for the value at `path`; all types if it does not restrict them.

    The path is the name of an argument, or a longer path to a value inside the argument, with None for list items.
    """
    found: Any = schema
    for name in path:
        found = _resolved(found, schema)
        if isinstance(found, Mapping):
            found = found.get("items") if name is None else found.get("properties")
        if name is not None and isinstance(found, Mapping):
            found = found.get(name)
    return _types(found, schema, _MAX_REFERENCES)


def _resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    """The schema that the references of a schema lead to; None if there is none.

    References other than JSON pointers, such as anchors, lead nowhere.
    """
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, Mapping) or "$ref" not in schema:
            return schema
        schema = referenced(schema, root)
    return None


def referenced(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    """The schema at the reference of a schema; None if there is none."""
    start, *parts = str(schema["$ref"]).split("/")
    found: Any = root if start == "#" else None
    for part in parts:
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> frozenset[str]:
    """The JSON types that a schema allows. `depth` is the limit of combinations within each other."""
    schema = _resolved(schema, root)
    if not isinstance(schema, Mapping) or depth == 0:
        return ALL_TYPES
    if "type" in schema:
        named = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        names = {name for name in named if isinstance(name, str)}
        return frozenset(names | ({"null"} if schema.get("nullable") is True else set()))
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(listed, list):
        return frozenset(TYPE_NAMES[type(value)] for value in listed)
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list):
            return frozenset().union(*(_types(item, root, depth - 1) for item in schema[word]))
    return ALL_TYPES


def text_json(text: str) -> str:
    """Escape a text for a JSON string, without the quotes. A text may be converted in pieces."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def value_json(raw: str, types: frozenset[str]) -> str:
    """Convert bare text to JSON: `raw` itself if it is JSON of an allowed type, else a JSON string.

    Python literals such as True and None are accepted, too, since some templates print them; but not numbers that are
    written in another way than in JSON, if they may be text.
    """
    text = raw.strip()
    for convert in (_from_json, _from_python):
        try:
            value, converted = convert(text)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            continue
        may_be_text = convert is _from_python and type(value) in (int, float) and "string" in types
        if _is_allowed(value, types) and not may_be_text:
            return converted
    return json.dumps(raw, ensure_ascii=False)


def _from_json(text: str) -> tuple[Any, str]:
    return json.loads(text, parse_constant=_refuse_constant), text


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _from_python(text: str) -> tuple[Any, str]:
    word = text.lower()
    value = _WORDS[word] if word in _WORDS else ast.literal_eval(text)
    return value, json.dumps(value, ensure_ascii=False, allow_nan=False)


def _is_allowed(value: Any, types: frozenset[str]) -> bool:
    name = TYPE_NAMES.get(type(value))
    # Strings are written without quotes, so quotes are part of the string.
    if name is None or name == "string":
        return False
    if name == "integer" or (isinstance(value, float) and value.is_integer()):
        return bool(types & {"integer", "number"})
    return name in types
