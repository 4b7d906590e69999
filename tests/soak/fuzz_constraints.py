"""Sends hostile schemas, patterns and grammars, and measures the gaps of a stream meanwhile."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from .gaps import send_beside_stream
from .target import Target

PATTERNS = ["a", ".", "[a-z]", r"\d", "x?", "(a|b)", "[^x]", r"\w", "é", "(?:ab|a)", r"\s*", "(a*)"]
REPEATS = ["", "", "*", "+", "?", "{3}", "{0,9}", "{200}", "{1,1500}", "{2,}"]


def pattern(chance: random.Random, depth: int = 3) -> str:
    parts = []
    for _ in range(chance.choice([1, 2, 3, 8])):
        inner = f"({pattern(chance, depth - 1)})" if depth and chance.random() < 0.4 else chance.choice(PATTERNS)
        parts.append(inner + chance.choice(REPEATS))
    return chance.choice(["", "|"]).join(parts) * chance.choice([1, 1, 1, 50])


def schema(chance: random.Random, depth: int = 4) -> Any:
    kind = chance.randrange(9) if depth else chance.randrange(4)
    if kind == 0:
        return {"type": "string", "pattern": pattern(chance), "maxLength": chance.choice([5, 500, 100_000])}
    if kind == 1:
        return {
            "type": chance.choice(["integer", "number"]),
            "minimum": chance.randrange(-(10**9), 10**9),
            "multipleOf": 7,
        }
    if kind == 2:
        return {"enum": [chance.random() for _ in range(chance.choice([1, 10, 5000]))]}
    if kind == 3:
        return {"$ref": chance.choice(["#", "#/$defs/a", "#/properties/a", "http://x/y"])}
    if kind in (4, 5):
        names = [f"p{i}" for i in range(chance.choice([1, 3, 60]))]
        fields = {name: schema(chance, 0 if len(names) > 9 else depth - 1) for name in names}
        limits = {"minProperties": chance.randrange(9)} if chance.random() < 0.3 else {}
        return {
            "type": "object",
            "properties": fields,
            "required": names[:2],
            **limits,
            "$defs": {"a": schema(chance, 0)},
        }
    if kind == 6:
        limits = {"minItems": chance.choice([0, 3, 1000]), "uniqueItems": chance.random() < 0.2}
        return {"type": "array", "items": schema(chance, depth - 1), **limits}
    many = [schema(chance, depth - 1) for _ in range(chance.choice([2, 4]))]
    return (
        {chance.choice(["anyOf", "oneOf", "allOf"]): many, "not": schema(chance, 0)} if kind == 7 else {"anyOf": many}
    )


def grammar(chance: random.Random) -> str:
    names = ["root", *(f"r{i}" for i in range(chance.choice([1, 5, 200])))]
    rules = []
    for name in names:
        parts = [
            chance.choice(['"a"', "[a-z]", chance.choice(names), '("x" | "y")', '""'])
            + chance.choice(["", "*", "?", "{2,40}"])
            for _ in range(chance.choice([1, 2, 5]))
        ]
        rules.append(f"{name} ::= {chance.choice([' ', ' | ']).join(parts)}")
    return "\n".join(rules)


def constraint(chance: random.Random) -> dict[str, Any]:
    """The fields of a request with a constraint."""
    kind = chance.randrange(4)
    if kind == 0:
        return {"grammar": grammar(chance)}
    if kind == 1:
        return {"structured_outputs": {"regex": pattern(chance)}}
    if kind == 2:
        function = {"name": "f", "parameters": {"type": "object", "properties": {"a": schema(chance)}}}
        return {
            "tools": [{"type": "function", "function": function}],
            "tool_choice": chance.choice(["auto", "required"]),
        }
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema(chance)}}}


def run(target: Target, n: int, seed: int) -> str:
    """Send `n` constraints one after the other, beside a stream."""

    def requests() -> Iterator[tuple[str, str, bytes]]:
        for i in range(seed, seed + n):
            fields = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, **constraint(random.Random(i))}
            yield f"seed {i}", "/v1/chat/completions", json.dumps(fields).encode()

    return f"{n:,} hostile constraints: {send_beside_stream(target, requests(), timeout_s=60)}"
