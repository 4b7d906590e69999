"""Whether a schema has a finite value. If not, each value of it has another one inside it, without end.

    {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}

An output that has to match such a schema never ends.

Whether a schema has a finite value depends on the schemas inside it. The schema

    {"type": "object", "properties": {"a": A}, "required": ["a"], "anyOf": [B, C]}

has one if A has one, and if B or C has one. These are its two requirements: one of [A], and one of [B, C]. A schema
without requirements, such as {"type": "string"}, has a finite value.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from .prepare import Schema
from .walk import Node, at_pointer, escaped


@dataclass
class _Requirement:
    """At least `n_needed` of the options must have a finite value."""

    n_needed: int
    # Inner schemas by their steps, which are the keys of `Node.inner`, each with the number of values for which it
    # counts: `n_needed` for a schema of properties whose number is not limited, else 1.
    options: dict[str, int]


def has_finite_value(nodes: Sequence[Node], empty: Collection[Node] = ()) -> bool:
    """Whether the first of the nodes, which are those of `used_schemas`, has a finite value.

    Begins with the nodes without requirements, and goes on with those whose requirements are met. Each node is handled
    once, so the time is linear. `empty` are nodes that no value matches.
    """
    n_unmet: dict[Node, int] = {}
    # For each node the requirements of which it is an option: the node that has the requirement, and the count.
    uses: dict[Node, list[tuple[Node, _Requirement, int]]] = defaultdict(list)
    for node in nodes:
        requirements = list(_requirements(node))
        n_unmet[node] = len(requirements) + (node in empty)
        for requirement in requirements:
            for step, count in requirement.options.items():
                uses[node.inner[step]].append((node, requirement, count))
    finite = [node for node in nodes if n_unmet[node] == 0]
    for node in finite:  # The list grows meanwhile.
        for parent, requirement, count in uses[node]:
            if requirement.n_needed <= 0:
                continue
            requirement.n_needed -= count
            if requirement.n_needed <= 0:
                n_unmet[parent] -= 1
                if n_unmet[parent] == 0:
                    finite.append(parent)
    return n_unmet[nodes[0]] == 0


def _requirements(node: Node) -> Iterator[_Requirement]:
    """The requirements of a schema that are not met by inner schemas which are true or absent.

    An inner schema that is false meets none. Neither has a node.
    """
    for requirement in _all_requirements(node.schema):
        for step, count in list(requirement.options.items()):
            if step not in node.inner:
                del requirement.options[step]
                if at_pointer(step, node.schema) is not False:
                    requirement.n_needed -= count
        if requirement.n_needed > 0:
            yield requirement


def _all_requirements(schema: Schema) -> Iterator[_Requirement]:
    if "$ref" in schema:
        yield _Requirement(1, {"$ref": 1})
    for i in range(len(schema.get("allOf", ()))):
        yield _Requirement(1, {f"/allOf/{i}": 1})
    for keyword in ("anyOf", "oneOf"):
        if schema.get(keyword):
            yield _Requirement(1, {f"/{keyword}/{i}": 1 for i in range(len(schema[keyword]))})
    # A schema without `type` also allows values that are neither objects nor lists, which are finite.
    if schema.get("type") == "object":
        yield from _requirements_of_object(schema)
    if schema.get("type") == "array":
        yield from _requirements_of_list(schema)


def _requirements_of_list(schema: Schema) -> Iterator[_Requirement]:
    n_items, n_listed = int(schema.get("minItems", 0)), len(schema.get("prefixItems", ()))
    for i in range(min(n_items, n_listed)):
        yield _Requirement(1, {f"/prefixItems/{i}": 1})
    if n_items > n_listed:
        yield _Requirement(1, {"/items": 1})


def _requirements_of_object(schema: Schema) -> Iterator[_Requirement]:
    declared, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    required = dict.fromkeys(schema.get("required", ()))
    for name in required:
        if name in declared:
            yield _Requirement(1, {f"/properties/{escaped(name)}": 1})
        elif not patterns:
            yield _Requirement(1, {"/additionalProperties": 1})
    n_others = int(schema.get("minProperties", 0)) - len(required)
    if n_others > 0:
        options = {f"/properties/{escaped(name)}": 1 for name in declared if name not in required}
        for step in ("/additionalProperties", *(f"/patternProperties/{escaped(pattern)}" for pattern in patterns)):
            options[step] = n_others
        yield _Requirement(n_others, options)
