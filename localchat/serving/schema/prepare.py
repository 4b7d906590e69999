"""Prepares a JSON Schema for llguidance: a schema of the same values, in the keywords that llguidance knows.

Three things are read in the way of the programs that write schemas for models, and not by the letter of the standard:

- A schema with the keywords of objects alone is one of objects.
- An object that declares properties has no others, unless the schema says that it may have others.
- `nullable` adds the type null.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Callable
from urllib.parse import quote

from .closing import ClosedBy, close, parts_of
from .exclusion import exclude_each_other
from .patterns import in_json_schema
from .simplify import simplified
from .walk import IN_PLACE, Schema, escaped, subschemas, target_of, with_children

# llguidance reads numbers as floats, which have all integers up to this one.
MAX_INTEGER = 1 << 53
# The limits of the schemas that are read to prepare one, and of the pairs of branches that are compared for this.
_MAX_READ, _MAX_PAIRS = 300_000, 50_000
# A reference to a definition with a simple name, or to the root.
_DEFINITION = re.compile(r"#(/(\$defs|definitions)/[\w.-]+)?")


@dataclass(frozen=True)
class Context:
    """Where a schema is, for the functions that rewrite it.

    The context of an inner schema depends on the keyword that has it: see `_inner_context`.
    """

    preparation: Preparation  # Of the whole schema.
    closed_by: ClosedBy  # What closes the schema, if it is one of objects.

    @property
    def root(self) -> Any:
        return self.preparation.root

    @property
    def is_closed_by_itself(self) -> bool:
        return self.closed_by is ClosedBy.ITSELF


def prepared(schema: Any) -> Any:
    """A schema for llguidance. Raises ValueError if it is too large."""
    schema = _with_pointers(schema)
    preparation = Preparation(schema)
    result = preparation.rewrite(schema, Context(preparation, ClosedBy.ITSELF))
    if preparation.definitions:
        result["$defs"] = {**result.get("$defs", {}), **preparation.definitions}
    return result


def prepared_arguments(parameters: Any) -> Schema:
    """The schema of the arguments of a tool, which are an object, for llguidance. Raises ValueError if it is too large.

    The grammar of a call and the parser that reads it both have this schema, so that a text between tags has the same
    types for both.
    """
    schema = prepared(parameters if isinstance(parameters, dict) else {})
    if not isinstance(schema, dict):  # {"allOf": [true]} is true.
        schema = {} if schema else {"anyOf": [False]}
    return {**schema, "type": "object"}


def _with_pointers(schema: Any) -> Any:
    """A schema in which references to an `$anchor` are JSON pointers, the only references that this package follows."""
    anchors = {
        f"#{part['$anchor']}": "#" + quote(place.pointer)
        for place, part in subschemas(schema)
        if isinstance(part, dict) and isinstance(part.get("$anchor"), str)
    }
    if not anchors:
        return schema
    schema = json.loads(json.dumps(schema))
    for _, part in subschemas(schema):
        if isinstance(part, dict):
            part.pop("$anchor", None)
            if part.get("$ref") in anchors:
                part["$ref"] = anchors[part["$ref"]]
    return schema


class Preparation:
    """The preparation of one schema: what has been read, and the definitions that are added."""

    def __init__(self, root: Any) -> None:
        self.root = root
        # Targets of references that are needed in another form than at their place, or whose place may change.
        self.definitions: dict[str, Any] = {}
        self._n_read = self._n_pairs = 0

    def rewrite(self, schema: Any, context: Context) -> Any:
        """The schema for llguidance that stands in the place of a schema.

        The order of the steps matters, since each reads what the steps before it write. With the schema

            {"properties": {"a": A}, "oneOf": [{"properties": {"b": {"const": "x"}}, "required": ["b"]},
                                               {"properties": {"b": {"const": "y"}}, "required": ["b"]}]}

        1. write it in fewer keywords (`simplify.py`): add {"type": "object"};
        2. find its parts, which may be closed together (`closing.py`): the schema and its two branches;
        3. replace `oneOf` by `anyOf` if its branches exclude each other, which depends on whether they will be closed:
           "x" is not "y";
        4. rewrite the values of the keywords, with the inner schemas, which depends on whether `oneOf` is still there:
           A and the branches are rewritten, and the branches are not closed by themselves;
        5. close it, with the names of its parts: add {"properties": {"b": true}, "additionalProperties": false}.
        """
        if not isinstance(schema, dict):
            return schema
        self.count(1)
        # The type of objects is added where they may be closed.
        schema = simplified(schema, self.root, may_lack_type=context.closed_by is ClosedBy.NOTHING)
        if not isinstance(schema, dict):
            return schema
        parts = parts_of(schema, self.root)
        self.count(len(parts))
        context_of_parts = context
        if context.is_closed_by_itself and len(parts) > 1:
            context_of_parts = replace(context, closed_by=ClosedBy.COMBINATION)
        schema = _with_any_of(schema, context_of_parts)
        result: Schema = {}
        for keyword, value in schema.items():
            result[keyword] = _rewritten_value(keyword, value, _inner_context(keyword, context, context_of_parts))
        if context.is_closed_by_itself and parts:
            close(result, parts)
        return result

    def count(self, n_schemas: int) -> None:
        self._n_read += n_schemas
        if self._n_read > _MAX_READ:
            raise ValueError("it is too large, or combines too many schemas")

    def may_compare(self, n_branches: int) -> bool:
        self._n_pairs += n_branches**2
        return self._n_pairs <= _MAX_PAIRS

    def definition_of(self, reference: str, target: Any, context: Context) -> str:
        """A reference to an added definition: the target of another reference, rewritten for this context.

        One target may be needed twice. In the schema

            {"properties": {"a": R}, "anyOf": [R, ...]}, where R is {"$ref": "#/$defs/x"}

        the first R leads to a schema that is closed by itself, the second one to a part of a combination.
        """
        name = f"{reference} {context.closed_by.value}"
        if name not in self.definitions:
            self.definitions[name] = None  # It may refer to itself.
            self.definitions[name] = self.rewrite(target, context)
        return "#/$defs/" + quote(escaped(name))


def _inner_context(keyword: str, context: Context, context_of_parts: Context) -> Context:
    """The context of the schemas in a keyword.

    Those that apply to the same value have that of the parts. All that is inside `oneOf` stays open. The value of a
    property, or an item of a list, is another value: its schema is closed by itself.
    """
    if context.closed_by is ClosedBy.NOTHING or keyword == "oneOf":
        return replace(context, closed_by=ClosedBy.NOTHING)
    if keyword in IN_PLACE or keyword == "$ref":
        return context_of_parts
    return replace(context, closed_by=ClosedBy.ITSELF)


def _with_any_of(schema: Schema, context: Context) -> Schema:
    """A schema with `anyOf` in place of `oneOf`, if it is plain that no value matches two branches."""
    if "oneOf" not in schema or "anyOf" in schema or not context.preparation.may_compare(len(schema["oneOf"])):
        return schema
    if not exclude_each_other(schema["oneOf"], context.root, are_closed=context.is_closed_by_itself):
        return schema
    return {("anyOf" if keyword == "oneOf" else keyword): value for keyword, value in schema.items()}


# --- the functions that rewrite the value of a keyword ---


def _rewritten_value(keyword: str, value: Any, context: Context) -> Any:
    rewrite = _KEYWORDS.get(keyword)
    if rewrite is not None:
        return rewrite(value, context)
    return with_children(keyword, value, lambda schema: context.preparation.rewrite(schema, context))


def _reference(value: str, context: Context) -> str:
    """A reference to the same schema. Its target keeps its place if that is a definition, unless it is a part."""
    target = target_of(value, context.root)
    if target is None or (context.is_closed_by_itself and _DEFINITION.fullmatch(value)):
        return value
    return context.preparation.definition_of(value, target, context)


def _pattern(value: str, context: Context) -> str:
    return in_json_schema(value)


def _pattern_properties(value: Schema, context: Context) -> Schema:
    result: Schema = {}
    for pattern, schema in value.items():
        name = in_json_schema(pattern)
        # llguidance refuses two patterns for one name.
        result[pattern if name in result else name] = context.preparation.rewrite(schema, context)
    return result


def _whole_number(value: Any, context: Context) -> Any:
    """An integer in place of a float such as 2.0, which llguidance refuses as a length."""
    is_whole = isinstance(value, float) and abs(value) < MAX_INTEGER and value % 1 == 0
    return int(value) if is_whole else value


_NUMBERS = (
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains",
    "minimum", "maximum",
)  # fmt: skip
_KEYWORDS: Mapping[str, Callable[[Any, Context], Any]] = {
    "$ref": _reference,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    **dict.fromkeys(_NUMBERS, _whole_number),
}
