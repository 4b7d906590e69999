"""Whether two schemas plainly have no value in common, so that `oneOf` of them is `anyOf`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from .types import listed_texts, possible_types
from .walk import IN_PLACE

# Keywords with which an object may have other names than those in `properties`.
_OF_NAMES = frozenset((*IN_PLACE, "$ref", "patternProperties", "propertyNames"))


def exclude_each_other(schemas: Sequence[Any], *, are_closed: bool) -> bool:
    """Whether it is plain that no value matches two of the schemas.

    Args:
        are_closed: Whether objects that declare properties have no others.
    """
    if not all(isinstance(schema, dict) for schema in schemas):
        return False
    return all(_excludes(first, second, are_closed) for first, second in itertools.permutations(schemas, 2))


def _excludes(first: dict[str, Any], second: dict[str, Any], are_closed: bool) -> bool:
    """Whether it is plain that no value of the first schema matches the second one.

    It is if their types differ, if both require a property with other texts, or if the second one requires a property
    that the first one does not have.
    """
    if not possible_types(first) & possible_types(second):
        return True
    if possible_types(first) != {"object"}:
        return False
    declared, required = first.get("properties", {}), set(second.get("required", ()))
    has_listed_names = bool(declared) and first.get("additionalProperties", False) is False
    is_closed = are_closed and has_listed_names and not first.keys() & _OF_NAMES
    if is_closed and required - declared.keys() - set(first.get("required", ())):
        return True
    for name in required & set(first.get("required", ())):
        texts, others = (listed_texts(schema.get("properties", {}).get(name)) for schema in (first, second))
        if texts and others and not texts & others:
            return True
    return False
