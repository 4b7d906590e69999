"""Damaged requests and model files, wrong values, hostile constraints: each is served, or refused as documented."""

import base64
import copy
import json
import random
import re
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from localchat.serving.core.media import IMAGE
from localchat.serving.models.model_file import DEMO_PATH, ModelFile, summary_of
from tests.serving.engine.test_media_decoding import GOOD, mutated
from tests.serving.http.test_server_examples import EXAMPLES
from tests.support.fuzz import replace_value
from tests.support.live import running_process
from tests.support.serving import raw_request
from tests.support.tiny_models import write_projector

from .target import Target, counted, running_target

# An ordinary request follows so many damaged ones.
BATCH = 100

MESSAGES = [{"role": "user", "content": "Hi"}]
BODIES: list[tuple[str, dict[str, Any]]] = [
    *EXAMPLES.values(),
    *((path, {**fields, "stream": True}) for path, fields in EXAMPLES.values()),
    ("/v1/embeddings", {"input": ["one", "two"], "dimensions": 8}),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}], "store": False}),
    ("/v1/messages", {"max_tokens": 4, "messages": MESSAGES, "system": [{"type": "text", "text": "Be brief."}]}),
    ("/api/generate", {"model": "demo", "prompt": "Hi", "options": {"num_predict": 4}, "stream": False}),
    ("/api/embed", {"model": "demo", "input": ["one", "two"]}),
]


def fuzzed(target: Target, what: str, n: int, seed: int, send: Callable[[random.Random], list[int]]) -> str:
    """Send `n` requests, each of a seed of its own, and ordinary ones between them; returns the line for the report."""
    statuses: Counter[int] = Counter()
    for i in range(n):
        try:
            statuses.update(send(random.Random(seed + i)))
        except Exception as error:
            raise AssertionError(f"seed {seed + i}: {error!r}") from error
        if i % BATCH == BATCH - 1:
            target.check()
    return f"{n:,} {what}: {counted(statuses)}; an ordinary request in {target.ordinary}"


# --- HTTP ---

_GET = b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
_RAW = [
    _GET,
    _GET.replace(b"/v1/models", b"/"),
    *(raw_request(json.dumps(body).encode(), "Connection: close", path=path) for path, body in BODIES),
]
_LINES = [
    *(b"Host: evil.example", b"Host: 127.0.0.1", b"Content-Length: 5", b"Content-Length: 99999999999", b"X: \0"),
    *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip", b"Expect: 100-continue", b"Connection: keep-alive"),
    *(b" folded: line", b"No-Colon", b"Origin: http://evil.example", b"Upgrade: h2c", b"A" * 70_000),
    b"X: " + b"y" * 9000,
]
_BYTES = (*b'\0\r\n :/?%\x7f\xff{}[]",', *b"09azGH")


def damaged_request(chance: random.Random) -> bytes:
    """One request, or two on one connection, with one to three defects."""
    raw = bytearray(chance.choice(_RAW))
    for _ in range(chance.randrange(1, 4)):
        kind = chance.randrange(6)
        if kind == 0:
            for _ in range(chance.randrange(1, 6)):
                raw[chance.randrange(len(raw))] = chance.choice(_BYTES)
        elif kind == 1:
            head, end, body = raw.partition(b"\r\n\r\n")
            lines = head.split(b"\r\n")
            lines.insert(chance.randrange(len(lines) + 1), chance.choice(_LINES))
            raw[:] = b"\r\n".join(lines) + end + body
        elif kind == 2:
            del raw[chance.randrange(1, len(raw) + 1) :]
        elif kind == 3:
            raw[:] = raw.replace(b"\r\n", chance.choice([b"\n", b"\r", b"\r\n\r\n", b"\n\r"]), chance.randrange(1, 5))
        elif kind == 4:
            at, n = chance.randrange(len(raw)), chance.randrange(1, 40)
            raw[at:at] = raw[at : at + n] or b"x"
        else:
            raw += chance.choice(_RAW)
    return bytes(raw)


def http(target: Target, n: int, seed: int) -> str:
    """Send `n` damaged requests. Each gets a documented status, or the connection is closed."""
    return fuzzed(target, "damaged HTTP requests", n, seed, lambda chance: target.statuses(damaged_request(chance)))


