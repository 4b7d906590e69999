"""Resolves intersections of schema nodes: follows references, merges allOf, splits anyOf and oneOf into branches.

An intersection is a tuple of nodes (`AllOf`); a value must match all of them. To merge two schemas, their tuples are
joined, and so are the tuples for their properties and items. This terminates for recursive schemas, since a document
has finitely many nodes and thus finitely many tuples. This module produces no grammar.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from .budget import spend
from .disjoint import DisjointCheck
from .errors import SchemaError
from .intervals import exact, is_number
from .merged_keywords import (
    AllOf,
    array_keywords,
    dependencies,
    number_interval,
    object_keywords,
    property_schemas,
    string_language,
)
from .regular_languages import ANY_TEXT, Language, complement, contains, intersection, literals
from .schema_nodes import TYPES, UNSUPPORTED, SchemaDocument, SchemaNode, common_values, equality_key, shortened

# Limit of branches of one intersection. If a value must match several anyOf, there is a branch for each combination of
# their branches.
MAX_BRANCHES = 200

_NUMBERS = frozenset(["integer", "number"])
_TYPE_NAMES = {type(None): "null", bool: "boolean", str: "string", list: "array", dict: "object"}


@dataclass(frozen=True)
class Branch:
    """One way to match an intersection."""

    nodes: AllOf
    """The nodes that a value must match. Their references and combining keywords are already resolved."""
    types: frozenset[str]
    """The types that the values may have."""
    values: tuple[Any, ...] | None = None
    """The only values that match; None if the schema does not enumerate them."""
    not_values: tuple[Any, ...] = ()
    """The values that `not` excludes."""
    not_names: tuple[str, ...] = ()
    """The property names that `not` excludes."""

    @cached_property
    def value_keys(self) -> frozenset[Hashable]:
        """The equality keys of `values`."""
        return frozenset(map(equality_key, self.values or ()))


class SchemaResolver:
    """Resolves the intersections of one document's nodes. All methods raise SchemaError."""

    def __init__(self, document: SchemaDocument):
        self._document = document
        self._branches: dict[AllOf, tuple[Branch, ...]] = {}

    def branches(self, nodes: AllOf) -> tuple[Branch, ...]:
        """The ways to match all the nodes; none if nothing matches."""
        if nodes not in self._branches:
            options = self._combinations(self._options(node, (), len(nodes) == 1) for node in nodes)
            found = map(self._branch, options)
            self._branches[nodes] = tuple(branch for branch in found if branch is not None)
        return self._branches[nodes]

    def simplified(self, nodes: AllOf) -> AllOf:
        """The same intersection without nodes that allow every value.

        A node that is only a reference is replaced by its target.
        """
        found = dict.fromkeys(self._target(node) for node in nodes)
        return tuple(node for node in found if node.assertions() != frozenset())

    def _target(self, node: SchemaNode) -> SchemaNode:
        seen: list[SchemaNode] = []
        while node.assertions() == frozenset(["$ref"]) and node not in seen:
            seen.append(node)
            node = self._document.resolve(node)
        return node

    # Options. A value matches a node if it matches all nodes of one option; their references and combining keywords
    # are then already resolved.

    def _options(self, node: SchemaNode, outer: AllOf, is_alone: bool) -> list[AllOf]:
        """The options of one node.

        Args:
            outer: The nodes that apply this node to the same value, by `$ref` or a combining keyword. A node among
                them refers to itself without end.
            is_alone: Whether no other schema applies to the value; see `DisjointCheck`.
        """
        if node.schema is True or node.schema is False:
            return [()] if node.schema else []
        assertions = node.assertions()
        if assertions is None:
            raise SchemaError(node.path, f"must be a schema (an object, true or false), got {shortened(node.schema)}")
        if not assertions:
            return [()]
        if node in outer:
            raise SchemaError(
                node.path,
                "refers to itself by $ref, allOf, anyOf or oneOf alone: a schema may refer to itself only within "
                "properties or items",
            )
        for keyword in sorted(UNSUPPORTED.keys() & node.schema.keys()):
            node.fail(keyword, f"is not supported: {UNSUPPORTED[keyword]}")
        self._document.check_id(node)
        # The schemas of the only other keyword apply alone: `type` and `nullable` declare no property names.
        is_alone = is_alone and len(assertions - {"type", "nullable"}) == 1
        return self._combinations([[(node,)], *self._applied(node, (*outer, node), is_alone)])

    def _applied(self, node: SchemaNode, outer: AllOf, is_alone: bool) -> Iterator[list[AllOf]]:
        """For each keyword that applies schemas to the same value: the options of which one must match."""
        if node.has("$ref"):
            yield self._options(self._document.resolve(node), outer, is_alone)
        for part in node.children("allOf"):
            yield self._options(part, outer, False)
        for keyword in ("anyOf", "oneOf"):
            if node.has(keyword):
                yield self._union(node, keyword, outer, is_alone)
        for name, needed in dependencies(node):
            absent = SchemaNode(f"{node.path}/no-{name}", {"propertyNames": {"not": {"const": name}}})
            present = SchemaNode(f"{node.path}/with-{name}", {"required": [name]})
            yield [(absent,), *self._combinations([[(present,)], self._options(needed, outer, False)])]

    def _union(self, node: SchemaNode, keyword: str, outer: AllOf, is_alone: bool) -> list[AllOf]:
        """The options of all schemas of anyOf or oneOf."""
        parts = node.children(keyword)
        if not parts:
            node.fail(keyword, "must list at least one schema")
        options = list(dict.fromkeys(option for part in parts for option in self._options(part, outer, is_alone)))
        if keyword == "oneOf":
            self._check_disjoint(node, parts, is_alone)
        return options

    def _combinations(self, factors: Iterable[list[AllOf]]) -> list[AllOf]:
        """Every combination of one option from each list."""
        result: list[AllOf] = [()]
        for factor in factors:
            joined = [tuple(dict.fromkeys(left + right)) for left in result for right in factor]
            result = list(dict.fromkeys(joined))
            if len(result) > MAX_BRANCHES:
                path = next(node.path for option in result for node in option)
                raise SchemaError(
                    path,
                    f"has {len(result)} or more combinations of branches of anyOf and oneOf, the limit is "
                    f"{MAX_BRANCHES}: use fewer branches",
                )
        return result

    def _check_disjoint(self, node: SchemaNode, parts: list[SchemaNode], is_alone: bool) -> None:
        """Refuse a oneOf of which two schemas may both match a value."""
        check = DisjointCheck(self, is_alone)
        for n, part in enumerate(parts):
            for m in range(n):
                if not check.are_disjoint((parts[m],), (part,)):
                    node.fail(
                        "oneOf",
                        f"branches {m} and {n} may both match one value: use anyOf, or give both a required property "
                        "with different constants",
                    )

    # Branches

    def _branch(self, nodes: AllOf) -> Branch | None:
        """The branch of an option; None if no value matches."""
        types = frozenset.intersection(frozenset(TYPES), *(node.types() for node in nodes))
        listed = self._listed_values(nodes, types)
        if listed is not None:
            values = tuple(value for value in listed if self._nodes_accept(nodes, value))
            return Branch(nodes, types, values) if values else None
        branch: Branch | None = Branch(nodes, types)
        for node in nodes:
            if branch is not None and node.has("not"):
                branch = self._without(branch, node)
        return branch if branch is not None and branch.types else None

    def _listed_values(self, nodes: AllOf, types: frozenset[str]) -> list[Any] | None:
        """The only values that can match; None if the schema does not enumerate them."""
        tables = [values for node in nodes if (values := node.values()) is not None]
        if not tables and types <= {"null", "boolean"}:
            return [None, False, True]
        found = common_values(tables)
        return None if found is None else list(found.values())

    def _without(self, branch: Branch, node: SchemaNode) -> Branch | None:
        """The branch without the values of the node's `not`; None if no value is left.

        Only some schemas can be negated.
        """
        negated = node.child("not")
        assertions = negated.assertions() or frozenset()
        if negated.schema is False:
            return branch
        if negated.schema is True or negated.assertions() == frozenset():
            return None
        # `number` without `integer` would leave the non-integral numbers, for which there is no expression.
        if assertions == {"type"} and not ("number" in branch.types and _NUMBERS & negated.types() == {"integer"}):
            return replace(branch, types=branch.types - negated.types())
        if assertions and assertions <= {"enum", "const"}:
            values = tuple(value for value in (negated.values() or {}).values() if _types_of(value) & branch.types)
            if all(value is None or isinstance(value, (bool, str)) for value in values):
                return replace(branch, not_values=branch.not_values + values)
        if assertions != {"required"} or len(negated.names("required")) != 1:
            node.fail(
                "not",
                "is only supported with a type, with constants that are strings, booleans or null, or with one "
                "required name: say what is allowed instead",
            )
        names = branch.not_names + tuple(negated.names("required"))
        return replace(branch, types=branch.types & {"object"}, not_names=names)

    # Validation of values

    def accepts(self, nodes: AllOf, value: Any) -> bool:
        """Whether a value matches all the nodes."""
        return any(self.branch_accepts(branch, value) for branch in self.branches(nodes))

    def branch_accepts(self, branch: Branch, value: Any) -> bool:
        if branch.values is not None:
            return equality_key(value) in branch.value_keys
        return bool(_types_of(value) & branch.types) and self._nodes_accept(branch.nodes, value)

    def _nodes_accept(self, nodes: AllOf, value: Any) -> bool:
        """Whether a value matches the nodes of a branch, apart from enum and const."""
        spend(10 * len(nodes))
        for node in nodes:
            if not _types_of(value) & node.types():
                return False
            if node.has("not") and self.accepts((node.child("not"),), value):
                return False
        if isinstance(value, str):
            return contains(string_language(nodes), value)
        if isinstance(value, list):
            return self._array_accepts(nodes, value)
        if isinstance(value, dict):
            return self._object_accepts(nodes, value)
        return value is None or isinstance(value, bool) or exact(value) in number_interval(nodes)

    def _array_accepts(self, nodes: AllOf, items: list[Any]) -> bool:
        keywords = array_keywords(nodes)
        return (
            len(items) >= keywords.min_items
            and (keywords.max_items is None or len(items) <= keywords.max_items)
            and all(self.accepts(keywords.item(n), item) for n, item in enumerate(items))
            and not (keywords.is_unique and len(set(map(equality_key, items))) < len(items))
            and all(sum(self.accepts((one,), item) for item in items) >= n for one, n in keywords.contained)
        )

    def _object_accepts(self, nodes: AllOf, value: dict[str, Any]) -> bool:
        keywords = object_keywords(nodes)
        return (
            len(value) >= keywords.min_properties
            and (keywords.max_properties is None or len(value) <= keywords.max_properties)
            and keywords.required <= value.keys()
            and all(self.accepts(keywords.names, name) for name in value)
            and all(self.accepts(property_schemas(nodes, name), item) for name, item in value.items())
        )

    # Strings

    def strings(self, nodes: AllOf) -> Language:
        """The strings that match all the nodes."""
        options: list[Language] = []
        for branch in self.branches(nodes):
            if not branch.nodes:
                return ANY_TEXT
            if branch.values is not None:
                options.append(literals(value for value in branch.values if isinstance(value, str)))
            elif "string" in branch.types:
                options.append(branch_strings(branch))
        # The union, as the complement of the intersection of the complements.
        return complement(intersection(*map(complement, options)))


def branch_strings(branch: Branch) -> Language:
    """The strings that match a branch whose values are not listed."""
    return string_language(branch.nodes, [value for value in branch.not_values if isinstance(value, str)])


def _types_of(value: Any) -> frozenset[str]:
    """The types of a value. An integer has two: "integer" and "number"."""
    if is_number(value):
        return frozenset(("number", "integer") if exact(value).denominator == 1 else ("number",))
    return frozenset([_TYPE_NAMES[type(value)]])
