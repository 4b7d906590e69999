"""Expressions for items in any order, each at most once, such as tool arguments: one rule per set of items left."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from .expressions import EMPTY, NEVER, Expr, alt, seq
from .gbnf import Rules

# The number of sets is 2 to the power of this.
MAX_ANY_ORDER = 5


def in_any_order(rules: Rules, items: Sequence[tuple[Expr, bool]], separator: Expr, last: Expr = NEVER) -> Expr:
    """At least one item, each at most once, and every item that is required (the second value of each pair).

    After the items `last` may come.
    """
    exprs = [NEVER if item == NEVER else rules.add("pair", item) for item, _ in items]
    required = {index for index, (_, is_required) in enumerate(items) if is_required}
    # Keys are the items that are left. Values: the next item and all that follows; the same with a separator first.
    first: Expr = NEVER
    rest: dict[frozenset[int], Expr] = {}
    for n_left in range(len(items) + 1):
        for left in map(frozenset, combinations(range(len(items)), n_left)):
            may_end = not left & required
            first = alt(*(seq(exprs[i], rest[left - {i}]) for i in sorted(left)), last if may_end else NEVER)
            rest[left] = alt(seq(separator, first), EMPTY if may_end else NEVER)
            if rest[left] not in (EMPTY, NEVER):
                rest[left] = rules.add("pairs", rest[left])
    return first
