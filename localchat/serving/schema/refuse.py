"""Refuses the parts of a prepared schema that no grammar enforces, each with its place.

llguidance enforces the other parts. `refusal` returns the first part that is not enforced, for requests that are then
refused; `loosened` leaves all such parts out, for tools that the model need not call.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple

from .combined import crowded_node
from .compiler import (
    NO_VALUE,
    OVERLAP,
    WITHOUT_ESCAPES,
    error_in,
    forbids_escapes,
    has_other_names,
    is_empty,
    json_rule,
)
from .finite import has_finite_value
from .prepare import MAX_INTEGER
from .types import allows_all_of_its_types, possible_types
from .walk import (
    ANNOTATIONS,
    ROOT,
    Node,
    Place,
    Schema,
    at_pointer,
    children,
    is_pointer,
    unescaped,
    used_schemas,
    with_children,
)

_CONTROL = re.compile(r"(?<!\\)(?:\\\\)*\\u00[01]|\x7f")  # A character in JSON that a string can only have as \uXXXX.
# What a pattern has that matches only texts with control characters: such a character, or an escape.
_MAY_NEED_CONTROL = re.compile(r"[\x00-\x1f\x7f]|\\[A-Za-z0-9]")
# The limit of characters of a pattern: llguidance takes seconds for one that repeats `a?` so often.
MAX_PATTERN_CHARS = 1 << 15
# The limits of work that cannot be interrupted: llguidance compares all properties of an object, and all patterns with
# the properties. Levels of schemas, which references continue, are on the stack.
_MAX_PROPERTIES, _MAX_NAMES, _MAX_LEVELS = 3000, 5000, 600
# To find the place of an error, this many times the text of the schema is compiled, and a minimum of characters, in so
# many parts: each takes some tenths of a millisecond.
_MAX_TRIED, _MIN_TRIED, _MAX_PARTS = 2, 20_000, 2000
# The limits of the parts that are left out of a schema, and of the characters that are checked for it.
_MAX_LEFT_OUT, _MAX_CHECKED = 20, 300_000


class Refusal(NamedTuple):
    """A part of a schema that is not enforced."""

    place: Place  # Of the innermost schema that has the part.
    keyword: str  # The part; "" for the schema as a whole.
    reason: str

    @property
    def pointer(self) -> str:
        """The JSON pointer to the part."""
        return self.place.pointer + (self.keyword and f"/{self.keyword}")


def loosened(schema: Schema) -> tuple[Schema, list[Refusal]]:
    """A prepared schema of objects without what cannot be enforced, and the parts that are not enforced.

    If there are very many, only the first ones are reported.
    """
    first = refusal(schema)
    if first is None:
        return schema, []
    ignored = itertools.islice(_ignored_if_lenient(used_schemas(schema)), _MAX_LEFT_OUT)
    refusals = {refused.pointer: refused for refused in ignored} or {first.pointer: first}
    # The schema is copied through its text, since `_leave_out` changes it.
    text = json.dumps({**schema, "x-guidance": {"lenient": True, "coerce_one_of": True}})
    schema = json.loads(text)
    for _ in range(min(_MAX_LEFT_OUT, 1 + _MAX_CHECKED // len(text))):
        refused = refusal(schema)
        if refused is None:
            return schema, list(refusals.values())
        refusals.setdefault(refused.pointer, refused)
        if not refused.pointer:
            break
        _leave_out(refused, schema)
    return {"type": "object"}, list(refusals.values())


def _ignored_if_lenient(nodes: Sequence[Node]) -> Iterator[Refusal]:
    """What llguidance does not enforce in its lenient mode, where `oneOf` is `anyOf`, and keywords may be ignored."""
    for node in nodes:
        yield from _keyword_refusals([node], is_lenient=False)
        if "oneOf" in node.schema:
            yield Refusal(node.place, "oneOf", OVERLAP)


def _leave_out(refused: Refusal, schema: Schema) -> None:
    """Remove a keyword of an inner schema, or all that the inner schema restricts beside its type."""
    pointer = refused.place.pointer
    if refused.keyword:
        del at_pointer(pointer, schema)[refused.keyword]
        return
    parent, _, step = pointer.rpartition("/")
    holder = at_pointer(parent, schema)
    key = int(step) if isinstance(holder, list) else unescaped(step)
    part = holder[key]
    holder[key] = {"type": part["type"]} if isinstance(part, dict) and part.keys() > {"type"} else True


def refusal(schema: Any) -> Refusal | None:
    """The first part of a prepared schema that cannot be enforced; None if all of it is."""
    if not isinstance(schema, dict):
        reason = error_in("start: " + json_rule(schema))
        return Refusal(ROOT, "", reason) if reason else None
    nodes = used_schemas(schema)
    refused = _size_refusal(nodes)
    refused = refused or next(_keyword_refusals(nodes, is_lenient="lenient" in schema.get("x-guidance", {})), None)
    if refused is None and forbids_escapes(schema):
        refused = next((Refusal(node.place, "", _NO_CONTROL) for node in nodes if _needs_escapes(node.schema)), None)
    # This comes before llguidance compiles the schema, and again after it, with the nodes that need llguidance to find.
    if refused is None and not has_finite_value(nodes):
        refused = Refusal(ROOT, "", "no value of it is finite")
    if refused is not None:
        return refused
    reason = error_in("start: " + json_rule(schema))
    if reason:
        return _smallest_refused(schema, nodes, reason)
    return None if has_finite_value(nodes, _empty_nodes(nodes)) else Refusal(ROOT, "", "no value of it is finite")


def _empty_nodes(nodes: Sequence[Node]) -> set[Node]:
    """Nodes that no value matches, such as {"enum": []}.

    llguidance refuses a schema without values itself, unless a reference hides that it has none:

        {"anyOf": [{"enum": []}, {"type": "array", "items": {"$ref": "#"}, "minItems": 1}]}

    The second branch seems to have values, which have further ones inside them without end.
    """
    if not any("$ref" in node.schema for node in nodes):
        return set()
    nodes_by_rule: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        shallow = _without_deep_schemas(node.schema)
        if not allows_all_of_its_types(shallow):
            nodes_by_rule[json_rule(shallow)].append(node)
    rules = itertools.islice(nodes_by_rule, _MAX_PARTS)
    return {node for rule in rules if error_in(f"start: {rule}") == NO_VALUE for node in nodes_by_rule[rule]}


def _without_deep_schemas(schema: Schema) -> Schema:
    """A schema whose inner schemas that have others inside them, or a reference, are true."""

    def convert(inner: Any) -> Any:
        is_deep = isinstance(inner, dict) and ("$ref" in inner or any(children(inner)))
        return True if is_deep else inner

    return {
        keyword: with_children(keyword, value, convert)
        for keyword, value in schema.items()
        if keyword not in ANNOTATIONS and keyword != "$ref"
    }


def _smallest_refused(schema: Schema, nodes: Sequence[Node], reason: str) -> Refusal:
    """The smallest part of a schema that llguidance refuses alone; the whole schema with the reason if none is found.

    The parts lose their references, since they are compiled without definitions.
    """
    options = {"x-guidance": schema.get("x-guidance", {})}
    texts = {json_rule({**node.schema, **options}): node.place for node in reversed(nodes[1:])}
    n_left = max(_MAX_TRIED * len(json.dumps(schema)), _MIN_TRIED)
    for text, place in sorted(texts.items(), key=lambda item: len(item[0]))[:_MAX_PARTS]:
        n_left -= len(text)
        if n_left <= 0:
            break
        error = error_in("start: " + re.sub(r'"\$ref": "[^"]*"', '"title": ""', text))
        if error:
            return Refusal(place, "", error)
    return Refusal(ROOT, "", reason)


def _size_refusal(nodes: Sequence[Node]) -> Refusal | None:
    """Refuse a schema that is too large for llguidance."""
    n_squares = n_pairs = 0
    for node in nodes:
        place, schema = node.place, node.schema
        if node.n_levels > _MAX_LEVELS:
            return Refusal(place, "", "it is nested too deeply")
        n, n_patterns = len(schema.get("properties", ())), len(schema.get("patternProperties", ()))
        n_squares += n * n
        n_pairs += n_patterns * (n + 50)
        if n > _MAX_PROPERTIES:
            return Refusal(place, "properties", f"it has {n} names, the limit is {_MAX_PROPERTIES}")
        if n_squares > _MAX_PROPERTIES**2:
            reason = f"its objects have too many properties together; the limit of one is {_MAX_PROPERTIES}"
            return Refusal(place, "", reason)
        if n_pairs > _MAX_NAMES:
            limit = f"with {n} properties, the limit is {_MAX_NAMES // (n + 50)}, less if other objects have patterns"
            return Refusal(place, "patternProperties", f"it has {n_patterns} patterns; {limit}")
    crowded = crowded_node(nodes)
    if crowded is not None:
        node, reason = crowded
        return Refusal(node.place, "pattern" if "pattern" in node.schema else "", reason)
    return None


# --- control characters ---

_NO_CONTROL = "a control character is not supported with objects that may have names of any text"


def _needs_escapes(schema: Schema) -> bool:
    """Whether all texts that match one of the keywords have control characters."""
    if _CONTROL.search(json.dumps([schema.get("const"), schema.get("enum")])):
        return True
    pattern = schema.get("pattern")
    if pattern is None or not _MAY_NEED_CONTROL.search(pattern):
        return False
    return is_empty(f"start: %json {json.dumps({'type': 'string', 'pattern': pattern, 'x-guidance': WITHOUT_ESCAPES})}")


# --- the functions that refuse a keyword ---


def _keyword_refusals(nodes: Sequence[Node], *, is_lenient: bool) -> Iterator[Refusal]:
    """What the keywords of each schema have that is not enforced; with `is_lenient`, not what llguidance ignores."""
    for node in nodes:
        for keyword in filter(node.schema.__contains__, _KEYWORDS):
            reason = _KEYWORDS[keyword](keyword, node.schema, is_lenient)
            if reason:
                yield Refusal(node.place, keyword, reason)
        number = _inexact(node.schema)
        if number is not None:
            yield Refusal(node.place, "", f"{number} is beyond 2^53, so it would be rounded")
        if _has_near_bounds(node.schema):
            reason = "an exclusive bound that is less than 1 from the other bound is not supported"
            yield Refusal(node.place, "", reason)


def _unsupported(keyword: str, schema: Schema, is_lenient: bool) -> str:
    return "" if is_lenient else f"'{keyword}' is not supported"


def _reference(keyword: str, schema: Schema, is_lenient: bool) -> str:
    """Refuse a reference that is no JSON pointer: the checks do not follow it, and llguidance may."""
    return "" if is_pointer(schema[keyword]) else "only a JSON pointer or an '$anchor' of the same schema is supported"


def _min_properties(keyword: str, schema: Schema, is_lenient: bool) -> str:
    least, required = schema[keyword], schema.get("required", ())
    names = schema.get("properties", {}).keys() | set(required)
    if schema.get("additionalProperties", True) is False and not schema.get("patternProperties"):
        return f"it is {least}, and the number of possible names is {len(names)}" if least > len(names) else ""
    if least <= len(required) + 1 or is_lenient:
        return ""
    return "2 or more can only be enforced for names that are listed"


def _pattern(keyword: str, schema: Schema, is_lenient: bool) -> str:
    n_chars = len(schema[keyword])
    return f"it has {n_chars} characters, the limit is {MAX_PATTERN_CHARS}" if n_chars > MAX_PATTERN_CHARS else ""


def _pattern_properties(keyword: str, schema: Schema, is_lenient: bool) -> str:
    """Refuse a pattern that matches no name beside the listed ones, or patterns that match all names."""
    patterns, listed = schema[keyword], dict.fromkeys(schema.get("properties", ()), False)
    n_chars = max(map(len, patterns), default=0)
    if n_chars > MAX_PATTERN_CHARS:
        return f"a pattern has {n_chars} characters, the limit is {MAX_PATTERN_CHARS}"
    tests = [{keyword: {pattern: True}, "additionalProperties": False} for pattern in patterns]
    if patterns and has_other_names(schema):
        tests.append({keyword: dict.fromkeys(patterns, False), "additionalProperties": True})
    for test in tests:
        tested = {"type": "object", "properties": listed, "minProperties": 1, **test}
        if is_empty("start: " + json_rule(tested), '{"'):
            return "a pattern matches only names that are in 'properties', or all"
    return ""


def _inexact(schema: Schema) -> float | None:
    """A bound, or an integer in a listed value, that llguidance would round; None if there is none."""
    bounds = [schema[keyword] for keyword in _BOUNDS if keyword in schema]
    large = next((bound for bound in bounds if abs(bound) > MAX_INTEGER), None)
    stack = [schema.get("const"), schema.get("enum")]
    while large is None and stack:
        value = stack.pop()
        if isinstance(value, (dict, list)):
            stack += value.values() if isinstance(value, dict) else value
        elif isinstance(value, int) and abs(value) > MAX_INTEGER:
            large = value
    return large


def _has_near_bounds(schema: Schema) -> bool:
    """Whether a whole number is an exclusive bound near the other one: llguidance includes it."""
    if possible_types(schema) == {"integer"}:
        return False
    lows, highs = _bounds_of(schema, "Minimum"), _bounds_of(schema, "Maximum")
    if not lows or not highs:
        return False
    # The narrower bound of each side counts, the exclusive one of two equal ones.
    low, excludes_low = max(lows)
    high, excludes_high = min(highs, key=lambda bound: (bound[0], not bound[1]))
    is_whole = (excludes_low and low % 1 == 0) or (excludes_high and high % 1 == 0)
    return is_whole and 0 < high - low < 1


def _bounds_of(schema: Schema, name: str) -> list[tuple[float, bool]]:
    """The bounds of one side of a schema, each with whether it is exclusive."""
    exclusive, bound = schema.get(f"exclusive{name}", False), schema.get(name.lower())
    # In draft 4, a boolean makes the other bound exclusive.
    is_exclusive = exclusive is True
    bounds = [] if bound is None else [(bound, is_exclusive)]
    return bounds if isinstance(exclusive, bool) else [*bounds, (exclusive, True)]


_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
# Keywords that no grammar enforces.
_NOT_ENFORCED = (
    "$dynamicRef", "$recursiveRef", "contains", "dependencies", "dependentRequired", "dependentSchemas", "else", "if",
    "maxContains", "minContains", "not", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
    "uniqueItems",
)  # fmt: skip
_KEYWORDS: Mapping[str, Callable[[str, Schema, bool], str]] = {
    **dict.fromkeys(_NOT_ENFORCED, _unsupported),
    "$ref": _reference,
    "minProperties": _min_properties,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
}
