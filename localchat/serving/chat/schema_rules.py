"""Prepares JSON Schemas for llguidance, which refuses what it cannot enforce, and finds the place that it refuses."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

# The formats that llguidance enforces. By the standard, all others are annotations.
_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"))
# Keywords whose value is a schema, and keywords whose value is a list or an object of schemas.
_ONE = frozenset(("additionalItems", "additionalProperties", "contains", "items", "not", "propertyNames", "if"))
_SEVERAL = frozenset(("$defs", "definitions", "properties", "patternProperties", "dependentSchemas", "prefixItems"))
_SEVERAL |= {"allOf", "anyOf", "oneOf"}
# Keywords that are left out where a schema need not be enforced as a whole.
_LOOSE = frozenset(
    ("if", "then", "else", "not", "contains", "minContains", "maxContains", "uniqueItems", "propertyNames")
)
_LOOSE |= {"dependencies", "dependentRequired", "dependentSchemas", "minProperties", "maxProperties", "multipleOf"}
_LOOSE |= {"unevaluatedProperties", "unevaluatedItems"}
# With one of these keywords, several schemas can apply to one object.
_COMBINED = frozenset(("allOf", "patternProperties", "unevaluatedProperties", "not", "if"))
# What may be between the parts of JSON: a space, or a line break with an indentation.
_SPACE, _INDENTED = "[ ]", "[ ]|\\n[ ]{0,40}"
# The limit of subschemas that are compiled to find the place of an error.
_MAX_TRIED = 200


def normalized(schema: Any) -> Any:
    """A schema in the keywords that llguidance knows.

    A keyword that is null is absent, unknown formats are annotations, `nullable` adds a type, and `oneOf` of branches
    that exclude each other is `anyOf`. Objects that declare properties have no others, unless the schema says so: no
    other is generated.
    """
    result = _normalized(schema)
    return result if _COMBINED & _keywords(result) else _closed(result)


def _keywords(schema: Any) -> set[str]:
    if isinstance(schema, list):
        return set().union(*map(_keywords, schema))
    return set(schema).union(*map(_keywords, schema.values())) if isinstance(schema, dict) else set()


def _closed(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    result = {keyword: _with_children(keyword, value, _closed) for keyword, value in schema.items()}
    names = result.get("properties")
    # Beside other schemas of the same object, each would refuse the properties of the others.
    if isinstance(names, dict) and not result.keys() & {"anyOf", "oneOf", "$ref", "additionalProperties"}:
        required = result.get("required", [])
        if isinstance(required, list) and all(name in names for name in required):
            result["additionalProperties"] = False
    return result


def _normalized(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    result: dict[str, Any] = {}
    for keyword, value in schema.items():
        is_unknown_format = keyword == "format" and value not in _FORMATS
        if keyword == "x-guidance" or is_unknown_format or (value is None and keyword not in ("const", "default")):
            continue
        result[keyword] = _with_children(keyword, value, _normalized)
    if result.get("nullable") is True and "type" in result:
        types = result["type"] if isinstance(result["type"], list) else [result["type"]]
        result["type"] = [*types, *({"null"} - set(map(str, types)))]
    branches = result.get("oneOf")
    if isinstance(branches, list) and "anyOf" not in result and _exclude_each_other(branches):
        result["anyOf"] = result.pop("oneOf")
    return result


def loosened(schema: Any) -> Any:
    """The schema without the keywords that llguidance does not enforce."""
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key not in _LOOSE}
    if "oneOf" in kept:
        kept.setdefault("anyOf", kept.pop("oneOf"))
    return {key: _with_children(key, value, loosened) for key, value in kept.items()}


def _with_children(keyword: str, value: Any, convert: Any) -> Any:
    if keyword in _ONE:
        return convert(value) if not isinstance(value, list) else [convert(item) for item in value]
    if keyword in _SEVERAL and isinstance(value, list):
        return [convert(item) for item in value]
    if keyword in _SEVERAL and isinstance(value, dict):
        return {name: convert(item) for name, item in value.items()}
    return value


def json_rule(schema: Any, *, is_indented: bool = False) -> str:
    """The body of a rule: JSON that matches a normalized schema, on one line unless `is_indented`."""
    if schema is True:
        schema = {}
    options = {"x-guidance": {"whitespace_pattern": _INDENTED if is_indented else _SPACE}}
    return f"%json {json.dumps({**schema, **options} if isinstance(schema, dict) else schema)}"


def error_in(grammar: str) -> str:
    """Why llguidance refuses a grammar; "" if it accepts it."""
    from llguidance import LLMatcher

    return short_reason(LLMatcher.validate_grammar(grammar))


def short_reason(text: str) -> str:
    """An error of llguidance without the position in its own notation."""
    text = re.sub(r"^(at )?\d+\(\d+\): ", "", re.split(r"\n +\d+ \| ", text)[0])
    return text.removeprefix("failed to compile JSON schema: ").strip()


def error_place(schema: Any) -> tuple[str, str]:
    """The JSON pointer of the innermost subschema that is refused, and the reason; "" if there is no error."""
    n_left = itertools.count()
    definitions = {key: schema[key] for key in ("$defs", "definitions") if isinstance(schema, dict) and key in schema}

    def error_of(node: Any) -> str:
        if next(n_left) > _MAX_TRIED:
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
        if keyword in _ONE and keyword not in ("not", "contains", "if") and isinstance(value, dict):
            yield f"/{keyword}", value
        elif keyword in _SEVERAL:
            pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
            yield from ((f"/{keyword}/{str(k).replace('~', '~0').replace('/', '~1')}", child) for k, child in pairs)


def _exclude_each_other(branches: list[Any]) -> bool:
    return all(_are_disjoint(a, b) for a, b in itertools.combinations(branches, 2))


def _are_disjoint(a: Any, b: Any) -> bool:
    """Whether certainly no value matches both schemas."""
    if not isinstance(a, dict) or not isinstance(b, dict):
        return False
    values = _values(a), _values(b)
    if values[0] is not None and values[1] is not None:
        return not values[0] & values[1]
    types = _types(a), _types(b)
    if types[0] and types[1] and not types[0] & types[1]:
        return True
    if not types[0] == types[1] == {"object"}:
        return False
    names = [set(map(str, s.get("required") or ())) for s in (a, b)]
    properties = [s.get("properties") or {} for s in (a, b)]
    if any(_are_disjoint(properties[0].get(name), properties[1].get(name)) for name in names[0] & names[1]):
        return True
    closed = [s.get("additionalProperties") is False and "patternProperties" not in s for s in (a, b)]
    return (closed[0] and bool(names[1] - properties[0].keys())) or (
        closed[1] and bool(names[0] - properties[1].keys())
    )


def _values(schema: dict[str, Any]) -> set[str] | None:
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    return {json.dumps(value, sort_keys=True) for value in listed} if isinstance(listed, list) else None


def _types(schema: dict[str, Any]) -> set[str]:
    named = schema.get("type", ())
    found = {named} if isinstance(named, str) else set(map(str, named))
    return found | {"integer"} if "number" in found else found
