"""Arrays of a schema as grammar expressions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING, NoReturn

from .expressions import EMPTY, NEVER, Expr, Literal, alt, seq
from .merged_keywords import AllOf, array_keywords

if TYPE_CHECKING:
    from .schema_rules import SchemaConverter

# Limit of the values of unique items. The rules are as many as the subsets of the values: 2 to the power of this.
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
        if keywords.high is not None and keywords.low > keywords.high:
            return NEVER
        if keywords.is_unique and keywords.high not in (0, 1):
            return self._unique()
        if keywords.contained:
            return self._containing()
        if keywords.high == 0:
            return self._empty()
        return alt(self._empty(), self._notation.wrap("[", seq(self._item(0), self._rest(1)), "]"))

    def _empty(self) -> Expr:
        return Literal("[]") if self._keywords.low == 0 else NEVER

    def _item(self, n: int) -> Expr:
        return self._converter.value(self._keywords.item(n))

    def _rest(self, n: int) -> Expr:
        """The text that may follow `n` items; built from the last item to the first, as each text contains the next."""
        low, high = self._keywords.low, self._keywords.high
        start = max(self._keywords.n_prefix, n)
        item = seq(self._notation.comma, self._item(start))
        rest = self._rules.repeat(item, max(low - start, 0), None if high is None else high - start)
        if high is not None and high <= start:
            start, rest = high, EMPTY
        for index in reversed(range(n, start)):
            rest = seq(self._notation.comma, self._item(index), rest)
            if index >= low:
                rest = self._rules.repeat(rest, 0, 1)
        return rest

    def _containing(self) -> Expr:
        """The items that must match `contains`, with any items before, between and after them."""
        keywords = self._keywords
        (node, n), *others = keywords.contained
        if others or keywords.n_prefix or keywords.high is not None or keywords.low > n:
            self._fail("contains", "is not supported together with prefixItems, minItems, maxItems or another one")
        item, comma = self._item(0), self._notation.comma
        before = self._rules.repeat(seq(item, comma), 0, None)
        after = self._rules.repeat(seq(comma, item), 0, None)
        matching = (node, *(one for one in keywords.item(0) if one != node))
        wanted = seq(before, self._converter.value(matching))
        more = self._rules.repeat(seq(comma, wanted), n - 1, n - 1)
        return self._notation.wrap("[", seq(wanted, more, after), "]")

    def _unique(self) -> Expr:
        """Items of a small set of values, each at most once: the rest depends on the values used so far."""
        keywords = self._keywords
        values = self._converter.listed_values(keywords.item(0)) or []
        if not 0 < len(values) <= MAX_UNIQUE or keywords.n_prefix or keywords.contained:
            self._fail("uniqueItems", f"is only possible for items of an enum with {MAX_UNIQUE} values at most")
        high = min(keywords.high or len(values), len(values))
        after: dict[frozenset[int], Expr] = {}
        for used in sorted(_subsets(len(values)), key=len, reverse=True):
            options: list[Expr] = [EMPTY] if len(used) >= max(keywords.low, 1) else []
            for n in range(len(values)) if len(used) < high else ():
                if n not in used:
                    before = self._notation.comma if used else EMPTY
                    options.append(seq(before, self._notation.constant(values[n]), after[used | {n}]))
            after[used] = self._rules.add("unique", alt(*options)) if options else NEVER
        return alt(self._empty(), self._notation.wrap("[", after[frozenset()], "]"))

    def _fail(self, keyword: str, message: str) -> NoReturn:
        node = next(node for node in self._nodes if node.has(keyword))
        node.fail(keyword, message)


def _subsets(n: int) -> Iterator[frozenset[int]]:
    for size in range(n + 1):
        yield from map(frozenset, combinations(range(n), size))
