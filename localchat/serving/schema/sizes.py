"""The limits of the size of a schema, for work of llguidance that cannot be interrupted."""

from __future__ import annotations

from collections.abc import Sequence

from .walk import Node

# llguidance compares all properties of an object, and all patterns of names with the properties.
_MAX_PROPERTIES, _MAX_PAIRS = 3000, 5000
# Levels of schemas, which references continue, are on the stack.
_MAX_LEVELS = 600


def too_large(nodes: Sequence[Node]) -> tuple[Node, str, str] | None:
    """The first schema that exceeds a limit, its keyword or "", and the reason; None if no schema does."""
    n_squares = n_pairs = 0  # Of all objects together.
    for node in nodes:
        if node.n_levels > _MAX_LEVELS:
            return node, "", "it is nested too deeply"
        n, n_patterns = len(node.schema.get("properties", ())), len(node.schema.get("patternProperties", ()))
        n_squares += n * n
        n_pairs += n_patterns * (n + 50)
        if n > _MAX_PROPERTIES:
            return node, "properties", f"it has {n} names, the limit is {_MAX_PROPERTIES}"
        if n_squares > _MAX_PROPERTIES**2:
            return node, "", f"its objects have too many properties together; the limit of one is {_MAX_PROPERTIES}"
        if n_pairs > _MAX_PAIRS:
            limit = f"with {n} properties, the limit is {_MAX_PAIRS // (n + 50)}, less if other objects have patterns"
            return node, "patternProperties", f"it has {n_patterns} patterns; {limit}"
    return None
