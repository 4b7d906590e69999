"""Arrays of a schema as grammar expressions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .any_order import subsets
from .expressions import EMPTY, NEVER, Expr, Literal, alt, seq
from .merged_keywords import AllOf, array_keywords, fail

if TYPE_CHECKING:
    from .schema_rules import SchemaConverter

# Limit of values of unique items. There is one rule for each subset of the values: 2 to the power of this.
MAX_UNIQUE = 8


def array_expr(converter: SchemaConverter, nodes: AllOf) -> Expr:
    """The arrays that match all the nodes. Raises SchemaError and TooLarge."""
    return _Array(converter, nodes).expr()


class _Array:
    def __init__(self, converter: SchemaConverter, nodes: AllOf):
        self._converter = converter
        self._notation = converter.notation
        self._rules = converter.rules
        self._nodes = nodes
        self._keywords = array_keywords(nodes)

    def expr(self) -> Expr:
        keywords = self._keywords
        if keywords.max_items is not None and keywords.min_items > keywords.max_items:
            return NEVER
        if keywords.is_unique and keywords.max_items not in (0, 1):
            return self._unique()
        if keywords.contained:
            return self._containing()
        if keywords.max_items == 0:
            return self._empty()
        return alt(self._empty(), self._notation.wrap("[", seq(self._item(0), self._rest(1)), "]"))

    def _empty(self) -> Expr:
        return Literal("[]") if self._keywords.min_items == 0 else NEVER

    def _item(self, n: int) -> Expr:
        return self._converter.value(self._keywords.item(n))

    def _rest(self, n: int) -> Expr:
        """The text that may follow `n` items: the other items of the prefix, then items that all have one schema.

        Built from the last item to the first, since the text from an item on contains the items after it.
        """
        low, high = self._keywords.min_items, self._keywords.max_items
        n_prefix = max(self._keywords.n_prefix, n)
        item = seq(self._notation.comma, self._item(n_prefix))
        rest = self._rules.repeat(item, max(low - n_prefix, 0), None if high is None else high - n_prefix)
        if high is not None and high <= n_prefix:
            n_prefix, rest = high, EMPTY
        for index in reversed(range(n, n_prefix)):
            rest = seq(self._notation.comma, self._item(index), rest)
            if index >= low:
                rest = self._rules.repeat(rest, 0, 1)
        return rest

    def _containing(self) -> Expr:
        """The items that must match `contains`, with any items before, between and after them."""
        keywords = self._keywords
        (node, n), *others = keywords.contained
        if others or keywords.n_prefix or keywords.max_items is not None or keywords.min_items > n:
            fail(
                self._nodes,
                "contains",
                f"is not supported together with prefixItems, maxItems, a minItems above {n} or a second contains: "
                "leave one of them out",
            )
        item, comma = self._item(0), self._notation.comma
        before = self._rules.repeat(seq(item, comma), 0, None)
        after = self._rules.repeat(seq(comma, item), 0, None)
        matching = (node, *(one for one in keywords.item(0) if one != node))
        wanted = seq(before, self._converter.value(matching))
        more = self._rules.repeat(seq(comma, wanted), n - 1, n - 1)
        return self._notation.wrap("[", seq(wanted, more, after), "]")

    def _unique(self) -> Expr:
        """Items of a small set of values, each at most once. There is one rule for each set of values used so far."""
        keywords = self._keywords
        values = self._converter.listed_values(keywords.item(0)) or []
        if not 0 < len(values) <= MAX_UNIQUE or keywords.n_prefix or keywords.contained:
            fail(
                self._nodes,
                "uniqueItems",
                f"is only supported if the items are an enum of at most {MAX_UNIQUE} values (here: "
                f"{len(values) or 'not an enum'}), without prefixItems and contains: change the items or leave it out",
            )
        high = min(keywords.max_items or len(values), len(values))
        # The text that may follow, by the indices of the values used so far. A text contains those for larger sets.
        after: dict[frozenset[int], Expr] = {}
        for used in sorted(subsets(len(values)), key=len, reverse=True):
            options: list[Expr] = [EMPTY] if len(used) >= max(keywords.min_items, 1) else []
            for n in range(len(values)) if len(used) < high else ():
                if n not in used:
                    before = self._notation.comma if used else EMPTY
                    options.append(seq(before, self._notation.constant(values[n]), after[used | {n}]))
            after[used] = self._rules.add("unique", alt(*options)) if options else NEVER
        return alt(self._empty(), self._notation.wrap("[", after[frozenset()], "]"))
