"""Whether a schema has a finite value. If not, each value of it has another one inside it, without end.

    {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}

An output that has to match such a schema never ends. It matches no finite value, so inside another schema it is false.

Whether a schema has a finite value depends on the schemas inside it. The schema

    {"type": ["object", "array"], "anyOf": [A, B], "properties": {"a": C}, "required": ["a"], "items": D, "minItems": 1}

has one if A or B has one, and if its objects or its lists have one: objects if C has one, lists if D has one. So there
are three goals, each with its requirements: the schema, [A, B] and [objects, lists]; its objects, [C]; its lists, [D].
A goal without requirements, such as {"type": "string"}, has a finite value.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Union

from .types import declared_types
from .walk import Node, Schema, at_pointer, escaped, holder_of, used_schemas

Goal = Union[Node, "tuple[Node, str]"]
"""What needs a finite value: a schema, or its values of one type, "object" or "array"."""


@dataclass
class _Requirement:
    """Finite values that a goal needs."""

    n_needed: int
    # The goals that supply them, and how many each supplies: all of them if it is the schema of any number of
    # properties, else one.
    options: Mapping[Goal, int]


def without_endless(schema: Schema) -> Schema:
    """A schema in which those inside it whose values never end are false. Changes the schema in place.

    A schema whose values never end itself stays as it is.
    """
    nodes = used_schemas(schema)
    finite = _finite_goals(nodes, ignores_impossible=True)
    if nodes[0] in finite:
        for node in nodes:
            for step, child in node.inner.items():
                # With a reference to an endless schema, `node` is endless too, and false in the schema around it.
                if child not in finite and step != "$ref":
                    holder, key = holder_of(step, node.schema)
                    holder[key] = False
    return schema


def has_finite_value(nodes: Sequence[Node], empty: Collection[Node] = ()) -> bool:
    """Whether the first of the nodes, which are those of `used_schemas`, has a finite value.

    `empty` are nodes that no value matches.
    """
    return nodes[0] in _finite_goals(nodes, empty)


def _finite_goals(
    nodes: Sequence[Node], empty: Collection[Node] = (), *, ignores_impossible: bool = False
) -> set[Goal]:
    """The goals that have a finite value.

    With `ignores_impossible`, requirements that no schemas could meet, such as two properties where one is allowed,
    count as met, so that only those goals are missing whose values never end.

    Begins with the goals without requirements, and goes on with those whose requirements are met. Each goal is handled
    once, so the time is linear.
    """
    n_unmet: dict[Goal, int] = {}
    # For each goal the requirements of which it is an option, and the goal that has the requirement.
    uses: dict[Goal, list[tuple[Goal, _Requirement]]] = defaultdict(list)
    for node in nodes:
        for goal, all_requirements in _goals(node):
            if ignores_impossible:
                for requirement in all_requirements:
                    requirement.n_needed = min(requirement.n_needed, sum(requirement.options.values()))
            requirements = [requirement for requirement in all_requirements if requirement.n_needed > 0]
            n_unmet[goal] = len(requirements) + (node in empty)
            for requirement in requirements:
                for option in requirement.options:
                    uses[option].append((goal, requirement))
    finite = [goal for goal, n in n_unmet.items() if n == 0]
    for goal in finite:  # The list grows meanwhile.
        for user, requirement in uses[goal]:
            if requirement.n_needed <= 0:
                continue
            requirement.n_needed -= requirement.options[goal]
            if requirement.n_needed <= 0:
                n_unmet[user] -= 1
                if n_unmet[user] == 0:
                    finite.append(user)
    return set(finite)


def _goals(node: Node) -> Iterator[tuple[Goal, list[_Requirement]]]:
    """The goals of a schema, each with the requirements that are not met by schemas which are true or absent."""
    schema = node.schema
    types = declared_types(schema)
    requirements = [_requirement(node, 1, options) for options in _alternatives(schema)]
    # A schema without `type` also allows values that are neither objects nor lists, which are finite.
    if types is not None and types <= {"object", "array"}:
        requirements.append(_Requirement(1, {(node, type_name): 1 for type_name in types}))
        if "object" in types:
            yield (node, "object"), [_requirement(node, *needed) for needed in _needed_by_objects(schema)]
        if "array" in types:
            yield (node, "array"), [_requirement(node, 1, {step: 1}) for step in _needed_by_lists(schema)]
    yield node, requirements


def _requirement(node: Node, n_needed: int, steps: Mapping[str, int]) -> _Requirement:
    """A requirement whose options are the schemas at these steps, which are the keys of `Node.inner`."""
    options: Counter[Goal] = Counter()
    for step, count in steps.items():
        if step in node.inner:
            options[node.inner[step]] += count
        elif at_pointer(step, node.schema) is not False:  # A schema that is true, or absent.
            n_needed -= count
    return _Requirement(n_needed, options)


def _alternatives(schema: Schema) -> Iterator[dict[str, int]]:
    """The steps to inner schemas that apply to the same value; of each group, one needs a finite value."""
    if "$ref" in schema:
        yield {"$ref": 1}
    for i in range(len(schema.get("allOf", ()))):
        yield {f"/allOf/{i}": 1}
    for keyword in ("anyOf", "oneOf"):
        if schema.get(keyword):
            yield {f"/{keyword}/{i}": 1 for i in range(len(schema[keyword]))}


def _needed_by_lists(schema: Schema) -> Iterator[str]:
    """The steps to the schemas of the items that each list has."""
    n_items, first = int(schema.get("minItems", 0)), "/prefixItems"
    listed, rest = schema.get("prefixItems", ()), "/items"
    if isinstance(schema.get("items"), list):  # Before draft 2020-12.
        listed, first, rest = schema["items"], "/items", "/additionalItems"
    yield from (f"{first}/{i}" for i in range(min(n_items, len(listed))))
    if n_items > len(listed):
        yield rest


def _needed_by_objects(schema: Schema) -> Iterator[tuple[int, dict[str, int]]]:
    """How many values of properties each object has, and the steps to their schemas, with the number of each."""
    declared, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    required = dict.fromkeys(schema.get("required", ()))
    for name in required:
        if name in declared:
            yield 1, {f"/properties/{escaped(name)}": 1}
        elif not patterns:
            yield 1, {"/additionalProperties": 1}
    n_others = int(schema.get("minProperties", 0)) - len(required)
    if n_others > 0:
        options = {f"/properties/{escaped(name)}": 1 for name in declared if name not in required}
        for step in ("/additionalProperties", *(f"/patternProperties/{escaped(pattern)}" for pattern in patterns)):
            options[step] = n_others
        yield n_others, options
