"""What a schema asks for, kind by kind: references followed, allOf merged, anyOf and oneOf split into branches.

A value is described by a tuple of places: it must fit the schema at each of them. So merging two schemas
is joining two tuples, below properties and items too, and recursion ends because there are only so many
tuples. Knows nothing of grammars.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from .document import ASSERTIONS, OF_OBJECTS, TYPES, UNSUPPORTED, Document, Place, key_of, shared, shown
from .errors import PatternError, SchemaError, TooLarge
from .formats import FORMATS
from .language import Language, both, contains, is_empty, other, with_length, words
from .numbers import Bound, Interval, exact
from .regex import parse_full, parse_pattern
from .rules import Expr

# Every allOf of two anyOf multiplies the branches.
MAX_BRANCHES = 200
# How deep oneOf looks for a difference between its branches.
MAX_DEPTH = 4

Places = tuple[Place, ...]


@dataclass(frozen=True)
class Branch:
    """One way to fit: places without references and combinations, and what `not` takes away.

    `values` is set when only these are left.
    """

    places: Places
    types: frozenset[str]
    values: tuple[Any, ...] | None = None
    not_values: tuple[Any, ...] = ()
    not_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Look:
    """How to look for what keeps branches of oneOf apart.

    Only if they are `alone` are the names that they list all there can be: whatever else the value must
    fit may add some.
    """

    alone: bool
    depth: int


class Shapes:
    """Answers about the schemas of one document. All methods raise SchemaError."""

    def __init__(self, document: Document):
        self._document = document
        self._branches: dict[Places, tuple[Branch, ...]] = {}

    # Branches

    def branches(self, places: Places) -> tuple[Branch, ...]:
        """The ways to fit all the places; none if nothing can."""
        if places not in self._branches:
            # Whatever else the value must fit may add names to those that a branch of oneOf lists.
            options = self._product(self._expanded(place, (), len(places) == 1) for place in places)
            found = (self._branch(option) for option in options)
            self._branches[places] = tuple(branch for branch in found if branch is not None)
        return self._branches[places]

    def direct(self, places: Places) -> Places:
        """The same places, without those that allow anything, and with the targets of mere references."""
        found = dict.fromkeys(self._target(place) for place in places)
        return tuple(place for place in found if keywords(place) != frozenset())

    def _target(self, place: Place) -> Place:
        trail: list[Place] = []
        while keywords(place) == frozenset(["$ref"]) and place not in trail:
            trail.append(place)
            place = self._document.resolve(place)
        return place

    def _product(self, factors: Iterable[list[Places]]) -> list[Places]:
        result: list[Places] = [()]
        for factor in factors:
            joined = [tuple(dict.fromkeys(left + right)) for left in result for right in factor]
            result = list(dict.fromkeys(joined))
            if len(result) > MAX_BRANCHES:
                path = next(place.path for option in result for place in option)
                raise SchemaError(path, f"combines more than {MAX_BRANCHES} branches of anyOf and oneOf")
        return result

    def _expanded(self, place: Place, trail: Places, alone: bool) -> list[Places]:
        """The branches of one place; `trail` is where it was referred to from, for the same value.

        `alone` says that the value has to fit nothing else.
        """
        if place.schema is True or place.schema is False:
            return [()] if place.schema else []
        if not isinstance(place.schema, dict):
            raise SchemaError(place.path, f"must be a schema (an object, true or false), got {shown(place.schema)}")
        if not keywords(place):
            return [()]
        if place in trail:
            raise SchemaError(place.path, "refers to itself without any value in between")
        for keyword in sorted(UNSUPPORTED.keys() & place.schema.keys()):
            place.fail(keyword, f"is not supported: {UNSUPPORTED[keyword]}")
        self._document.check_base(place)
        alone = alone and len((keywords(place) or frozenset()) - {"type", "nullable"}) == 1
        return self._product([[(place,)], *self._combined(place, (*trail, place), alone)])

    def _combined(self, place: Place, trail: Places, alone: bool) -> Iterator[list[Places]]:
        """The branches of every schema that the same value must fit."""
        if place.has("$ref"):
            yield self._expanded(self._document.resolve(place), trail, alone)
        for part in place.children("allOf"):
            yield self._expanded(part, trail, False)
        for keyword in ("anyOf", "oneOf"):
            if place.has(keyword):
                yield self._union(place, keyword, trail, alone)
        for name, needed in _dependencies(place):
            absent = Place(f"{place.path}/no-{name}", {"propertyNames": {"not": {"const": name}}})
            present = Place(f"{place.path}/with-{name}", {"required": [name]})
            yield [(absent,), *self._product([[(present,)], self._expanded(needed, trail, False)])]

    def _union(self, place: Place, keyword: str, trail: Places, alone: bool) -> list[Places]:
        parts = place.children(keyword)
        if not parts:
            place.fail(keyword, "must list at least one schema")
        options = list(dict.fromkeys(option for part in parts for option in self._expanded(part, trail, alone)))
        if keyword == "oneOf":
            self._check_apart(place, parts, alone)
        return options

    def _check_apart(self, place: Place, parts: list[Place], alone: bool) -> None:
        """A grammar is a union: it is oneOf only where no value can fit two of the branches."""
        for n, part in enumerate(parts):
            for m in range(n):
                if not self._apart((parts[m],), (part,), _Look(alone, MAX_DEPTH)):
                    place.fail(
                        "oneOf",
                        f"branches {m} and {n} may both fit one value: use anyOf, or give both a required property "
                        "with different constants",
                    )

    def _branch(self, places: Places) -> Branch | None:
        types = frozenset.intersection(frozenset(TYPES), *(place.types() for place in places))
        listed = self._listed(places, types)
        if listed is not None:
            values = tuple(value for value in listed if self._fits(places, value))
            return Branch(places, types, values) if values else None
        branch: Branch | None = Branch(places, types)
        for place in places:
            if branch is not None and place.has("not"):
                branch = self._without(branch, place)
        return branch if branch is not None and branch.types else None

    def _listed(self, places: Places, types: frozenset[str]) -> list[Any] | None:
        """All the values there can be, if they are known one by one."""
        tables = [values for place in places if (values := place.values()) is not None]
        if not tables and types <= {"null", "boolean"}:
            return [None, False, True]
        found = shared(tables)
        return None if found is None else list(found.values())

    def _without(self, branch: Branch, place: Place) -> Branch | None:
        """What `not` leaves, in the few forms that can be said the other way round."""
        negated = place.child("not")
        if negated.schema is False:
            return branch
        if negated.schema is True or keywords(negated) == frozenset():
            return None
        said = keywords(negated) or frozenset()
        # Without integers there would remain the numbers that are none, which cannot be said.
        if said == {"type"} and not ("number" in branch.types and _NUMBERS & negated.types() == {"integer"}):
            return replace(branch, types=branch.types - negated.types())
        if said and said <= {"enum", "const"}:
            values = tuple(value for value in (negated.values() or {}).values() if _types_of(value) & branch.types)
            if all(value is None or isinstance(value, (bool, str)) for value in values):
                return replace(branch, not_values=branch.not_values + values)
        if said != {"required"} or len(negated.names("required")) != 1:
            place.fail(
                "not", "is only supported for types, constant strings and one required name: say what is allowed"
            )
        names = branch.not_names + tuple(negated.names("required"))
        return replace(branch, types=branch.types & {"object"}, not_names=names)

    # Which values fit

    def fits(self, places: Places, value: Any) -> bool:
        return any(self._branch_fits(branch, value) for branch in self.branches(places))

    def _branch_fits(self, branch: Branch, value: Any) -> bool:
        if branch.values is not None:
            return key_of(value) in map(key_of, branch.values)
        return bool(_types_of(value) & branch.types) and self._fits(branch.places, value)

    def _fits(self, places: Places, value: Any) -> bool:
        """Whether a value fits places without references and combinations, enum and const aside."""
        for place in places:
            if not _types_of(value) & place.types():
                return False
            if place.has("not") and self.fits((place.child("not"),), value):
                return False
        if isinstance(value, str):
            return contains(self.texts(places), value)
        if isinstance(value, list):
            return self._array_fits(places, value)
        if isinstance(value, dict):
            return self._object_fits(places, value)
        return value is None or isinstance(value, bool) or exact(value) in interval(places)

    def _array_fits(self, places: Places, items: list[Any]) -> bool:
        shape = array_shape(places)
        return (
            len(items) >= shape.low
            and (shape.high is None or len(items) <= shape.high)
            and all(self.fits(shape.item(n), item) for n, item in enumerate(items))
            and not (shape.unique and len(set(map(key_of, items))) < len(items))
            and all(sum(self.fits((one,), item) for item in items) >= n for one, n in shape.contained)
        )

    def _object_fits(self, places: Places, value: dict[str, Any]) -> bool:
        shape = self.object_shape(places)
        return (
            len(value) >= shape.low
            and (shape.high is None or len(value) <= shape.high)
            and shape.required <= value.keys()
            and all(self.fits(shape.names, name) for name in value)
            and all(self.fits(self.at_name(places, name), item) for name, item in value.items())
        )

    # Strings

    def texts(self, places: Places, excluded: Iterable[str] = ()) -> Language:
        """The strings that fit all the places."""
        languages = [other(words([text])) for text in excluded]
        low, high = 0, None
        for place in places:
            languages += self._languages(place)
            low = max(low, place.count("minLength") or 0)
            high = _least(high, place.count("maxLength"))
        return with_length(both(*languages), low, high)

    def _languages(self, place: Place) -> Iterator[Language]:
        if not isinstance(place.schema, dict):
            return
        pattern, format_name = place.text("pattern"), place.text("format")
        if pattern is not None:
            yield pattern_at(place, "pattern", pattern)
        if format_name in FORMATS:
            yield _format(format_name)

    def names(self, places: Places) -> Language | None:
        """The strings that fit schemas of any kind, or None for all."""
        options: list[Language] = []
        for branch in self.branches(places):
            if not branch.places:
                return None
            if branch.values is not None:
                options.append(words(value for value in branch.values if isinstance(value, str)))
            elif "string" in branch.types:
                options.append(self.texts(branch.places, [v for v in branch.not_values if isinstance(v, str)]))
        return other(both(*map(other, options))) if options else words([])

    # Objects

    def object_shape(self, places: Places) -> ObjectShape:
        members = tuple(place for place in places if place.has(*OF_OBJECTS))
        declared = [name for place in members for name in place.mapping("properties")]
        required = [name for place in members for name in place.names("required")]
        return ObjectShape(
            members,
            tuple(dict.fromkeys(declared + required)),
            frozenset(required),
            max((place.count("minProperties") or 0 for place in members), default=0),
            _least(*(place.count("maxProperties") for place in members)),
            tuple(place.child("propertyNames") for place in members if place.has("propertyNames")),
        )

    def at_name(self, places: Places, name: str) -> Places:
        """What the value under a name must fit."""
        return tuple(found for place in places for found in _below(place, name, self._matching(place, name)))

    def _matching(self, place: Place, name: str) -> list[str]:
        patterns = place.mapping("patternProperties") if place.has("patternProperties") else {}
        return [one for one in patterns if contains(pattern_at(place, "patternProperties", one), name)]

    def at_patterns(self, places: Places, patterns: tuple[str, ...]) -> Places:
        """What the value must fit under a name that is not declared and matches exactly these patterns."""
        found = []
        for place in places:
            matching = [
                one for one in patterns if place.has("patternProperties") and one in place.mapping("patternProperties")
            ]
            found += _below(place, None, matching)
        return tuple(found)

    # Whether one value can fit two schemas

    def _apart(self, left: Places, right: Places, look: _Look) -> bool:
        """Whether it is certain that no value generated for one side fits the other."""
        pairs = ((a, b) for a in self.branches(left) for b in self.branches(right))
        return look.depth > 0 and all(self._branches_apart(a, b, replace(look, depth=look.depth - 1)) for a, b in pairs)

    def _branches_apart(self, a: Branch, b: Branch, look: _Look) -> bool:
        for one, two in ((a, b), (b, a)):
            if one.values is not None:
                return not any(self._branch_fits(two, value) for value in one.values)
        return all(self._type_apart(name, a.places, b.places, look) for name in a.types & b.types)

    def _type_apart(self, name: str, a: Places, b: Places, look: _Look) -> bool:
        if name in ("integer", "number"):
            return (interval(a) & interval(b)).is_empty()
        if name == "string":
            return _surely_empty(both(self.texts(a), self.texts(b)))
        if name == "array":
            return self._arrays_apart(array_shape(a), array_shape(b), look)
        return name == "object" and self._objects_apart(a, b, look)

    def _arrays_apart(self, a: ArrayShape, b: ArrayShape, look: _Look) -> bool:
        if a.low > (b.low if b.high is None else b.high) and b.high is not None:
            return True
        if a.high is not None and b.low > a.high:
            return True
        return any(self._apart(a.item(n), b.item(n), look) for n in range(min(a.low, b.low)))

    def _objects_apart(self, a: Places, b: Places, look: _Look) -> bool:
        left, right = self.object_shape(a), self.object_shape(b)
        shared = sorted(left.required & right.required)
        if any(self._apart(self.at_name(a, name), self.at_name(b, name), look) for name in shared):
            return True
        return look.alone and self._lacks(a, left, right) and self._lacks(b, right, left)

    def _lacks(self, places: Places, shape: ObjectShape, wanted: ObjectShape) -> bool:
        """Whether what is generated for one shape never has a name that the other one requires."""
        return any(
            (shape.is_closed() and name not in shape.declared and not self._matches_any(shape, name))
            or not self.branches(self.at_name(places, name))
            for name in wanted.required
        )

    def _matches_any(self, shape: ObjectShape, name: str) -> bool:
        return any(self._matching(place, name) for place in shape.members)


@dataclass(frozen=True)
class ObjectShape:
    """`declared` are the names in their order, `names` what every name must fit."""

    members: Places
    declared: tuple[str, ...]
    required: frozenset[str]
    low: int
    high: int | None
    names: Places

    def is_closed(self) -> bool:
        """Whether only names that some member knows are generated.

        A schema that lists properties and says nothing of others allows them, but it does not want a
        model to invent some.
        """
        listed = any(place.has("properties", "patternProperties") for place in self.members)
        return listed and not any(place.has("additionalProperties") for place in self.members)

    def patterns(self) -> tuple[str, ...]:
        found = (one for place in self.members for one in place.mapping("patternProperties"))
        return tuple(dict.fromkeys(found))


@dataclass(frozen=True)
class ArrayShape:
    """`contained` are schemas with how many items must fit each."""

    members: Places
    n_prefix: int
    low: int
    high: int | None
    unique: bool
    contained: tuple[tuple[Place, int], ...]

    def item(self, n: int) -> Places:
        """What the item at an index must fit."""
        return tuple(found for place in self.members for found in _item(place, n))


def array_shape(places: Places) -> ArrayShape:
    members = tuple(place for place in places if isinstance(place.schema, dict))
    contained = [(place.child("contains"), _min_contains(place)) for place in members if place.has("contains")]
    return ArrayShape(
        members,
        max((len(_prefix(place)) for place in members), default=0),
        max((place.count("minItems") or 0 for place in members), default=0),
        _least(*(place.count("maxItems") for place in members)),
        any(place.flag("uniqueItems") for place in members),
        tuple((place, n) for place, n in contained if n > 0),
    )


_NUMBERS = frozenset(["integer", "number"])


def keywords(place: Place) -> frozenset[str] | None:
    """What a schema asserts; None if it is true or false, or no schema."""
    return ASSERTIONS & place.schema.keys() if isinstance(place.schema, dict) else None


def _min_contains(place: Place) -> int:
    if place.has("maxContains"):
        place.fail("maxContains", "is not supported: leave it out")
    n = place.count("minContains")
    return 1 if n is None else n


def _prefix(place: Place) -> list[Place]:
    """The schemas of the first items: prefixItems, or before draft 2020-12 a list under items."""
    if place.has("prefixItems"):
        return place.children("prefixItems")
    return place.children("items") if isinstance(place.schema.get("items"), list) else []


def _item(place: Place, n: int) -> list[Place]:
    prefix = _prefix(place)
    if n < len(prefix):
        return [prefix[n]]
    rest = "additionalItems" if isinstance(place.schema.get("items"), list) else "items"
    return [place.child(rest)] if place.has(rest) else []


def _below(place: Place, name: str | None, patterns: list[str]) -> list[Place]:
    """What one place says of the value under a name; None stands for any that is not declared."""
    if not isinstance(place.schema, dict):
        return []
    found = [place.child("patternProperties", one) for one in patterns]
    if name is not None and name in place.mapping("properties"):
        found.insert(0, place.child("properties", name))
    if not found and place.has("additionalProperties"):
        found.append(place.child("additionalProperties"))
    return found


def _dependencies(place: Place) -> Iterator[tuple[str, Place]]:
    """Names with the schema that an object must fit if it has the name."""
    for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
        for name in place.mapping(keyword):
            needed = place.child(keyword, name)
            yield (
                name,
                replace(needed, schema={"required": needed.schema}) if isinstance(needed.schema, list) else needed,
            )


def interval(places: Places) -> Interval:
    """The numbers that fit all the places."""
    result = Interval()
    for place in places:
        step = place.number("multipleOf")
        if step is not None and step <= 0:
            place.fail("multipleOf", "must be greater than 0")
        result &= Interval(step=step)
        for low, high in _bounds(place):
            result &= Interval(low, high)
    return result


def _bounds(place: Place) -> Iterator[tuple[Bound | None, Bound | None]]:
    for name, strict_name, is_low in (("minimum", "exclusiveMinimum", True), ("maximum", "exclusiveMaximum", False)):
        # Draft 4 and OpenAPI 3.0 say with true or false whether the other bound is exclusive.
        old = isinstance(place.schema.get(strict_name), bool)
        value, strict = place.number(name), None if old else place.number(strict_name)
        if value is not None:
            yield _pair(Bound(value, not (old and place.schema[strict_name])), is_low)
        if strict is not None:
            yield _pair(Bound(strict, False), is_low)


def _pair(bound: Bound, is_low: bool) -> tuple[Bound | None, Bound | None]:
    return (bound, None) if is_low else (None, bound)


def _least(*numbers: int | None) -> int | None:
    return min((n for n in numbers if n is not None), default=None)


def _types_of(value: Any) -> frozenset[str]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return frozenset(("number", "integer") if exact(value).denominator == 1 else ("number",))
    return frozenset([_TYPE_NAMES[type(value)]])


_TYPE_NAMES = {type(None): "null", bool: "boolean", str: "string", list: "array", dict: "object"}


def _surely_empty(language: Language) -> bool:
    try:
        return is_empty(language)
    except TooLarge:
        return False


def pattern_at(place: Place, keyword: str, pattern: str) -> Expr:
    """The language of a pattern. Raises SchemaError with its place."""
    try:
        return _pattern(pattern)
    except PatternError as error:
        place.fail(keyword, str(error))


@lru_cache(maxsize=256)
def _pattern(pattern: str) -> Expr:
    return parse_pattern(pattern)


@lru_cache(maxsize=len(FORMATS))
def _format(name: str) -> Expr:
    return parse_full(FORMATS[name])
