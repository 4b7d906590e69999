"""The patterns of a schema that apply to one text together, because `allOf` or a reference combines their schemas.

llguidance takes twice as much memory for each further one: with thirty, more than a machine has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from .types import restrictions
from .walk import Node

# The limit of patterns that apply to one text. llguidance gives up at about as many, if they are simple.
MAX_COMBINED = 10
# The limit of visits to schemas below an `allOf`: a schema to which many references lead is visited at each.
_MAX_VISITS = 100_000

_SAME_VALUE = frozenset(("allOf", "anyOf", "oneOf", "$ref"))
_ITEMS = frozenset(("items", "prefixItems", "additionalItems"))
# The keywords whose schemas may apply to properties of any name.
_ANY_NAME = frozenset(("additionalProperties", "patternProperties"))


class _Visit(NamedTuple):
    """A schema at one of the places to which the walk comes."""

    node: Node
    # Hashes of the steps on the way, which take less memory than the steps.
    value_id: int  # Of those to the value to which the schema applies.
    combination_id: int  # Of those into branches of `allOf`, or through references beside other keywords; 0: none.
    parent: _Visit | None

    def is_repeated(self) -> bool:
        """Whether the schema is inside itself."""
        visit = self.parent
        while visit is not None:
            if visit.node is self.node:
                return True
            visit = visit.parent
        return False


def crowded_node(nodes: Sequence[Node]) -> tuple[Node, str] | None:
    """The first schema whose pattern is one too many for its text, of the nodes of a schema, and why.

    The patterns of a text that apply together are those that different combinations lead to. Returns None if no text
    has too many.
    """
    with_patterns = _with_patterns(nodes)
    # If there are patterns for properties of any name, all properties of an object count as one.
    all_names = any(
        _keyword(step) in _ANY_NAME and id(child) in with_patterns
        for node in nodes
        for step, child in node.inner.items()
    )
    combinations_of_value: defaultdict[int, set[int]] = defaultdict(set)
    seen: set[int] = set()  # The schemas that were visited outside of all `allOf`.
    stack = [_Visit(nodes[0], 0, 0, None)]
    n_visits = 0
    while stack:
        visit = stack.pop()
        node = visit.node
        if visit.combination_id == 0:
            if id(node) in seen:
                continue
            seen.add(id(node))
        elif visit.is_repeated():
            continue
        else:
            n_visits += 1
        if n_visits > _MAX_VISITS:
            return node, "so many schemas are combined that the patterns of a text cannot be counted"
        if "pattern" in node.schema:
            combinations = combinations_of_value[visit.value_id]
            combinations.add(visit.combination_id)
            if len(combinations) > MAX_COMBINED:
                return node, f"more than {MAX_COMBINED} patterns apply to one text, which is the limit"
        for step, child in node.inner.items():
            if id(child) in with_patterns:
                value_id = _value_id(visit, step, all_names=all_names)
                stack.append(_Visit(child, value_id, _combination_id(visit, step), visit))
    return None


def _with_patterns(nodes: Sequence[Node]) -> set[int]:
    """The ids of the nodes that have a pattern, or a schema inside them that has one."""
    parents: defaultdict[int, list[Node]] = defaultdict(list)
    for node in nodes:
        for child in node.inner.values():
            parents[id(child)].append(node)
    stack = [node for node in nodes if "pattern" in node.schema]
    ids = set(map(id, stack))
    while stack:
        for parent in parents[id(stack.pop())]:
            if id(parent) not in ids:
                ids.add(id(parent))
                stack.append(parent)
    return ids


def _keyword(step: str) -> str:
    return step.strip("/").partition("/")[0]


def _value_id(visit: _Visit, step: str, *, all_names: bool) -> int:
    keyword = _keyword(step)
    if keyword in _SAME_VALUE:
        return visit.value_id
    if keyword in _ITEMS:
        step = "items"
    elif all_names and (keyword in _ANY_NAME or keyword == "properties"):
        step = "properties"
    return hash((visit.value_id, step))


def _combination_id(visit: _Visit, step: str) -> int:
    is_combined = step.startswith("/allOf/") or (step == "$ref" and len(restrictions(visit.node.schema)) > 1)
    return hash((visit.combination_id, step)) if is_combined else visit.combination_id
