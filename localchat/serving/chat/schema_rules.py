"""Prepares JSON Schemas for llguidance, which refuses what it cannot enforce, and finds the place that it refuses."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

# The formats that llguidance enforces. By the standard, all others are annotations.
_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"))
# Keywords whose value is a schema, and keywords whose value is a list or an object of schemas.
_ONE = frozenset(("additionalItems", "additionalProperties", "items", "propertyNames"))
_SEVERAL = frozenset(("$defs", "definitions", "properties", "patternProperties", "dependentSchemas", "prefixItems"))
_SEVERAL |= {"allOf", "anyOf", "oneOf"}
# With one of these keywords, several schemas can apply to one object.
_COMBINED = frozenset(("allOf", "patternProperties", "unevaluatedProperties", "not", "if"))
# What may be between the parts of JSON, as in llama.cpp: a space, or a line break with an indentation.
_SPACE = "[ ]|\\n[ ]{0,40}"
# The limit of subschemas that are compiled to find the place of an error.
_MAX_TRIED = 200


def normalized(schema: Any) -> Any:
    """A schema in the keywords that llguidance knows.

    A keyword that is null is absent, unknown formats are annotations, and `nullable` adds a type. Objects that declare
    properties have no others, unless the schema says so: no other is generated.
    """
    keywords = set(re.findall(r'"(\w+)": ', json.dumps(schema)))
    return _normalized(schema, is_closed=not _COMBINED & keywords)


def _normalized(schema: Any, *, is_closed: bool) -> Any:
    if not isinstance(schema, dict):
        return schema
    result: dict[str, Any] = {}
    convert = functools.partial(_normalized, is_closed=is_closed)
    for keyword, value in schema.items():
        is_unknown_format = keyword == "format" and str(value) not in _FORMATS
        if keyword == "x-guidance" or is_unknown_format or (value is None and keyword not in ("const", "default")):
            continue
        if isinstance(value, list) and keyword in _ONE | _SEVERAL:
            value = list(map(convert, value))
        elif isinstance(value, dict) and keyword in _SEVERAL:
            value = {name: convert(child) for name, child in value.items()}
        result[keyword] = convert(value) if keyword in _ONE else value
    if result.get("nullable") is True and "type" in result:
        types = result["type"] if isinstance(result["type"], list) else [result["type"]]
        result["type"] = [*types, *({"null"} - set(map(str, types)))]
    # Beside other schemas of the same object, each would refuse the properties of the others.
    is_alone = not result.keys() & {"anyOf", "oneOf", "$ref", "additionalProperties"}
    names, required = result.get("properties"), result.get("required", [])
    are_known = isinstance(names, dict) and isinstance(required, list) and set(map(str, required)) <= names.keys()
    if is_closed and is_alone and are_known:
        result["additionalProperties"] = False
    return result


def loosened(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without the keywords that llguidance does not enforce; `oneOf` is `anyOf`."""
    return {**schema, "x-guidance": {"lenient": True, "coerce_one_of": True}}


def json_rule(schema: Any) -> str:
    """The body of a rule: JSON that matches a normalized schema."""
    if schema is True:
        schema = {}
    if isinstance(schema, dict):
        schema = {**schema, "x-guidance": {**schema.get("x-guidance", {}), "whitespace_pattern": _SPACE}}
    return f"%json {json.dumps(schema)}"


def error_in(grammar: str) -> str:
    """Why llguidance refuses a grammar; "" if it accepts it."""
    from llguidance import LLMatcher

    # The reason comes before a position in the notation of llguidance.
    reason = re.sub(r"^(at )?\d+\(\d+\): ", "", re.split(r"\n +\d+ \| ", LLMatcher.validate_grammar(grammar))[0])
    return reason.removeprefix("failed to compile JSON schema: ").strip()


def error_place(schema: Any) -> tuple[str, str]:
    """The JSON pointer of the innermost subschema that is refused, and the reason; "" if there is no error."""
    n_tried = itertools.count()
    definitions = {key: schema[key] for key in ("$defs", "definitions") if isinstance(schema, dict) and key in schema}

    def error_of(node: Any) -> str:
        if next(n_tried) > _MAX_TRIED:
            return ""
        return error_in("start: " + json_rule({**definitions, **node} if isinstance(node, dict) else node))

    node, pointer, reason = schema, "", error_of(schema)
    while reason:
        found = next(((name, child, error) for name, child in _children(node) if (error := error_of(child))), None)
        if found is None:
            break
        name, node, reason = found
        pointer += name
    keyword = re.search(r'Unimplemented keys: \["([^"]+)"', reason)
    return (f"{pointer}/{keyword[1]}" if keyword else pointer), reason


def _children(schema: Any) -> Iterator[tuple[str, Any]]:
    for keyword, value in schema.items() if isinstance(schema, dict) else ():
        if keyword in _ONE and isinstance(value, dict):
            yield f"/{keyword}", value
        elif keyword in _SEVERAL and isinstance(value, (dict, list)):
            for name, child in value.items() if isinstance(value, dict) else enumerate(value):
                yield f"/{keyword}/{str(name).replace('~', '~0').replace('/', '~1')}", child
