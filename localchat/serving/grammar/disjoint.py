"""Checks whether two schemas are disjoint, that is, whether no value matches both.

A grammar matches a value of any branch of oneOf. oneOf allows a value of exactly one branch, which is the same only if
its branches are disjoint.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .errors import TooLarge
from .merged_keywords import (
    AllOf,
    ArrayKeywords,
    ObjectKeywords,
    array_keywords,
    number_interval,
    object_keywords,
    property_schemas,
    string_language,
)
from .regular_languages import Language, intersection, is_empty

if TYPE_CHECKING:
    from .intersection import Branch, SchemaResolver

# Limit of levels of properties and items that are searched for a difference.
MAX_DEPTH = 4


@dataclass(frozen=True)
class DisjointCheck:
    """Searches two schemas for a difference that makes them disjoint. All methods raise SchemaError."""

    resolver: SchemaResolver
    is_alone: bool
    """Whether no other schema applies to the value. Another schema could declare names that a branch lacks."""
    depth: int = MAX_DEPTH
    """The levels that are still searched."""

    def are_disjoint(self, left: AllOf, right: AllOf) -> bool:
        """True if no value that is generated for one side can match the other; False if unknown."""
        if self.depth <= 0:
            return False
        inner = replace(self, depth=self.depth - 1)
        branches = ((a, b) for a in self.resolver.branches(left) for b in self.resolver.branches(right))
        return all(inner._disjoint_branches(a, b) for a, b in branches)

    def _disjoint_branches(self, a: Branch, b: Branch) -> bool:
        for one, two in ((a, b), (b, a)):
            if one.values is not None:
                return not any(self.resolver.branch_accepts(two, value) for value in one.values)
        return all(self._disjoint_in(name, a.nodes, b.nodes) for name in a.types & b.types)

    def _disjoint_in(self, name: str, a: AllOf, b: AllOf) -> bool:
        """Whether no value of this type matches both."""
        if name in ("integer", "number"):
            return (number_interval(a) & number_interval(b)).is_empty()
        if name == "string":
            return _is_certainly_empty(intersection(string_language(a), string_language(b)))
        if name == "array":
            return self._disjoint_arrays(array_keywords(a), array_keywords(b))
        return name == "object" and self._disjoint_objects(a, b)

    def _disjoint_arrays(self, a: ArrayKeywords, b: ArrayKeywords) -> bool:
        for one, two in ((a, b), (b, a)):
            if two.max_items is not None and one.min_items > two.max_items:
                return True
        return any(self.are_disjoint(a.item(n), b.item(n)) for n in range(min(a.min_items, b.min_items)))

    def _disjoint_objects(self, a: AllOf, b: AllOf) -> bool:
        left, right = object_keywords(a), object_keywords(b)
        common = sorted(left.required & right.required)
        if any(self.are_disjoint(property_schemas(a, name), property_schemas(b, name)) for name in common):
            return True
        return self.is_alone and self._lacks_name(a, left, right) and self._lacks_name(b, right, left)

    def _lacks_name(self, nodes: AllOf, keywords: ObjectKeywords, other: ObjectKeywords) -> bool:
        """Whether `other` requires a name that the objects generated for the nodes never have."""
        return any(
            not keywords.generates(name) or not self.resolver.branches(property_schemas(nodes, name))
            for name in other.required
        )


def _is_certainly_empty(language: Language) -> bool:
    try:
        return is_empty(language)
    except TooLarge:
        return False
