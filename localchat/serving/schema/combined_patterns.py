"""The patterns of a schema that apply to one text together, because `allOf` or a reference combines their schemas.

llguidance takes twice as much memory for each further one: with thirty, more than a machine has.

    {"allOf": [{"properties": {"a": P}}, {"properties": {"a": {"anyOf": [Q, R]}}}]}

If P, Q and R have patterns, two of them apply to the value of "a" together: P, and Q or R. They are counted by the
steps from the root to each pattern, which are divided into two paths:

         steps                                  to the value       through combinations
    P    /allOf/0 /properties/a                 /properties/a      /allOf/0
    Q    /allOf/1 /properties/a /anyOf/0        /properties/a      /allOf/1
    R    /allOf/1 /properties/a /anyOf/1        /properties/a      /allOf/1

The number of patterns that apply to a value together is that of different paths through combinations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .types import restrictions
from .walk import Node

# The limit of patterns that apply to one text. llguidance gives up at about as many, if they are simple.
_MAX_COMBINED = 10
# The limit of visits to schemas below an `allOf`: a schema to which many references lead is visited at each.
_MAX_VISITS = 100_000

_SAME_VALUE = frozenset(("allOf", "anyOf", "oneOf", "$ref"))
_ITEMS = frozenset(("items", "prefixItems", "additionalItems"))
# The keywords whose schemas may apply to properties of any name.
_ANY_NAME = frozenset(("additionalProperties", "patternProperties"))


class _Paths:
    """Numbers for paths of steps, which take less memory than the steps."""

    EMPTY = 0

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, str], int] = {}

    def extended(self, path: int, step: str) -> int:
        return self._numbers.setdefault((path, step), len(self._numbers) + 1)


class _Visit(NamedTuple):
    """A schema at one of the places to which the walk comes, with the two paths to it."""

    node: Node
    value: int  # The path to the value to which the schema applies.
    combination: int  # The path into branches of `allOf`, and through references beside other keywords.
    parent: _Visit | None

    def is_inside_itself(self) -> bool:
        visit = self.parent
        while visit is not None:
            if visit.node is self.node:
                return True
            visit = visit.parent
        return False


def too_many_patterns(nodes: Sequence[Node]) -> tuple[Node, str, str] | None:
    """The first schema whose pattern is one too many for its text, its keyword or "", and the reason.

    None if no text has too many.
    """
    n_visits = 0
    combinations_of_value: defaultdict[int, set[int]] = defaultdict(set)
    for node, value, combination, _ in _visits(nodes):
        has_pattern = "pattern" in node.schema
        keyword = "pattern" if has_pattern else ""
        n_visits += combination != _Paths.EMPTY
        if n_visits > _MAX_VISITS:
            return node, keyword, "so many schemas are combined that the patterns of a text cannot be counted"
        if has_pattern:
            combinations_of_value[value].add(combination)
            if len(combinations_of_value[value]) > _MAX_COMBINED:
                return node, keyword, f"more than {_MAX_COMBINED} patterns apply to one text, which is the limit"
    return None


def _visits(nodes: Sequence[Node]) -> Iterator[_Visit]:
    """A visit to each schema on a way to a pattern: one outside of combinations, and one for each way inside them."""
    with_patterns = _with_patterns(nodes)
    # If there are patterns for properties of any name, all properties of an object count as one.
    all_names = any(
        _keyword(step) in _ANY_NAME and child in with_patterns for node in nodes for step, child in node.inner.items()
    )
    paths = _Paths()
    seen: set[Node] = set()  # The schemas that were visited outside of combinations.
    stack = [_Visit(nodes[0], paths.EMPTY, paths.EMPTY, None)]
    while stack:
        visit = stack.pop()
        node = visit.node
        if visit.combination == paths.EMPTY:
            if node in seen:
                continue
            seen.add(node)
        elif visit.is_inside_itself():
            continue
        yield visit
        for step, child in node.inner.items():
            if child not in with_patterns:
                continue
            value, combination = visit.value, visit.combination
            if _keyword(step) not in _SAME_VALUE:
                value = paths.extended(value, _step_to_value(step, all_names=all_names))
            elif step.startswith("/allOf/") or (step == "$ref" and len(restrictions(node.schema)) > 1):
                combination = paths.extended(combination, step)
            stack.append(_Visit(child, value, combination, visit))


def _with_patterns(nodes: Sequence[Node]) -> set[Node]:
    """The nodes that have a pattern, or a schema inside them that has one."""
    parents: defaultdict[Node, list[Node]] = defaultdict(list)
    for node in nodes:
        for child in node.inner.values():
            parents[child].append(node)
    stack = [node for node in nodes if "pattern" in node.schema]
    found = set(stack)
    while stack:
        for parent in parents[stack.pop()]:
            if parent not in found:
                found.add(parent)
                stack.append(parent)
    return found


def _keyword(step: str) -> str:
    return step.strip("/").partition("/")[0]


def _step_to_value(step: str, *, all_names: bool) -> str:
    """A step to an item or a property; one step for all items, and with `all_names` one for all properties."""
    keyword = _keyword(step)
    if keyword in _ITEMS:
        return "items"
    return "properties" if all_names and (keyword in _ANY_NAME or keyword == "properties") else step
