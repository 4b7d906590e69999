"""Leaves out of a prepared schema what no grammar enforces, for the arguments of tools that the model need not call."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence

from .compiler import COUNT, OVERLAP, error_in, json_rule
from .refuse import Refusal, keyword_refusals, refusal
from .walk import Node, Schema, at_pointer, holder_of, used_schemas, with_children

# The limits of the parts that are left out of a schema, and of the characters that are checked for it.
_MAX_LEFT_OUT, _MAX_CHECKED = 20, 300_000
_COUNTS = ("minProperties", "maxProperties")
_MAX_COUNTS = 200  # The limit of those that are checked: each takes some tenths of a millisecond.
# The keywords that determine the names of an object.
_NAMES = frozenset(("properties", "required", "patternProperties", "additionalProperties"))


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
        yield from keyword_refusals([node], is_lenient=False)
        if "oneOf" in node.schema:
            yield Refusal(node.place, "oneOf", OVERLAP)
    counts = [(node, keyword) for node in nodes for keyword in _COUNTS if keyword in node.schema]
    for node, keyword in counts[:_MAX_COUNTS]:
        if _reason_of_count(keyword, node.schema) == COUNT:
            yield Refusal(node.place, keyword, COUNT)


def _reason_of_count(keyword: str, schema: Schema) -> str:
    """Why llguidance refuses a limit of the number of properties; "" if it does not."""
    names = {
        name: with_children(name, schema[name], lambda child: child is not False) for name in _NAMES & schema.keys()
    }
    return error_in("start: " + json_rule({"type": "object", **names, keyword: schema[keyword]}))


def _leave_out(refused: Refusal, schema: Schema) -> None:
    """Remove a keyword of an inner schema, or all that the inner schema restricts beside its type."""
    pointer = refused.place.pointer
    if refused.keyword:
        del at_pointer(pointer, schema)[refused.keyword]
        return
    holder, key = holder_of(pointer, schema)
    part = holder[key]
    holder[key] = {"type": part["type"]} if isinstance(part, dict) and part.keys() > {"type"} else True
