"""Merges the keywords of several schema nodes: the constraints on a string, number, array or object.

The nodes are those of a branch (intersection.py): their references and combining keywords are already resolved. All
functions raise SchemaError.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NoReturn

from .errors import PatternError
from .expressions import Expr
from .intervals import Bound, Interval
from .regex import parse_full, parse_pattern
from .regular_languages import Language, complement, contains, intersection, literals, with_length
from .schema_nodes import OBJECT_KEYWORDS, SchemaNode
from .string_formats import FORMATS

# An intersection: a value must match all of these nodes.
AllOf = tuple[SchemaNode, ...]


def fail(nodes: AllOf, keyword: str, message: str) -> NoReturn:
    """Raise SchemaError at the keyword of the first node that has it."""
    next(node for node in nodes if node.has(keyword)).fail(keyword, message)


# Strings


def string_language(nodes: AllOf, excluded: Iterable[str] = ()) -> Language:
    """The strings that match all the nodes, except the excluded ones."""
    languages = [complement(literals([text])) for text in excluded]
    low, high = 0, None
    for node in nodes:
        languages += _languages(node)
        low = max(low, node.count("minLength") or 0)
        high = _minimum(high, node.count("maxLength"))
    return with_length(intersection(*languages), low, high)


def _languages(node: SchemaNode) -> Iterator[Language]:
    """The strings that match the pattern of a node, and those that match its format."""
    if not isinstance(node.schema, dict):
        return
    pattern, format_name = node.text("pattern"), node.text("format")
    if pattern is not None:
        yield pattern_language(node, "pattern", pattern)
    if format_name in FORMATS:
        yield _format_language(format_name)


def pattern_language(node: SchemaNode, keyword: str, pattern: str) -> Expr:
    """The strings that a pattern of this keyword matches."""
    try:
        return parse_pattern(pattern)
    except PatternError as error:
        node.fail(keyword, str(error))


@lru_cache(maxsize=len(FORMATS))
def _format_language(name: str) -> Expr:
    return parse_full(FORMATS[name])


# Numbers


def number_interval(nodes: AllOf) -> Interval:
    """The numbers that match all the nodes."""
    result = Interval()
    for node in nodes:
        step = node.number("multipleOf")
        if step is not None and step <= 0:
            node.fail("multipleOf", "must be greater than 0")
        result &= Interval(step=step)
        for low in _bounds(node, "minimum", "exclusiveMinimum"):
            result &= Interval(low=low)
        for high in _bounds(node, "maximum", "exclusiveMaximum"):
            result &= Interval(high=high)
    return result


def _bounds(node: SchemaNode, keyword: str, exclusive_keyword: str) -> Iterator[Bound]:
    """The bounds that `minimum` and `exclusiveMinimum`, or the same for the maximum, set."""
    value = node.number(keyword)
    is_exclusive = node.schema.get(exclusive_keyword)
    # In draft 4 and OpenAPI 3.0 the exclusive keyword is true or false: it applies to the bound of the other keyword.
    if isinstance(is_exclusive, bool):
        if value is not None:
            yield Bound(value, inclusive=not is_exclusive)
        return
    if value is not None:
        yield Bound(value)
    exclusive_value = node.number(exclusive_keyword)
    if exclusive_value is not None:
        yield Bound(exclusive_value, inclusive=False)


# Arrays


@dataclass(frozen=True)
class ArrayKeywords:
    """The keywords of arrays, merged."""

    nodes: AllOf
    """The nodes, without those that are true or false."""
    n_prefix: int
    """The number of items at the start that have schemas of their own (prefixItems)."""
    min_items: int
    max_items: int | None
    """None: no limit."""
    is_unique: bool
    """Whether no two items may be equal."""
    contained: tuple[tuple[SchemaNode, int], ...]
    """The schemas of `contains`, each with the minimum number of items that must match it."""

    def item(self, n: int) -> AllOf:
        """The nodes that the item at an index must match."""
        return tuple(found for node in self.nodes for found in _item(node, n))


def array_keywords(nodes: AllOf) -> ArrayKeywords:
    objects = tuple(node for node in nodes if isinstance(node.schema, dict))
    contained = [(node.child("contains"), _min_contains(node)) for node in objects if node.has("contains")]
    return ArrayKeywords(
        nodes=objects,
        n_prefix=max((len(_prefix(node)) for node in objects), default=0),
        min_items=max((node.count("minItems") or 0 for node in objects), default=0),
        max_items=_minimum(*(node.count("maxItems") for node in objects)),
        is_unique=any(node.flag("uniqueItems") for node in objects),
        contained=tuple((node, n) for node, n in contained if n > 0),
    )


def _min_contains(node: SchemaNode) -> int:
    if node.has("maxContains"):
        node.fail("maxContains", "is not supported: leave it out")
    n = node.count("minContains")
    return 1 if n is None else n


def _prefix(node: SchemaNode) -> list[SchemaNode]:
    """The schemas of the first items: prefixItems, or before draft 2020-12 a list under items."""
    if node.has("prefixItems"):
        return node.children("prefixItems")
    return node.children("items") if isinstance(node.schema.get("items"), list) else []


def _item(node: SchemaNode, n: int) -> list[SchemaNode]:
    """The schema of one node for the item at an index, if it has one."""
    prefix = _prefix(node)
    if n < len(prefix):
        return [prefix[n]]
    rest = "additionalItems" if isinstance(node.schema.get("items"), list) else "items"
    return [node.child(rest)] if node.has(rest) else []


# Objects


@dataclass(frozen=True)
class ObjectKeywords:
    """The keywords of objects, merged."""

    nodes: AllOf
    """The nodes that have keywords of objects."""
    declared: tuple[str, ...]
    """The names in `properties` and then those in `required`, without duplicates."""
    required: frozenset[str]
    """The names that every object must have."""
    min_properties: int
    max_properties: int | None
    """None: no limit."""
    names: AllOf
    """The nodes that every name must match (propertyNames)."""

    def is_closed(self) -> bool:
        """Whether only names that some node declares are generated.

        JSON Schema allows other names beside `properties` if there is no additionalProperties, but a model would invent
        names.
        """
        is_listed = any(node.has("properties", "patternProperties") for node in self.nodes)
        return is_listed and not any(node.has("additionalProperties") for node in self.nodes)

    def limits_count(self) -> bool:
        """Whether minProperties or maxProperties restricts objects further than `required`."""
        return self.max_properties is not None or self.min_properties > len(self.required)

    def patterns(self) -> tuple[str, ...]:
        """The patterns of `patternProperties`, without duplicates."""
        found = (pattern for node in self.nodes for pattern in node.mapping("patternProperties"))
        return tuple(dict.fromkeys(found))

    def generates(self, name: str) -> bool:
        """Whether the name may be generated, provided that some value matches the schema of its value."""
        is_known = name in self.declared or any(_matching_patterns(node, name) for node in self.nodes)
        return is_known or not self.is_closed()


def object_keywords(nodes: AllOf) -> ObjectKeywords:
    objects = tuple(node for node in nodes if node.has(*OBJECT_KEYWORDS))
    declared = [name for node in objects for name in node.mapping("properties")]
    required = [name for node in objects for name in node.names("required")]
    return ObjectKeywords(
        nodes=objects,
        declared=tuple(dict.fromkeys(declared + required)),
        required=frozenset(required),
        min_properties=max((node.count("minProperties") or 0 for node in objects), default=0),
        max_properties=_minimum(*(node.count("maxProperties") for node in objects)),
        names=tuple(node.child("propertyNames") for node in objects if node.has("propertyNames")),
    )


def property_schemas(nodes: AllOf, name: str) -> AllOf:
    """The nodes that the value under a name must match."""
    return tuple(found for node in nodes for found in _property(node, name, _matching_patterns(node, name)))


def undeclared_property_schemas(nodes: AllOf, patterns: tuple[str, ...]) -> AllOf:
    """The nodes that a value must match if its name is not declared and matches exactly these patterns."""
    found: list[SchemaNode] = []
    for node in nodes:
        own_patterns = _own_patterns(node)
        found += _property(node, None, [pattern for pattern in patterns if pattern in own_patterns])
    return tuple(found)


def _own_patterns(node: SchemaNode) -> Iterable[str]:
    """The patterns of one node. A node that is true or false has none."""
    return node.mapping("patternProperties") if node.has("patternProperties") else ()


def _matching_patterns(node: SchemaNode, name: str) -> list[str]:
    """The patterns of one node that match a name."""
    return [one for one in _own_patterns(node) if contains(pattern_language(node, "patternProperties", one), name)]


def _property(node: SchemaNode, name: str | None, patterns: list[str]) -> list[SchemaNode]:
    """The schemas of one node for the value of a property.

    Args:
        name: None: the name is not declared.
        patterns: The patterns of the node that match the name.
    """
    if not isinstance(node.schema, dict):
        return []
    found = [node.child("patternProperties", one) for one in patterns]
    if name is not None and name in node.mapping("properties"):
        found.insert(0, node.child("properties", name))
    if not found and node.has("additionalProperties"):
        found.append(node.child("additionalProperties"))
    return found


def dependencies(node: SchemaNode) -> Iterator[tuple[str, SchemaNode]]:
    """Property names, each with the schema that an object must match if it has a property of that name."""
    for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
        for name in node.mapping(keyword):
            needed = node.child(keyword, name)
            is_list = isinstance(needed.schema, list)
            yield name, replace(needed, schema={"required": needed.schema}) if is_list else needed


def _minimum(*numbers: int | None) -> int | None:
    """The least of the numbers that are not None; None without any."""
    return min((n for n in numbers if n is not None), default=None)
