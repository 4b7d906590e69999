"""Objects of a schema as grammar expressions.

Properties come in the order of the schema, or in any order if the converter has `any_order` and there are at most
`MAX_ANY_ORDER`. Properties with undeclared names come last.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING, NoReturn

from .any_order import MAX_ANY_ORDER, in_any_order
from .budget import spend
from .expressions import EMPTY, NEVER, Expr, Literal, alt, seq
from .gbnf import BLOCK
from .merged_keywords import ObjectKeywords, pattern_language, property_schemas, undeclared_property_schemas
from .regular_languages import Language, complement, intersection, literals

if TYPE_CHECKING:
    from .schema_rules import SchemaConverter

# Limit of patterns of one object. Each combination of patterns that a name can match needs an alternative: 2 to the
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
        if undeclared != NEVER and keywords.low > len(declared) + 1:
            self._fail(
                "minProperties",
                "needs several names that are not declared, and no grammar keeps those from being the same: "
                "declare them under properties",
            )
        if self._converter.any_order and not keywords.is_counted() and 1 < len(declared) <= MAX_ANY_ORDER:
            comma = self._notation.comma
            last = seq(undeclared, self._rules.repeat(seq(comma, undeclared), 0, None))
            body = in_any_order(self._rules, declared, comma, last)
        else:
            body = self._in_order(declared, undeclared) if keywords.low <= len(declared) + 1 else NEVER
        empty = Literal("{}") if not keywords.required and keywords.low == 0 else NEVER
        return alt(empty, self._notation.wrap("{", body, "}"))

    def _declared(self, name: str) -> Expr:
        if name in self._not_names or not self._resolver.accepts(self._keywords.names, name):
            return NEVER
        value = self._converter.value(property_schemas(self._keywords.nodes, name))
        return NEVER if value == NEVER else self._notation.pair(self._notation.name(name), value)

    # Names that are not declared

    def _undeclared(self) -> Iterator[Expr]:
        """For each combination of patterns: the properties with undeclared names that match exactly these patterns."""
        patterns = self._keywords.patterns()
        if len(patterns) > MAX_PATTERNS:
            self._fail("patternProperties", f"has more than {MAX_PATTERNS} patterns for one object")
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
        languages: list[Language] = [] if self._names is None else [self._names]
        for pattern in patterns:
            language = pattern_language(self._keywords.nodes[0], "patternProperties", pattern)
            languages.append(language if pattern in matching else complement(language))
        excluded = (*self._keywords.declared, *self._not_names)
        return intersection(*languages, complement(literals(excluded)) if excluded else complement(NEVER))

    # All properties in their order

    def _in_order(self, declared: list[tuple[Expr, bool]], undeclared: Expr) -> Expr:
        """The properties in the order of the schema, by the number of properties before them.

        After `n` properties, `first[n]` is the text from the next property on, and `rest[n]` is the end or a comma and
        that text. Both are computed from the last property to the first.
        """
        low, high = self._keywords.low, self._keywords.high
        comma = self._notation.comma
        # Without an upper limit all numbers of properties from the lower limit on are equivalent.
        counts = range((low if high is None else min(high, len(declared) + low + 1)) + 1)
        spend(3 * len(declared) * len(counts))  # before the work: it is slow even to free a result that is too large
        rest = [self._undeclared_rest(undeclared, n) for n in counts]
        # With two or more properties missing, two undeclared names would be needed, and they could be equal.
        first = [NEVER if low - n > 1 else seq(undeclared, self._next(rest, n)) for n in counts]
        may_end = True
        for index in reversed(range(len(declared))):
            pair, is_required = declared[index]
            first = [alt(seq(pair, self._next(rest, n)), NEVER if is_required else first[n]) for n in counts]
            # If the property before is optional, `first` is used twice, so it becomes a rule. In a long row of required
            # properties every BLOCK-th becomes a rule, since `seq` copies the items of the sequence that it extends.
            if index and (not declared[index - 1][1] or index % BLOCK == 0):
                first = [part if part == NEVER else self._rules.add("pairs", part) for part in first]
            may_end = may_end and not is_required
            rest = [alt(seq(comma, first[n]), EMPTY if may_end and n >= low else NEVER) for n in counts]
        return first[0]

    def _next(self, rest: list[Expr], n: int) -> Expr:
        """The text that may follow the next property, after `n` others; NEVER if there may be no next property."""
        if self._keywords.high is not None and n >= self._keywords.high:
            return NEVER
        return rest[min(n + 1, len(rest) - 1)]

    def _undeclared_rest(self, undeclared: Expr, n: int) -> Expr:
        """Properties with undeclared names, after `n` others."""
        missing = max(self._keywords.low - n, 0)
        if missing > 1 and undeclared != NEVER:
            return NEVER  # two undeclared names could be equal
        high = None if self._keywords.high is None else self._keywords.high - n
        return self._rules.repeat(seq(self._notation.comma, undeclared), missing, high)

    def _fail(self, keyword: str, message: str) -> NoReturn:
        node = next((node for node in self._keywords.nodes if node.has(keyword)), self._keywords.nodes[0])
        node.fail(keyword, message)
