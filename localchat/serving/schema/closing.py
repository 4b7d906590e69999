"""Closes objects: an object that declares properties has no others, unless its schema says that it may have others."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from .patterns import in_json_schema, whole_names
from .simplify import keywords_beside_type
from .walk import Schema, schemas_of_value


class ClosedBy(Enum):
    """What forbids the names that an object does not declare.

        {"properties": {"a": {}}, "anyOf": [{"properties": {"b": {}}}, {"properties": {"c": {}}}]}

    This schema is closed by itself: it allows the names "a", "b" and "c". Its two parts are closed by the combination:
    if they were closed by themselves, they would forbid "a".

        {"oneOf": [{"type": "object", "properties": {"b": {}}}, {"type": "object", "properties": {"c": {}}}]}

    Nothing closes these two. As they stand, {"b": 1} matches both, so `oneOf` refuses it. If they were closed, it would
    match the first one alone, and be allowed.
    """

    ITSELF = "itself"
    COMBINATION = "combination"
    NOTHING = "nothing"  # It is inside `oneOf`, and stays open.


def parts_of(schema: Schema, root: Any) -> list[Schema]:
    """The schemas that apply to the same value as a schema, itself first; none if it declares no names.

    In the first example of `ClosedBy`, these are the schema and its two branches. A schema that is one of its branches
    or the target of its reference, and nothing else, declares no names: its branches are closed by themselves.
    """
    keywords = keywords_beside_type(schema)
    is_only_choice = len(keywords) == 1 and bool(keywords & {"anyOf", "oneOf", "$ref"})
    return [] if is_only_choice else list(schemas_of_value(schema, root))


def close(schema: Schema, parts: Sequence[Schema]) -> None:
    """Allow only the names that the parts of an object declare, if they declare any and allow no others.

    Of the parts {"properties": {"a": {}}, "anyOf": [{"properties": {"b": {}}}]} and {"properties": {"b": {}}}, the
    schema becomes

        {"properties": {"a": {}, "b": true}, "anyOf": [...], "additionalProperties": false}
    """
    declares = any("properties" in part for part in parts)
    if not declares or any("additionalProperties" in part for part in parts):
        return
    # The branches of a `oneOf` stay open, so an object with one beside other keywords does, too. `schema` is the first
    # part after its rewriting, in which `oneOf` may have become `anyOf`.
    if len(parts) > 1 and any("oneOf" in part for part in (schema, *parts[1:])):
        return
    # A required name counts as declared: a closed object without it could never be complete.
    names = [name for part in parts for keyword in ("properties", "required") for name in part.get(keyword, ())]
    # The patterns of a few names have become properties, see `simplify.py`.
    all_patterns = [pattern for part in parts for pattern in part.get("patternProperties", ())]
    names += [name for pattern in all_patterns for name in whole_names(pattern)]
    patterns = [in_json_schema(pattern) for pattern in all_patterns if not whole_names(pattern)]
    for keyword, allowed in ("properties", names), ("patternProperties", patterns):
        if allowed:
            schema[keyword] = {**dict.fromkeys(allowed, True), **schema.get(keyword, {})}
    schema["additionalProperties"] = False
