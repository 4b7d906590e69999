"""Objects of a schema as grammar expressions.

A name is declared if `properties` or `required` lists it. Declared properties come in the order of the schema, or in
any order if the converter has `any_order` and there are at most `MAX_ANY_ORDER`. Undeclared properties come last.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING

from .any_order import MAX_ANY_ORDER, in_any_order
from .budget import spend
from .expressions import EMPTY, NEVER, Expr, Literal, alt, seq
from .gbnf import BLOCK
from .merged_keywords import ObjectKeywords, fail, pattern_language, property_schemas, undeclared_property_schemas
from .regular_languages import Language, complement, intersection, literals

if TYPE_CHECKING:
    from .schema_rules import SchemaConverter

# Limit of patterns of one object. There is one alternative for each set of patterns that a name can match: 2 to the
# power of this.
MAX_PATTERNS = 4


def object_expr(converter: SchemaConverter, keywords: ObjectKeywords, not_names: tuple[str, ...]) -> Expr:
    """The objects with these keywords and without these names. Raises SchemaError and TooLarge."""
    return _Object(converter, keywords, not_names).expr()


class _Object:
    def __init__(self, converter: SchemaConverter, keywords: ObjectKeywords, not_names: tuple[str, ...]):
        self._converter = converter
        self._resolver = converter.resolver
        self._notation = converter.notation
        self._rules = converter.rules
        self._keywords = keywords
        self._not_names = not_names
        self._names = self._resolver.strings(keywords.names)

    def expr(self) -> Expr:
        keywords = self._keywords
        declared = [
            (self._declared(name), name in keywords.required) for name in self._notation.order(keywords.declared)
        ]
        undeclared = alt(*self._undeclared())
        if self._converter.any_order and not keywords.limits_count() and 1 < len(declared) <= MAX_ANY_ORDER:
            comma = self._notation.comma
            last = seq(undeclared, self._rules.repeat(seq(comma, undeclared), 0, None))
            body = in_any_order(self._rules, declared, comma, last)
        elif keywords.min_properties <= len(declared) + 1:
            body = self._in_order(declared, undeclared)
        elif undeclared == NEVER:
            body = NEVER
        else:
            fail(
                keywords.nodes,
                "minProperties",
                f"is {keywords.min_properties}, but only {len(declared)} names are declared, and no grammar keeps "
                "several undeclared names from being equal: declare them under properties",
            )
        empty = Literal("{}") if not keywords.required and keywords.min_properties == 0 else NEVER
        return alt(empty, self._notation.wrap("{", body, "}"))

    def _declared(self, name: str) -> Expr:
        """The property with a declared name; NEVER if no value matches its schema or the name is not allowed."""
        if name in self._not_names or not self._resolver.accepts(self._keywords.names, name):
            return NEVER
        value = self._converter.value(property_schemas(self._keywords.nodes, name))
        return NEVER if value == NEVER else self._notation.pair(self._notation.name(name), value)

    # Properties with undeclared names

    def _undeclared(self) -> Iterator[Expr]:
        """For each set of patterns: the properties with undeclared names that match exactly these patterns."""
        patterns = self._keywords.patterns()
        if len(patterns) > MAX_PATTERNS:
            fail(
                self._keywords.nodes,
                "patternProperties",
                f"has {len(patterns)} patterns for one object, the limit is {MAX_PATTERNS}: join patterns with |",
            )
        for n in range(len(patterns) + 1):
            for matching in combinations(patterns, n):
                if matching or not self._keywords.is_closed():
                    yield self._undeclared_pair(patterns, matching)

    def _undeclared_pair(self, patterns: tuple[str, ...], matching: tuple[str, ...]) -> Expr:
        value = self._converter.value(undeclared_property_schemas(self._keywords.nodes, matching))
        if value == NEVER:
            return NEVER
        name = self._notation.any_name(self._undeclared_names(patterns, matching))
        return self._rules.add("pair", self._notation.pair(name, value))

    def _undeclared_names(self, patterns: tuple[str, ...], matching: tuple[str, ...]) -> Language:
        """The undeclared names that match the patterns in `matching` and none of the other patterns."""
        languages = [self._names]
        for pattern in patterns:
            language = pattern_language(self._keywords.nodes[0], "patternProperties", pattern)
            languages.append(language if pattern in matching else complement(language))
        excluded = (*self._keywords.declared, *self._not_names)
        return intersection(*languages, complement(literals(excluded)))

    # All properties in the order of the schema

    def _in_order(self, declared: list[tuple[Expr, bool]], undeclared: Expr) -> Expr:
        """The declared properties in the order of the schema, then undeclared ones: at least one property in all.

        The expression is made from the last declared property to the first, since the text from a property on contains
        the properties after it. minProperties and maxProperties make the text depend on the number `n` of properties
        before it, so there is a list with one expression for each `n`: `pairs[n]` is one or more properties, and
        `rest[n]` is nothing, or a comma and one or more properties.
        """
        counts = self._counts(len(declared))
        spend(3 * len(declared) * len(counts))  # before the work: it is slow even to free a result that is too large
        rest = [self._undeclared_rest(undeclared, n) for n in counts]
        pairs = [self._undeclared_pairs(undeclared, rest, n) for n in counts]
        may_end = True
        for index in reversed(range(len(declared))):
            pair, is_required = declared[index]
            pairs = [alt(seq(pair, self._next(rest, n)), NEVER if is_required else pairs[n]) for n in counts]
            # If the property before is optional, `pairs` is used twice, so it becomes a rule. In a long row of required
            # properties every BLOCK-th becomes a rule, since `seq` copies the items of the sequence that it extends.
            if index and (not declared[index - 1][1] or index % BLOCK == 0):
                pairs = [part if part == NEVER else self._rules.add("pairs", part) for part in pairs]
            may_end = may_end and not is_required
            rest = [self._rest(pairs[n], may_end=may_end and n >= self._keywords.min_properties) for n in counts]
        return pairs[0]

    def _counts(self, n_declared: int) -> range:
        """The numbers of properties to distinguish.

        Without maxProperties all numbers from minProperties on are equivalent.
        """
        low, high = self._keywords.min_properties, self._keywords.max_properties
        return range((low if high is None else min(high, n_declared + low + 1)) + 1)

    def _rest(self, pairs: Expr, *, may_end: bool) -> Expr:
        return alt(seq(self._notation.comma, pairs), EMPTY if may_end else NEVER)

    def _next(self, rest: list[Expr], n: int) -> Expr:
        """The text that may follow the next property, after `n` others; NEVER if there may be no next property."""
        if self._keywords.max_properties is not None and n >= self._keywords.max_properties:
            return NEVER
        return rest[min(n + 1, len(rest) - 1)]

    def _undeclared_pairs(self, undeclared: Expr, rest: list[Expr], n: int) -> Expr:
        """One or more properties with undeclared names, after `n` others."""
        return NEVER if self._n_missing(n) > 1 else seq(undeclared, self._next(rest, n))

    def _undeclared_rest(self, undeclared: Expr, n: int) -> Expr:
        """Any number of properties with undeclared names, each after a comma, after `n` others."""
        n_missing = self._n_missing(n)
        if n_missing > 1:
            return NEVER
        high = None if self._keywords.max_properties is None else self._keywords.max_properties - n
        return self._rules.repeat(seq(self._notation.comma, undeclared), n_missing, high)

    def _n_missing(self, n: int) -> int:
        """The number of properties that are required after `n` others.

        At most one of them may have an undeclared name: two such names could be equal.
        """
        return max(self._keywords.min_properties - n, 0)
