"""Loosens a JSON Schema that no grammar can enforce: drops the constraint that the error names, and no other."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from .budget import TooMuchWork, at_most, steps_left
from .errors import SchemaError, errors_located
from .schema_nodes import ASSERTIONS, pointer_names

# Limit of constraints of one schema that are dropped. Beyond it nothing of the schema is enforced.
MAX_DROPPED = 40
# Limit of steps to convert one schema once: about a hundred times the steps for a large schema.
MAX_STEPS = 150_000
# Steps that are kept for the rest of a grammar: with fewer steps left, no schema is converted.
RESERVED_STEPS = 200_000

_ANY_OBJECT = {"type": "object"}

# Keywords with one schema as their value, and keywords with an object or a list of schemas.
_ONE = frozenset(("additionalItems", "additionalProperties", "contains", "items", "not", "propertyNames"))
_SEVERAL = frozenset(
    ("$defs", "definitions", "properties", "patternProperties", "dependentSchemas", "dependencies")
) | {"allOf", "anyOf", "oneOf", "prefixItems"}
# Keywords with one schema that are dropped as a whole if the pointer of an error ends with one of them.
_DROPPED_WHOLE = frozenset(("contains", "not"))

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
    container: dict[str, Any] | list[Any]
    """The last schema, or the list or object of schemas that is the value of one of its keywords."""
    key: Any
    """The key of the target in the container; None if the target is the last schema."""

    def drop(self) -> None:
        if self.container is not self.schemas[-1]:
            # A value that is not a schema, in a place for schemas: allow every value instead.
            self.container[self.key] = True
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
        The result, and one error for each constraint that was dropped. After `MAX_DROPPED` of them, or if too few steps
        of work are left, every object is allowed; the last error says so.
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
    if len(errors) == MAX_DROPPED:
        reason = f"{MAX_DROPPED} of its constraints cannot be enforced, which is the limit, so any object is allowed"
    else:
        reason = (
            f"the schemas of all tools take too much work: {steps_left():,.0f} steps are left, and {RESERVED_STEPS:,} "
            "must remain, so any object is allowed; offer fewer tools or make their schemas simpler"
        )
    errors.append(SchemaError(path, reason))
    return convert(_ANY_OBJECT), errors


def loosened(schema: object, pointer: str) -> Any:
    """A schema of an object without the keyword at a JSON pointer.

    If the pointer leads to a schema instead, the first group of `_GROUPS` that this schema has is dropped. If it has
    none, the schema around it is loosened in the same way.
    """
    target = _target(schema, pointer)
    if target.key is not None:
        target.drop()
    elif not any(map(_drop_group, reversed(target.schemas))):
        return _ANY_OBJECT
    return target.schemas[0]


def _without_constraints(schema: object, pointer: str, n_levels: int) -> Any:
    """A schema of an object in which the schema `n_levels` above the one at a JSON pointer keeps only its type.

    If that schema has nothing else, the next schema above is reduced instead.
    """
    schemas = _target(schema, pointer).schemas
    for node in schemas[::-1][n_levels:]:
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
    container: Any = root
    keyword = None  # the keyword of the last schema that has the container as its value
    names = pointer_names(pointer)
    for n, name in enumerate(names):
        key = int(name) if isinstance(container, list) and name.isdigit() else name
        if not _has(container, key):
            break
        value = container[key]
        if container is schemas[-1]:
            if _is_dropped(name, is_last=n == len(names) - 1):
                return _Target(schemas, container, key)
            if isinstance(value, list) or (key in _SEVERAL and isinstance(value, dict)):
                container, keyword = value, key
                continue
        if not isinstance(value, dict):
            return _Target(schemas, container, key)
        schemas.append(value)
        container = value
    return _Target(schemas, schemas[-1], None if container is schemas[-1] else keyword)


def _is_dropped(keyword: str, *, is_last: bool) -> bool:
    """Whether a keyword is the target itself, and not a schema within its value."""
    return (keyword in _DROPPED_WHOLE and is_last) or keyword in ASSERTIONS - _ONE - _SEVERAL


def _has(container: Any, key: Any) -> bool:
    return key in container if isinstance(container, dict) else isinstance(key, int) and key < len(container)


def _drop_group(node: dict[str, Any]) -> bool:
    """Drop one group of keywords; False if there is none."""
    group = next((group for group in _GROUPS if any(keyword in node for keyword in group)), ())
    for keyword in group:
        node.pop(keyword, None)
    return bool(group)
