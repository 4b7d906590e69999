"""Expressions for items in any order, each at most once, such as tool arguments.

There is one rule for each set of remaining items.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from .expressions import EMPTY, NEVER, Expr, alt, seq
from .gbnf import Rules

# Limit of items. The rules are as many as the subsets of the items: 2 to the power of this.
MAX_ANY_ORDER = 5


def in_any_order(rules: Rules, items: Sequence[tuple[Expr, bool]], separator: Expr, last: Expr = NEVER) -> Expr:
    """The items in any order, at least one: each at most once, every required item, `separator` between them.

    Args:
        items: Expressions, each with whether it is required.
        last: An expression that may follow the items, or stand alone if no item is required.
    """
    exprs = [NEVER if item == NEVER else rules.add("pair", item) for item, _ in items]
    required = {index for index, (_, is_required) in enumerate(items) if is_required}
    # For a set of remaining items, `first` is the text from the next item on, and `rest` of the set is the separator
    # and that text. Without a required item in the set, `rest` may be empty and `last` may take the place of the item.
    first: Expr = NEVER
    rest: dict[frozenset[int], Expr] = {}
    for left in subsets(len(items)):
        may_end = not left & required
        first = alt(*(seq(exprs[i], rest[left - {i}]) for i in sorted(left)), last if may_end else NEVER)
        rest[left] = alt(seq(separator, first), EMPTY if may_end else NEVER)
        if rest[left] not in (EMPTY, NEVER):
            rest[left] = rules.add("pairs", rest[left])
    return first


def subsets(n: int) -> Iterator[frozenset[int]]:
    """The subsets of the numbers below `n`, the smaller ones first."""
    for size in range(n + 1):
        yield from map(frozenset, combinations(range(n), size))
