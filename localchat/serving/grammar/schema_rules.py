"""Converts intersections of schema nodes to grammar expressions for the values that match them.

Each intersection is converted once; an intersection that contains itself becomes a named rule. An intersection that no
value matches becomes NEVER, and `Rules` removes the alternatives that contain NEVER.
"""

from __future__ import annotations

from typing import Any

from .array_rules import array_expr
from .decimal_rules import decimals
from .errors import SchemaError, TooLarge
from .expressions import NEVER, Expr, Literal, RuleRef, alt, left_factored
from .integer_rules import integers
from .intersection import Branch, SchemaResolver, branch_strings
from .json_notation import JsonNotation
from .merged_keywords import AllOf, number_interval, object_keywords
from .object_rules import object_expr
from .schema_nodes import SchemaDocument, equality_key

# The types in the order of their alternatives. "number" includes integers.
_ORDER = ("object", "array", "string", "number", "integer", "boolean", "null")


class SchemaConverter:
    """Converts the schemas of one document. All methods raise SchemaError."""

    def __init__(self, document: SchemaDocument, notation: JsonNotation, *, any_order: bool = False):
        """With `any_order` up to `MAX_ANY_ORDER` properties of an object may come in any order."""
        self.resolver = SchemaResolver(document)
        self.notation = notation
        self.rules = notation.rules
        self.any_order = any_order
        # The results of `value`.
        self._done: dict[AllOf, Expr] = {}
        # Intersections that are being converted, each with its rule; None until a schema inside refers to it.
        self._open: dict[AllOf, RuleRef | None] = {}

    def value(self, nodes: AllOf) -> Expr:
        """The values that match all the nodes."""
        nodes = self.resolver.simplified(nodes)
        if nodes in self._done:
            return self._done[nodes]
        if nodes in self._open:
            ref = self._open[nodes] or self.rules.declare(_hint(nodes))
            self._open[nodes] = ref
            return ref
        self._open[nodes] = None
        body = self._body(nodes)
        own_ref = self._open.pop(nodes)
        if own_ref is not None:
            self.rules.define(own_ref, body)
        self._done[nodes] = own_ref or self._named(nodes, body)
        return self._done[nodes]

    def _body(self, nodes: AllOf) -> Expr:
        """The alternatives for all branches. A grammar that would be too large is an error at the first node."""
        try:
            return alt(*(self._branch(branch) for branch in self.resolver.branches(nodes)))
        except TooLarge as error:
            if not nodes:
                raise
            raise SchemaError(nodes[0].path, str(error)) from error

    def listed_values(self, nodes: AllOf) -> list[Any] | None:
        """All values that match; None if the schema does not enumerate them."""
        branches = self.resolver.branches(nodes)
        if any(branch.values is None for branch in branches):
            return None
        values = (value for branch in branches for value in branch.values or ())
        return list({equality_key(value): value for value in values}.values())

    def _named(self, nodes: AllOf, body: Expr) -> Expr:
        """A rule with this body, unless the body is as short as a reference to a rule."""
        return body if isinstance(body, (Literal, RuleRef)) or body == NEVER else self.rules.add(_hint(nodes), body)

    def _branch(self, branch: Branch) -> Expr:
        if not branch.nodes:
            return self.notation.value()
        if branch.values is not None:
            return left_factored(*map(self.notation.constant, branch.values))
        return alt(*(self._of_type(name, branch) for name in _ORDER if name in branch.types))

    def _of_type(self, name: str, branch: Branch) -> Expr:
        if name in ("null", "boolean"):
            values = (None,) if name == "null" else (True, False)
            return alt(*(self.notation.constant(value) for value in values if value not in branch.not_values))
        if name == "object":
            return self._object(branch)
        if name == "array":
            return array_expr(self, branch.nodes)
        if name == "string":
            return self.notation.string(branch_strings(branch), _hint(branch.nodes, "string"))
        if name == "number":
            return decimals(self.rules, number_interval(branch.nodes))
        # The alternative for "number" matches integers, too.
        return NEVER if "number" in branch.types else integers(self.rules, number_interval(branch.nodes))

    def _object(self, branch: Branch) -> Expr:
        keywords = object_keywords(branch.nodes)
        if not keywords.nodes and not branch.not_names:
            return self.notation.object()
        return object_expr(self, keywords, branch.not_names)


def _hint(nodes: AllOf, default: str = "value") -> str:
    """A name for the rule of these nodes: the last name in the path of the first node that is not an index."""
    names = [part for part in nodes[0].path.split("/")[1:] if not part.isdigit()] if nodes else []
    return "-".join(names[-1:]) or default
