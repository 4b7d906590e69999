"""Things that may come in any order, each once at most: a rule for every set of those that are left."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from .rules import EMPTY, NEVER, Expr, Rules, alt, seq

# The sets are 2 to the power of this.
MAX_ANY_ORDER = 5


def in_any_order(rules: Rules, items: Sequence[tuple[Expr, bool]], separator: Expr, more: Expr = NEVER) -> Expr:
    """At least one of the items, and all that are required (the second of each pair); at last there may be `more`."""
    exprs = [NEVER if item == NEVER else rules.add("pair", item) for item, _ in items]
    required = {index for index, (_, is_required) in enumerate(items) if is_required}
    # What comes first and what may follow, by what is left.
    first: Expr = NEVER
    rest: dict[frozenset[int], Expr] = {}
    for n_left in range(len(items) + 1):
        for left in map(frozenset, combinations(range(len(items)), n_left)):
            may_end = not left & required
            first = alt(*(seq(exprs[i], rest[left - {i}]) for i in sorted(left)), more if may_end else NEVER)
            rest[left] = alt(seq(separator, first), EMPTY if may_end else NEVER)
            if rest[left] not in (EMPTY, NEVER):
                rest[left] = rules.add("pairs", rest[left])
    return first