# --- JSON ---

VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**400, 1.5, -0.0, 1e308, "", " ", "x", "auto", "\ud800", "\0"),
    *("<|im_end|>", [], {}, [None], [[]], [0], ["x"], {"a": 1}, {"type": "object"}, {"type": "text"}, "A" * 5000),
    [1] * 300,
]


def damaged_body(chance: random.Random) -> tuple[str, dict[str, Any]]:
    """The path and the body of a request with one to three wrong values or fields of another request."""
    path, body = copy.deepcopy(chance.choice(BODIES))
    for _ in range(chance.randrange(1, 4)):
        if chance.random() < 0.2:
            body[chance.choice(list(chance.choice(BODIES)[1]))] = copy.deepcopy(chance.choice(VALUES))
        elif body and chance.random() < 0.1:
            del body[chance.choice(list(body))]
        else:
            replace_value(body, chance, VALUES)
    return path, body


def json_bodies(target: Target, n: int, seed: int) -> str:
    """Send `n` bodies with wrong values to all endpoints."""
    return fuzzed(target, "JSON bodies", n, seed, lambda chance: [target.ask(*damaged_body(chance))[0]])


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
    """Send `n` hostile schemas, patterns, grammars and tools. An ordinary request follows each."""

    def send(chance: random.Random) -> list[int]:
        fields = {"messages": MESSAGES, "max_tokens": 8, **constraint(chance)}
        status, _ = target.ask("/v1/chat/completions", fields)
        target.check()
        return [status]

    return fuzzed(target, "hostile constraints", n, seed, send)


# --- images and sound ---


def media(n: int, seed: int) -> str:
    """Send `n` images and sounds with wrong bytes, or cut, to a server with a projector. All are decoded to count their
    tokens, and some are encoded."""

    def send(chance: random.Random) -> list[int]:
        kind, data = chance.choice(list(GOOD.values()))
        text = base64.b64encode(mutated(data, chance)).decode()
        part: dict[str, Any] = {"type": "input_audio", "input_audio": {"data": text}}
        if kind == IMAGE:
            part = {"type": "image_url", "image_url": {"url": f"data:;base64,{text}"}}
        content = [part, {"type": "text", "text": "?"}]
        path = "/v1/messages/count_tokens" if chance.randrange(50) else "/v1/chat/completions"
        return [target.ask(path, {"messages": [{"role": "user", "content": content}], "max_tokens": 1})[0]]

    with tempfile.TemporaryDirectory() as folder:
        projector = Path(folder, "mmproj.gguf")
        write_projector(projector, "gemma3", "ultravox", width=summary_of(ModelFile(DEMO_PATH, "")).width)
        with running_target("--ctx", "2048", "--mmproj", str(projector)) as target:
            line = fuzzed(target, "damaged images and sounds", n, seed, send)
        lines = "".join(target.server.lines)
        assert not re.search("has ended|was killed", lines), f"the engine process has ended: {lines[-2000:]}"
    return line


# --- model files ---


def damaged_file(raw: bytes, chance: random.Random) -> bytes:
    """The model file with a few wrong bytes near its beginning."""
    changed = bytearray(raw)
    for _ in range(chance.randrange(1, 5)):
        at = chance.randrange(chance.choice([64, 4096, 200_000]))
        value = chance.choice([0, 1, 255, chance.randrange(256)])
        n = chance.choice([1, 1, 4, 8])
        changed[at : at + n] = bytes([value]) * n
    return bytes(changed)


def models(n: int, seed: int) -> str:
    """Start `n` servers, each with a damaged file. Each must serve it, or end with one line that names it."""
    raw = DEMO_PATH.read_bytes()
    n_served = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "damaged.gguf")
        for i in range(n):
            path.write_bytes(damaged_file(raw, random.Random(seed + i)))
            try:
                with running_process(str(path)):
                    n_served += 1
            except AssertionError as error:
                text = str(error)
                is_refused = text.startswith("exit status 1\n") and "Traceback" not in text and str(path) in text
                assert is_refused, f"seed {seed + i}: {text[-1000:]}"
    return f"{n:,} damaged model files: {n_served} served, {n - n_served} refused in one line, no crash"
