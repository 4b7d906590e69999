"""Refuses a prepared schema with a part that no grammar enforces, and names the place of the part.

Most reasons are found where they are, by reading the schema. llguidance finds the others by compiling it, and returns
no place. So smaller parts are compiled alone, the smallest one first, until llguidance refuses one of them.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from .combined_patterns import too_many_patterns
from .compiler import NO_VALUE, error_in, forbids_escapes, json_rule
from .control_characters import NOT_SUPPORTED, needs_control_characters
from .finite import has_finite_value
from .keywords import unenforced
from .sizes import too_large
from .types import allows_all_of_its_types
from .walk import ANNOTATIONS, ROOT, Node, Place, Schema, children, used_schemas, with_children

# To find the place of an error, this many times the text of the schema is compiled, and a minimum of characters, in so
# many parts: each takes some tenths of a millisecond.
_MAX_TRIED, _MIN_TRIED, _MAX_PARTS = 2, 20_000, 2000


class Refusal(NamedTuple):
    """A part of a schema that is not enforced."""

    place: Place  # Of the innermost schema that has the part.
    keyword: str  # The part; "" for the schema as a whole.
    reason: str

    @property
    def pointer(self) -> str:
        """The JSON pointer to the part."""
        return self.place.pointer + (self.keyword and f"/{self.keyword}")


_NOT_FINITE = Refusal(ROOT, "", "no value of it is finite")


def refusal(schema: Any) -> Refusal | None:
    """The first part of a prepared schema that cannot be enforced; None if all of it is."""
    if not isinstance(schema, dict):
        reason = error_in("start: " + json_rule(schema))
        return Refusal(ROOT, "", reason) if reason else None
    nodes = used_schemas(schema)
    refused = next(_found_by_reading(schema, nodes), None)
    if refused is not None:
        return refused
    reason = error_in("start: " + json_rule(schema))
    if reason:
        return _smallest_refused(schema, nodes, reason)
    return None if has_finite_value(nodes, _empty_nodes(nodes)) else _NOT_FINITE


def _found_by_reading(schema: Schema, nodes: Sequence[Node]) -> Iterator[Refusal]:
    """The parts of a schema that are not enforced, as far as they are found without compiling the schema."""
    for find in (too_large, too_many_patterns):
        found = find(nodes)
        if found is not None:
            node, keyword, reason = found
            yield Refusal(node.place, keyword, reason)
    yield from keyword_refusals(nodes, is_lenient="lenient" in schema.get("x-guidance", {}))
    if forbids_escapes(schema):
        yield from (Refusal(node.place, "", NOT_SUPPORTED) for node in nodes if needs_control_characters(node.schema))
    # After the schema is compiled, `refusal` asks again, with the nodes that llguidance finds to be empty.
    if not has_finite_value(nodes):
        yield _NOT_FINITE


def keyword_refusals(nodes: Sequence[Node], *, is_lenient: bool) -> Iterator[Refusal]:
    """The keywords of each schema that are not enforced; with `is_lenient`, without those that llguidance ignores."""
    for node in nodes:
        for keyword, reason in unenforced(node.schema, is_lenient=is_lenient):
            yield Refusal(node.place, keyword, reason)


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
