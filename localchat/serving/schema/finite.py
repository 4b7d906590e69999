"""Whether a schema has a finite value. If not, each value of it has another one inside it, without end.

    {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}

An output that has to match such a schema never ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .walk import Node, escaped


@dataclass
class _Need:
    """One of several schemas must have a finite value, so that another schema may have one."""

    node: Node  # The other schema.
    is_met: bool = False


def has_finite_value(nodes: Sequence[Node]) -> bool:
    """Whether the first of the nodes, which are those of `used_schemas`, has a finite value.

    Begins with the schemas that need no other one, and goes on with those whose needs are met.
    """
    n_unmet: dict[Node, int] = {}
    needs_met_by: dict[Node, list[_Need]] = defaultdict(list)
    for node in nodes:
        choices = list(_choices(node))
        n_unmet[node] = len(choices)
        for choice in choices:
            need = _Need(node)
            for needed in choice:
                needs_met_by[needed].append(need)
    finite = [node for node in nodes if n_unmet[node] == 0]
    for node in finite:  # The list grows meanwhile, by each node once.
        for need in needs_met_by[node]:
            if not need.is_met:
                need.is_met = True
                n_unmet[need.node] -= 1
                if n_unmet[need.node] == 0:
                    finite.append(need.node)
    return n_unmet[nodes[0]] == 0


def _choices(node: Node) -> Iterator[list[Node]]:
    """The schemas that a value of this one needs: one of each list. A schema that is true or absent needs nothing."""
    for steps in _needed(node):
        if all(step in node.inner for step in steps):
            yield [node.inner[step] for step in steps]


def _needed(node: Node) -> Iterator[list[str]]:
    """The same, as the steps to the schemas."""
    schema = node.schema
    if "$ref" in schema:
        yield ["$ref"]
    for i in range(len(schema.get("allOf", ()))):
        yield [f"/allOf/{i}"]
    if schema.get("type") == "object":
        for name in schema.get("required", ()):
            yield [f"/properties/{escaped(name)}"]
    if schema.get("type") == "array":
        n_items, n_listed = int(schema.get("minItems", 0)), len(schema.get("prefixItems", ()))
        for i in range(min(n_items, n_listed)):
            yield [f"/prefixItems/{i}"]
        if n_items > n_listed:
            yield ["/items"]
    for keyword in ("anyOf", "oneOf"):
        if schema.get(keyword):
            yield [f"/{keyword}/{i}" for i in range(len(schema[keyword]))]
