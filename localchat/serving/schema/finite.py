"""Whether a schema has a finite value. If not, each value of it has another one inside it, without end.

    {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}

An output that has to match such a schema never ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .prepare import Schema
from .walk import Node, at_pointer, escaped


@dataclass
class _Need:
    """Several of other schemas must have a finite value, so that a schema may have one."""

    node: Node  # The schema.
    n_left: int  # How many of the other schemas are still needed. Below 1: none.


def has_finite_value(nodes: Sequence[Node]) -> bool:
    """Whether the first of the nodes, which are those of `used_schemas`, has a finite value.

    Begins with the schemas that need no other one, and goes on with those whose needs are met.
    """
    n_unmet: dict[Node, int] = {}
    needs_met_by: dict[Node, list[tuple[_Need, int]]] = defaultdict(list)
    for node in nodes:
        needs = list(_needs(node))
        n_unmet[node] = len(needs)
        for n_needed, choices in needs:
            need = _Need(node, n_needed)
            for choice, n_met in choices:
                needs_met_by[choice].append((need, n_met))
    finite = [node for node in nodes if n_unmet[node] == 0]
    for node in finite:  # The list grows meanwhile, by each node once.
        for need, n_met in needs_met_by[node]:
            was_met = need.n_left < 1
            need.n_left -= n_met
            if need.n_left < 1 and not was_met:
                n_unmet[need.node] -= 1
                if n_unmet[need.node] == 0:
                    finite.append(need.node)
    return n_unmet[nodes[0]] == 0


def _needs(node: Node) -> Iterator[tuple[int, list[tuple[Node, int]]]]:
    """The needs of a schema: the number that is needed, and the schemas, each with how much of the number it meets."""
    for n_needed, steps in _needed(node.schema):
        choices = []
        for step, n_met in steps:
            if step in node.inner:
                choices.append((node.inner[step], n_met))
            elif at_pointer(step, node.schema) is not False:  # A schema that is true or absent needs nothing.
                n_needed -= n_met
        if n_needed > 0:
            yield n_needed, choices


def _needed(schema: Schema) -> Iterator[tuple[int, list[tuple[str, int]]]]:
    """The same, with the steps to the schemas."""
    if "$ref" in schema:
        yield 1, [("$ref", 1)]
    for i in range(len(schema.get("allOf", ()))):
        yield 1, [(f"/allOf/{i}", 1)]
    if schema.get("type") == "object":
        yield from _needed_properties(schema)
    if schema.get("type") == "array":
        n_items, n_listed = int(schema.get("minItems", 0)), len(schema.get("prefixItems", ()))
        for i in range(min(n_items, n_listed)):
            yield 1, [(f"/prefixItems/{i}", 1)]
        if n_items > n_listed:
            yield 1, [("/items", 1)]
    for keyword in ("anyOf", "oneOf"):
        if schema.get(keyword):
            yield 1, [(f"/{keyword}/{i}", 1) for i in range(len(schema[keyword]))]


def _needed_properties(schema: Schema) -> Iterator[tuple[int, list[tuple[str, int]]]]:
    declared, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    required = dict.fromkeys(schema.get("required", ()))
    for name in required:
        if name in declared:
            yield 1, [(f"/properties/{escaped(name)}", 1)]
        elif not patterns:
            yield 1, [("/additionalProperties", 1)]
    n_others = int(schema.get("minProperties", 0)) - len(required)
    if n_others > 0:
        # A declared name is one property; there are any number of the others.
        listed = [(f"/properties/{escaped(name)}", 1) for name in declared if name not in required]
        open = ["/additionalProperties", *(f"/patternProperties/{escaped(pattern)}" for pattern in patterns)]
        yield n_others, [*listed, *((step, n_others) for step in open)]
