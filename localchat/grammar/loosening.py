"""Loosens a JSON Schema that no grammar can enforce: drops the constraint that an error names, and no other."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from .budget import TooMuchWork, at_most, steps_left
from .errors import SchemaError, errors_located
from .schema_nodes import ASSERTIONS

# Limit of constraints of one schema that are dropped. Beyond it nothing of the schema is enforced.
MAX_DROPPED = 40
# Limit of steps to convert one schema once: about a hundred times the steps for a large schema.
MAX_STEPS = 150_000
# Steps that are left for the rest of a grammar when all its schemas are converted.
RESERVED_STEPS = 200_000

_ANY_OBJECT = {"type": "object"}

# Keywords whose value is one schema, and keywords whose value is an object or a list of schemas.
_ONE = frozenset(("additionalItems", "additionalProperties", "contains", "items", "not", "propertyNames"))
_SEVERAL = frozenset(
    ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas", "dependencies")
) | {"allOf", "anyOf", "oneOf", "prefixItems"}
# Keywords that are dropped with their schema if the pointer of an error ends with one of them.
_REFUSED = frozenset(("contains", "not"))

# If an error names a whole schema, the keywords of one group are dropped: the first group with a keyword in the schema.
_GROUPS = (
    ("multipleOf",),
    ("uniqueItems", "contains"),
    ("patternProperties", "propertyNames", "minProperties", "maxProperties"),
    ("minLength", "maxLength"),
    ("pattern", "format"),
    ("minItems", "maxItems"),
    ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    ("not",),
    ("dependentRequired", "dependentSchemas", "dependencies"),
    ("$ref", "allOf", "anyOf", "oneOf"),
    ("enum", "const"),
    ("required",),
    ("properties", "additionalProperties", "items", "prefixItems", "additionalItems"),
)

_T = TypeVar("_T")


@dataclass(frozen=True)
class _Target:
    """The target of a JSON pointer in a copy of a schema."""

    schemas: list[dict[str, Any]]
    """The schemas on the way to the target, the root first."""
    holder: dict[str, Any] | list[Any]
    """The last schema, or the list or object of schemas in one of its keywords."""
    key: Any
    """The key of the target in the holder; None if the target is the last schema."""

    def drop(self) -> None:
        if self.holder is not self.schemas[-1]:
            self.holder[self.key] = True  # the value is not a schema: allow everything instead
            return
        value = self.schemas[-1].pop(self.key)
        # Unlike oneOf, anyOf can be enforced if its branches overlap.
        if self.key == "oneOf":
            self.schemas[-1].setdefault("anyOf", value)


def convert_loosely(schema: object, convert: Callable[[Any], _T], path: str) -> tuple[_T, list[SchemaError]]:
    """Convert a schema of an object, loosening it until no SchemaError is left.

    Args:
        path: The path of the schema: the paths of its errors begin with it.

    Returns:
        The result, and one error for each constraint that was dropped.
    """
    errors: list[SchemaError] = []
    n_too_much = 0
    while len(errors) < MAX_DROPPED and steps_left() > RESERVED_STEPS:
        try:
            with errors_located(path), at_most(MAX_STEPS):
                return convert(schema), errors
        except SchemaError as error:
            errors.append(error)
            pointer = error.path.removeprefix(path)
            if isinstance(error.__cause__, TooMuchWork):
                schema = _without_constraints(schema, pointer, n_too_much)
                n_too_much += 1
            else:
                schema = loosened(schema, pointer)
    if not errors:
        errors.append(SchemaError(path, "the schemas together take too much work"))
    return convert(_ANY_OBJECT), errors


def loosened(schema: object, pointer: str) -> Any:
    """A schema of an object without the keyword at a JSON pointer.

    If the pointer names a schema instead, the first group of `_GROUPS` that the schema has is dropped. If it has none,
    the schema around it is loosened in the same way.
    """
    target = _target(schema, pointer)
    if target.key is not None:
        target.drop()
    elif not any(map(_drop_group, reversed(target.schemas))):
        return _ANY_OBJECT
    return target.schemas[0]


def _without_constraints(schema: object, pointer: str, n_levels: int) -> Any:
    """A schema of an object in which the schema `n_levels` above the one at a JSON pointer keeps only its type."""
    schemas = _target(schema, pointer).schemas
    for node in schemas[len(schemas) - 1 - n_levels :: -1] if n_levels < len(schemas) else ():
        found = (ASSERTIONS - {"type", "nullable"}) & node.keys()
        for keyword in found:
            del node[keyword]
        if found:
            return schemas[0]
    return _ANY_OBJECT


def _target(schema: object, pointer: str) -> _Target:
    """The target of a JSON pointer, or of the longest part of the pointer that exists in the schema."""
    root = copy.deepcopy(schema) if isinstance(schema, dict) else dict(_ANY_OBJECT)
    root.setdefault("type", "object")
    schemas: list[dict[str, Any]] = [root]
    holder: Any = root  # an object, or a list of schemas
    keyword = None
    parts: list[Any] = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    for n, part in enumerate(parts):
        key = int(part) if isinstance(holder, list) and part.isdigit() else part
        if not _has(holder, key):
            break
        below = holder[key]
        if holder is schemas[-1]:
            is_refused = key in _REFUSED and n == len(parts) - 1
            if is_refused or key in ASSERTIONS - _ONE - _SEVERAL:
                return _Target(schemas, holder, key)
            if isinstance(below, list) or (key in _SEVERAL and isinstance(below, dict)):
                holder, keyword = below, key
                continue
        if not isinstance(below, dict):
            return _Target(schemas, holder, key)
        schemas.append(below)
        holder = below
    return _Target(schemas, schemas[-1], None if holder is schemas[-1] else keyword)


def _has(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else isinstance(key, int) and key < len(holder)


def _drop_group(node: dict[str, Any]) -> bool:
    """Drop one group of keywords; False if there is none."""
    group = next((group for group in _GROUPS if any(keyword in node for keyword in group)), ())
    for keyword in group:
        node.pop(keyword, None)
    return bool(group)
