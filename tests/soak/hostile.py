"""Sends hostile constraints and large bodies, and measures the gaps of a stream meanwhile, in another process."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from .target import DEADLINE_S, QUESTION, Broken, Target, counted, post

ROOT = Path(__file__).parents[2]
# The longest time that the stream is read alone at the end.
ALONE_S = 20.0

# --- constraints ---

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
        low = chance.randrange(-(10**9), 10**9)
        return {"type": chance.choice(["integer", "number"]), "minimum": low, "multipleOf": 7}
    if kind == 2:
        return {"enum": [chance.random() for _ in range(chance.choice([1, 10, 5000]))]}
    if kind == 3:
        return {"$ref": chance.choice(["#", "#/$defs/a", "#/properties/a", "http://x/y"])}
    if kind in (4, 5):
        names = [f"p{i}" for i in range(chance.choice([1, 3, 60]))]
        fields = {name: schema(chance, 0 if len(names) > 9 else depth - 1) for name in names}
        found = {"type": "object", "properties": fields, "required": names[:2], "$defs": {"a": schema(chance, 0)}}
        return {**found, "minProperties": chance.randrange(9)} if chance.random() < 0.3 else found
    if kind == 6:
        limits = {"minItems": chance.choice([0, 3, 1000]), "uniqueItems": chance.random() < 0.2}
        return {"type": "array", "items": schema(chance, depth - 1), **limits}
    many = [schema(chance, depth - 1) for _ in range(chance.choice([2, 4]))]
    key = chance.choice(["anyOf", "oneOf", "allOf"])
    return {key: many, "not": schema(chance, 0)} if kind == 7 else {"anyOf": many}


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
        tools = [{"type": "function", "function": function}]
        return {"tools": tools, "tool_choice": chance.choice(["auto", "required"])}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema(chance)}}}


def constraints(target: Target, n: int, seed: int) -> str:
    """Send `n` constraints one after the other, beside a stream."""

    def requests() -> Iterator[tuple[str, str, bytes]]:
        for i in range(seed, seed + n):
            fields = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, **constraint(random.Random(i))}
            yield f"seed {i}", "/v1/chat/completions", json.dumps(fields).encode()

    return f"{n:,} hostile constraints: {send_beside_stream(target, requests(), timeout_s=60)}"


# --- large bodies and responses ---

CHAT = b'"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4'
# The items of which a list in a body consists.
ITEMS = [
    *(b"[]", b"{}", b'""', b"1", b"-1.5e3", b"true", b'{"a":1}', b'"\\u00e9"', b'[1,"x",null]', b'"\\ud83d"'),
    *(b'{"type": "text", "text": "a"}', b'{"role": "user", "content": "a"}', b"[[[[[]]]]]", b'"a b c "'),
]
# By path, bodies with a place for the items, and bodies with a place for a text.
PLACES: list[tuple[str, bytes]] = [
    ("/v1/chat/completions", b'{"messages": [%b]}'),
    ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": [%b]}]}'),
    *(
        ("/v1/chat/completions", b"{" + CHAT + b", " + field + b"}")
        for field in (
            *(b'"metadata": {"x": [%b]}', b'"stop": [%b]', b'"tools": [%b]', b'"json_schema": {"enum": [%b]}'),
            b'"chat_template_kwargs": {"x": [%b]}',
        )
    ),
    ("/v1/completions", b'{"max_tokens": 4, "prompt": [%b]}'),
    ("/v1/embeddings", b'{"input": [%b]}'),
    ("/v1/responses", b'{"max_output_tokens": 4, "input": [%b]}'),
    ("/v1/messages", b'{"max_tokens": 4, "messages": [%b]}'),
    ("/tokenize", b'{"content": [%b]}'),
]
TEXT_PLACES: list[tuple[str, bytes]] = [
    ("/v1/chat/completions", b'{"max_tokens": 4, "messages": [{"role": "user", "content": "%b"}]}'),
    ("/v1/completions", b'{"max_tokens": 4, "prompt": "%b"}'),
    ("/tokenize", b'{"content": "%b"}'),
    ("/v1/embeddings", b'{"input": "%b"}'),
]
TEXTS = [b"a b c ", b"\\n", b"\\u00e9", b"<think>", b"a", b"\\\\", b"  "]
# Ordinary requests whose responses have hundreds of thousands of values.
LARGE_RESPONSES = [
    ("/v1/chat/completions", b"{" + CHAT + b', "n": 8, "logprobs": true, "top_logprobs": 20}'),
    ("/v1/embeddings", b'{"input": [' + b",".join(b'"text %d"' % i for i in range(1000)) + b"]}"),
]


def large_request(chance: random.Random) -> tuple[str, bytes]:
    """A path and a body."""
    if chance.random() < 0.1:
        return chance.choice(LARGE_RESPONSES)
    n_bytes = chance.choice([100_000, 1_000_000, 4_000_000, 16_000_000, 20_000_000])
    is_text = chance.random() < 0.3
    path, body = chance.choice(TEXT_PLACES if is_text else PLACES)
    item = chance.choice(TEXTS) if is_text else chance.choice(ITEMS) + b","
    return path, body % (item * (n_bytes // len(item))).rstrip(b",")


def bodies(target: Target, n: int, seed: int) -> str:
    """Send `n` bodies one after the other, beside a stream."""

    def requests() -> Iterator[tuple[str, str, bytes]]:
        for i in range(seed, seed + n):
            path, body = large_request(random.Random(i))
            yield f"seed {i}: {path} {body[:80]!r} of {len(body)} bytes", path, body

    return f"{n:,} large bodies: {send_beside_stream(target, requests(), timeout_s=120)}"


# --- the stream ---


def send_beside_stream(target: Target, requests: Iterable[tuple[str, str, bytes]], *, timeout_s: float) -> str:
    """Send requests (name, path, body) one after the other beside a stream; returns the results for the report."""
    statuses: Counter[int] = Counter()
    # What runs beside the stream: its start and name.
    spans: list[tuple[float, str]] = []
    with tempfile.TemporaryFile("w+") as file:
        command = [sys.executable, "-m", "tests.soak.hostile", target.url]
        with subprocess.Popen(command, stdout=file, cwd=ROOT) as process:
            try:
                wait_for(lambda: os.fstat(file.fileno()).st_size > 0, "the stream has no chunks")
                for name, path, body in requests:
                    spans.append((time.monotonic(), name))
                    statuses[target.status(path, body, timeout_s)[0]] += 1
                    if process.poll() is not None:
                        raise Broken(f"{name}: the stream beside it failed")
                spans.append((time.monotonic(), "alone"))
                time.sleep(min(ALONE_S, spans[-1][0] - spans[0][0]))
            finally:
                process.kill()
        file.seek(0)
        lines = [line.split() for line in file.read().splitlines()[:-1]]
    gaps = [(float(gap), float(ended_at)) for ended_at, gap in lines]
    largest: dict[str, float] = {}
    for gap, ended_at in gaps:
        name = next((name for start, name in reversed(spans) if start <= ended_at), "nothing")
        largest[name] = max(gap, largest.get(name, 0.0))
    alone, median = largest.pop("alone", 0.0), sorted(gaps)[len(gaps) // 2][0]
    worst = max(largest.keys() - {"nothing"}, key=largest.__getitem__, default="nothing")
    return (
        f"{counted(statuses)}; the gaps between chunks of another stream: median {1000 * median:.0f} ms, at most "
        f"{1000 * largest[worst]:.0f} ms ({worst}), and alone at most {1000 * alone:.0f} ms"
    )


def wait_for(condition: Callable[[], bool], message: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise Broken(message)
        time.sleep(0.02)


def main() -> None:
    """Read one stream after the other, and write each gap with the time of its end (`time.monotonic`)."""
    fields = {"messages": [{"role": "user", "content": QUESTION}], "stream": True, "max_tokens": 400}
    body = json.dumps({**fields, "ignore_eos": True}).encode()
    while True:
        with socket.create_connection(Target(sys.argv[1], 0).address, timeout=DEADLINE_S) as sock:
            sock.sendall(post("/v1/chat/completions", body))
            if not sock.recv(65536).startswith(b"HTTP/1.1 200"):
                raise Broken("the stream is refused")
            last = time.monotonic()
            while sock.recv(65536):
                now = time.monotonic()
                print(now, now - last, flush=True)
                last = now


if __name__ == "__main__":
    main()
