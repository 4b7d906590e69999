"""Hostile schemas, patterns and grammars, beside a stream whose gaps between tokens are measured."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from typing import Any

from .target import DEADLINE_S, DOCUMENTED, QUESTION, Broken, Target, post, responses

# Larger ones are not sent: to write them would hold up the reader, which runs in the same process.
MAX_BODY_BYTES = 8 << 20
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


class Reader(threading.Thread):
    """Reads one ordinary stream after the other, and measures the gaps between the chunks."""

    def __init__(self, target: Target) -> None:
        super().__init__(daemon=True)
        self.target = target
        self.must_end = threading.Event()
        self.gaps_s: list[float] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        fields = {
            "messages": [{"role": "user", "content": QUESTION}],
            "stream": True,
            "max_tokens": 64,
            "ignore_eos": True,
        }
        try:
            while not self.must_end.is_set():
                self._read(post("/v1/chat/completions", json.dumps(fields).encode()))
        except BaseException as error:
            self.failure = error

    def _read(self, raw: bytes) -> None:
        with socket.create_connection(self.target.address, timeout=DEADLINE_S) as sock:
            sock.sendall(raw)
            sock.recv(65536)
            last = time.perf_counter()
            while sock.recv(65536) and not self.must_end.is_set():
                now = time.perf_counter()
                self.gaps_s.append(now - last)
                last = now


def run(target: Target, n: int, seed: int) -> str:
    """Send `n` constraints, one after the other, while the reader reads."""
    reader = Reader(target)
    reader.start()
    statuses: dict[int, int] = {}
    worst: tuple[float, int] = (0.0, 0)
    try:
        for i in range(n):
            chance = random.Random(seed + i)
            fields = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, **constraint(chance)}
            body = json.dumps(fields).encode()
            if len(body) > MAX_BODY_BYTES:
                continue
            n_before = len(reader.gaps_s)
            raw = target.send(post("/v1/chat/completions", body), timeout_s=60)
            [(status, payload)] = responses(raw)
            statuses[status] = statuses.get(status, 0) + 1
            if status not in DOCUMENTED:
                raise Broken(f"seed {seed + i}: status {status}: {payload[:300]!r}")
            if reader.failure is not None:
                raise Broken(f"seed {seed + i}: the stream beside it failed: {reader.failure!r}")
            worst = max(worst, (max(reader.gaps_s[n_before:], default=0.0), seed + i))
    finally:
        reader.must_end.set()
        reader.join(DEADLINE_S)
    gaps = sorted(reader.gaps_s) or [0.0]
    counted = ", ".join(f"{count} times {status}" for status, count in sorted(statuses.items()))
    return (
        f"{n:,} hostile constraints: {counted}; the gaps between chunks of another stream: median "
        f"{1000 * gaps[len(gaps) // 2]:.0f} ms, at most {1000 * worst[0]:.0f} ms (seed {worst[1]})"
    )
