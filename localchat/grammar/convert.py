"""From shapes to rules: what a value, an object or an array is allowed to look like as JSON text.

Every tuple of places becomes one expression, made once; a tuple that contains itself becomes a named
rule. Properties come in the order of the schema, or in any if the caller wants that, then names that are
not declared. What no text can fit becomes an expression that matches nothing, and `Rules` takes away the
ways that lead there.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any, NoReturn

from .any_order import MAX_ANY_ORDER, in_any_order
from .document import key_of
from .errors import SchemaError, TooLarge
from .json_text import JsonRules
from .language import Language, both, other, words
from .numbers import decimals, integers
from .rules import BLOCK, EMPTY, NEVER, Expr, Literal, Ref, alt, factored, seq
from .shapes import ArrayShape, Branch, ObjectShape, Places, Shapes, array_shape, interval, pattern_at

# Unique items take a rule for every set of items that were used: 2 to the power of this.
MAX_UNIQUE = 8
# Every combination of patterns that a name can match is a case of its own: 2 to the power of this.
MAX_PATTERNS = 4

# Types by how they are written. A number may be an integer too, so it stands for both.
WRITTEN = ("object", "array", "string", "number", "integer", "boolean", "null")


class Converter:
    """Turns the schemas of one document into expressions. Raises SchemaError."""

    def __init__(self, shapes: Shapes, text: JsonRules, *, any_order: bool = False):
        self._shapes = shapes
        self._text = text
        self._rules = text.rules
        self._any_order = any_order
        self._done: dict[Places, Expr] = {}
        # Tuples that are being converted, with their name once something inside refers to it.
        self._open: dict[Places, Ref | None] = {}

    def value(self, places: Places) -> Expr:
        """Values that fit all the places."""
        places = self._shapes.direct(places)
        if places in self._done:
            return self._done[places]
        if places in self._open:
            self._open[places] = self._open[places] or self._rules.declare(_hint(places))
            return self._open[places]  # type: ignore[return-value]  # set just above
        self._open[places] = None
        body = self._union(places)
        ref = self._open.pop(places)
        if ref is not None:
            self._rules.define(ref, body)
        self._done[places] = ref or self._named(places, body)
        return self._done[places]

    def _named(self, places: Places, body: Expr) -> Expr:
        return body if isinstance(body, (Literal, Ref)) or body == NEVER else self._rules.add(_hint(places), body)

    def _union(self, places: Places) -> Expr:
        return alt(*(self._branch(branch) for branch in self._shapes.branches(places)))

    def _branch(self, branch: Branch) -> Expr:
        if not branch.places:
            return self._text.value()
        if branch.values is not None:
            return factored(*map(self._text.exactly, branch.values))
        return alt(*(self._typed(name, branch) for name in WRITTEN if name in branch.types))

    def _typed(self, name: str, branch: Branch) -> Expr:
        if name in ("null", "boolean"):
            values = (None,) if name == "null" else (True, False)
            return alt(*(self._text.exactly(value) for value in values if value not in branch.not_values))
        try:
            return self._compound(name, branch)
        except TooLarge as error:
            raise SchemaError(branch.places[0].path, str(error)) from error

    def _compound(self, name: str, branch: Branch) -> Expr:
        if name == "object":
            return self._object(branch)
        if name == "array":
            return _Array(self, self._text, branch.places).expr()
        if name == "string":
            excluded = [value for value in branch.not_values if isinstance(value, str)]
            return self._text.string(self._shapes.texts(branch.places, excluded), _hint(branch.places, "string"))
        if name == "number":
            return decimals(self._rules, interval(branch.places))
        return NEVER if "number" in branch.types else integers(self._rules, interval(branch.places))

    def _object(self, branch: Branch) -> Expr:
        shape = self._shapes.object_shape(branch.places)
        if not shape.members and not branch.not_names:
            return self._text.object()
        return _Object(self, self._shapes, self._text, shape, branch.not_names).expr(self._any_order)

    def exactly(self, value: Any) -> Expr:
        """One value."""
        return self._text.exactly(value)

    def is_finite(self, places: Places) -> bool:
        return all(branch.values is not None for branch in self._shapes.branches(places))

    def listed(self, places: Places) -> list[Any]:
        values = (value for branch in self._shapes.branches(places) for value in branch.values or ())
        return list({key_of(value): value for value in values}.values())


def _hint(places: Places, default: str = "value") -> str:
    """A name for what stands at these places: the last name in the path that a person chose."""
    names = [part for part in places[0].path.split("/")[1:] if not part.isdigit()] if places else []
    return "-".join(names[-1:]) or default


class _Object:
    """The rules of one object shape."""

    def __init__(self, to: Converter, shapes: Shapes, text: JsonRules, shape: ObjectShape, not_names: tuple[str, ...]):
        self._to = to
        self._shapes = shapes
        self._text = text
        self._rules = text.rules
        self._shape = shape
        self._not_names = not_names
        self._names = shapes.names(shape.names)

    def expr(self, any_order: bool) -> Expr:
        shape = self._shape
        slots = [(self._declared(name), name in shape.required) for name in self._text.order(shape.declared)]
        free = alt(*self._free_pairs())
        self._check_countable(len(slots), free)
        is_counted = shape.high is not None or shape.low > len(shape.required)
        if any_order and not is_counted and 1 < len(slots) <= MAX_ANY_ORDER:
            more = seq(free, self._rules.repeat(seq(self._text.comma, free), 0, None))
            body = in_any_order(self._rules, slots, self._text.comma, more)
        else:
            body = self._pairs(slots, free) if shape.low <= len(slots) + 1 else NEVER
        empty = Literal("{}") if not shape.required and shape.low == 0 else NEVER
        return alt(empty, self._text.wrap("{", body, "}"))

    def _declared(self, name: str) -> Expr:
        if name in self._not_names or not self._shapes.fits(self._shape.names, name):
            return NEVER
        value = self._to.value(self._shapes.at_name(self._shape.members, name))
        return NEVER if value == NEVER else self._text.pair(self._text.name(name), value)

    def _free_pairs(self) -> Iterator[Expr]:
        """Pairs with a name that is not declared, one for each combination of patterns that it can match."""
        patterns = self._shape.patterns()
        if len(patterns) > MAX_PATTERNS:
            self._fail("patternProperties", f"has more than {MAX_PATTERNS} patterns for one object")
        for n in range(len(patterns) + 1):
            for matching in combinations(patterns, n):
                if matching or not self._shape.is_closed():
                    yield self._free_pair(patterns, matching)

    def _free_pair(self, patterns: tuple[str, ...], matching: tuple[str, ...]) -> Expr:
        value = self._to.value(self._shapes.at_patterns(self._shape.members, matching))
        if value == NEVER:
            return NEVER
        name = self._text.any_name(self._free_names(patterns, matching))
        return self._rules.add("pair", self._text.pair(name, value))

    def _free_names(self, patterns: tuple[str, ...], matching: tuple[str, ...]) -> Language:
        wanted: list[Language] = [] if self._names is None else [self._names]
        for pattern in patterns:
            language = pattern_at(self._shape.members[0], "patternProperties", pattern)
            wanted.append(language if pattern in matching else other(language))
        taken = (*self._shape.declared, *self._not_names)
        return both(*wanted, other(words(taken))) if taken else both(*wanted)

    def _check_countable(self, n_declared: int, free: Expr) -> None:
        if free != NEVER and self._shape.low > n_declared + 1:
            self._fail(
                "minProperties",
                "needs several names that are not declared, and no grammar keeps those from being the same: "
                "declare them under properties",
            )

    def _pairs(self, slots: list[tuple[Expr, bool]], free: Expr) -> Expr:
        """All pairs, by how many are written before: `one[n]` is one pair more and what follows, `rest[n]`
        is what may follow. Both are made from the last slot to the first.
        """
        low, high = self._shape.low, self._shape.high
        # Without an upper limit it does not matter by how much the lower one is exceeded.
        most = low if high is None else min(high, len(slots) + low + 1)
        rest = [self._free_rest(free, n) for n in range(most + 1)]
        # Where more than one pair is missing, two names that are not declared might be the same one.
        one = [NEVER if low - n > 1 else seq(free, self._next(rest, n)) for n in range(most + 1)]
        may_end = True
        for index in reversed(range(len(slots))):
            pair, is_required = slots[index]
            one = [alt(seq(pair, self._next(rest, n)), NEVER if is_required else one[n]) for n in range(most + 1)]
            # What may be skipped to needs a name; so does the rest of a long row, which would else be written anew
            # for each of its members.
            if index and (not slots[index - 1][1] or index % BLOCK == 0):
                one = [part if part == NEVER else self._rules.add("pairs", part) for part in one]
            may_end = may_end and not is_required
            rest = [
                alt(seq(self._text.comma, one[n]), EMPTY if may_end and n >= low else NEVER) for n in range(most + 1)
            ]
        return one[0]

    def _next(self, rest: list[Expr], n: int) -> Expr:
        """What follows one more pair than n."""
        if self._shape.high is not None and n >= self._shape.high:
            return NEVER
        return rest[min(n + 1, len(rest) - 1)]

    def _free_rest(self, free: Expr, n: int) -> Expr:
        """Pairs that are not declared, after the last one that is."""
        missing = max(self._shape.low - n, 0)
        if missing > 1 and free != NEVER:
            return NEVER  # two names that are not declared might be the same one
        high = None if self._shape.high is None else self._shape.high - n
        return self._rules.repeat(seq(self._text.comma, free), missing, high)

    def _fail(self, keyword: str, message: str) -> NoReturn:
        place = next((place for place in self._shape.members if place.has(keyword)), self._shape.members[0])
        place.fail(keyword, message)


class _Array:
    """The rules of one array shape."""

    def __init__(self, to: Converter, text: JsonRules, places: Places):
        self._to = to
        self._text = text
        self._rules = text.rules
        self._places = places
        self._shape = array_shape(places)

    def expr(self) -> Expr:
        shape = self._shape
        if shape.high is not None and shape.low > shape.high:
            return NEVER
        if shape.unique and shape.high not in (0, 1):
            return self._unique(shape)
        if shape.contained:
            return self._containing(shape)
        empty = Literal("[]") if shape.low == 0 else NEVER
        if shape.high == 0:
            return empty
        return alt(empty, self._text.wrap("[", seq(self._item(0), self._rest(1)), "]"))

    def _item(self, n: int) -> Expr:
        return self._to.value(self._shape.item(n))

    def _rest(self, n: int) -> Expr:
        """What may follow `n` items: the last ones first, as each contains the next."""
        shape = self._shape
        start = max(shape.n_prefix, n)
        more = seq(self._text.comma, self._item(start))
        rest = self._rules.repeat(more, max(shape.low - start, 0), None if shape.high is None else shape.high - start)
        if shape.high is not None and shape.high <= start:
            start, rest = shape.high, EMPTY
        for index in reversed(range(n, start)):
            rest = seq(self._text.comma, self._item(index), rest)
            if index >= shape.low:
                rest = self._rules.repeat(rest, 0, 1)
        return rest

    def _containing(self, shape: ArrayShape) -> Expr:
        """Some items before, between and after those that must fit."""
        (place, n), *others = shape.contained
        if others or shape.n_prefix or shape.high is not None or shape.low > n:
            self._fail("contains", "is not supported together with prefixItems, minItems, maxItems or another one")
        item = self._item(0)
        before = self._rules.repeat(seq(item, self._text.comma), 0, None)
        more = self._rules.repeat(seq(self._text.comma, item), 0, None)
        wanted = seq(before, self._to.value((place, *(one for one in shape.item(0) if one != place))))
        return self._text.wrap(
            "[", seq(wanted, self._rules.repeat(seq(self._text.comma, wanted), n - 1, n - 1), more), "]"
        )

    def _unique(self, shape: ArrayShape) -> Expr:
        """Items of a small set, each once: what may follow depends on which were used."""
        places = shape.item(0)
        values = self._to.listed(places) if self._to.is_finite(places) else []
        if not 0 < len(values) <= MAX_UNIQUE or shape.n_prefix or shape.contained:
            self._fail("uniqueItems", f"is only possible for items of an enum with {MAX_UNIQUE} values at most")
        high = min(shape.high or len(values), len(values))
        sets: dict[frozenset[int], Expr] = {}
        for used in sorted(_subsets(len(values)), key=len, reverse=True):
            options: list[Expr] = [EMPTY] if len(used) >= max(shape.low, 1) else []
            for n in range(len(values)) if len(used) < high else ():
                if n not in used:
                    before = self._text.comma if used else EMPTY
                    options.append(seq(before, self._text.exactly(values[n]), sets[used | {n}]))
            sets[used] = self._rules.add("unique", alt(*options)) if options else NEVER
        empty = Literal("[]") if shape.low == 0 else NEVER
        return alt(empty, self._text.wrap("[", sets[frozenset()], "]"))

    def _fail(self, keyword: str, message: str) -> NoReturn:
        place = next(place for place in self._places if place.has(keyword))
        place.fail(keyword, message)


def _subsets(n: int) -> Iterator[frozenset[int]]:
    for size in range(n + 1):
        yield from map(frozenset, combinations(range(n), size))
