"""Checks whether two schemas are disjoint.

The alternatives of a grammar match the union of the branches of oneOf. The union is what oneOf allows only if the
branches are disjoint.
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
    """Whether no other schema applies to the value. Another schema could declare more property names."""
    depth: int = MAX_DEPTH
    """The levels that are still searched."""

    def are_disjoint(self, left: AllOf, right: AllOf) -> bool:
        """True if no value that is generated for one side can match the other; False if unknown."""
        if self.depth <= 0:
            return False
        inner = replace(self, depth=self.depth - 1)
        branches = ((a, b) for a in self.resolver.branches(left) for b in self.resolver.branches(right))
        return all(inner._branches(a, b) for a, b in branches)

    def _branches(self, a: Branch, b: Branch) -> bool:
        for one, two in ((a, b), (b, a)):
            if one.values is not None:
                return not any(self.resolver.branch_accepts(two, value) for value in one.values)
        return all(self._of_type(name, a.nodes, b.nodes) for name in a.types & b.types)

    def _of_type(self, name: str, a: AllOf, b: AllOf) -> bool:
        if name in ("integer", "number"):
            return (number_interval(a) & number_interval(b)).is_empty()
        if name == "string":
            return _is_certainly_empty(intersection(string_language(a), string_language(b)))
        if name == "array":
            return self._arrays(array_keywords(a), array_keywords(b))
        return name == "object" and self._objects(a, b)

    def _arrays(self, a: ArrayKeywords, b: ArrayKeywords) -> bool:
        if (b.high is not None and a.low > b.high) or (a.high is not None and b.low > a.high):
            return True
        return any(self.are_disjoint(a.item(n), b.item(n)) for n in range(min(a.low, b.low)))

    def _objects(self, a: AllOf, b: AllOf) -> bool:
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
