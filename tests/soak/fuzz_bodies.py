"""Sends bodies of many megabytes, and requests for large responses, and measures the gaps of a stream meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from .gaps import send_beside_stream
from .target import Target

CHAT = b'"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4'
# The items of which a list in a body consists.
ITEMS = [
    *(b"[]", b"{}", b'""', b"1", b"-1.5e3", b"true", b'{"a":1}', b'"\\u00e9"', b'[1,"x",null]', b'"\\ud83d"'),
    *(b'{"type": "text", "text": "a"}', b'{"role": "user", "content": "a"}', b"[[[[[]]]]]", b'"a b c "'),
]
# By path, functions that put the items into a body.
PLACES: dict[str, list[Callable[[bytes], bytes]]] = {
    "/v1/chat/completions": [
        lambda items: b'{"messages": [' + items + b"]}",
        lambda items: b"{" + CHAT + b', "metadata": {"x": [' + items + b"]}}",
        lambda items: b"{" + CHAT + b', "stop": [' + items + b"]}",
        lambda items: b"{" + CHAT + b', "tools": [' + items + b"]}",
        lambda items: b"{" + CHAT + b', "chat_template_kwargs": {"x": [' + items + b"]}}",
        lambda items: b"{" + CHAT + b', "json_schema": {"enum": [' + items + b"]}}",
        lambda items: b'{"messages": [{"role": "user", "content": [' + items + b"]}]}",
    ],
    "/v1/completions": [lambda items: b'{"max_tokens": 4, "prompt": [' + items + b"]}"],
    "/v1/embeddings": [lambda items: b'{"input": [' + items + b"]}"],
    "/v1/responses": [lambda items: b'{"max_output_tokens": 4, "input": [' + items + b"]}"],
    "/v1/messages": [lambda items: b'{"max_tokens": 4, "messages": [' + items + b"]}"],
    "/tokenize": [lambda items: b'{"content": [' + items + b"]}"],
}
TEXTS = [b"a b c ", b"\\n", b"\\u00e9", b"<think>", b"a", b"\\\\", b"  "]
# Ordinary requests whose responses have hundreds of thousands of values.
LARGE_RESPONSES = [
    ("/v1/chat/completions", b"{" + CHAT + b', "n": 8, "logprobs": true, "top_logprobs": 20}'),
    ("/v1/embeddings", b'{"input": [' + b",".join(b'"text %d"' % i for i in range(1000)) + b"]}"),
]


def request(chance: random.Random) -> tuple[str, bytes]:
    """A path and a body."""
    if chance.random() < 0.1:
        return chance.choice(LARGE_RESPONSES)
    n_bytes = chance.choice([100_000, 1_000_000, 4_000_000, 16_000_000, 20_000_000])
    if chance.random() < 0.3:
        text = chance.choice(TEXTS)
        text *= n_bytes // len(text)
        return chance.choice(
            [
                (
                    "/v1/chat/completions",
                    b'{"max_tokens": 4, "messages": [{"role": "user", "content": "' + text + b'"}]}',
                ),
                ("/v1/completions", b'{"max_tokens": 4, "prompt": "' + text + b'"}'),
                ("/tokenize", b'{"content": "' + text + b'"}'),
                ("/v1/embeddings", b'{"input": "' + text + b'"}'),
            ]
        )
    path = chance.choice(list(PLACES))
    item = chance.choice(ITEMS)
    return path, chance.choice(PLACES[path])(b",".join([item] * (n_bytes // (len(item) + 1))))


def run(target: Target, n: int, seed: int) -> str:
    """Send `n` bodies one after the other, beside a stream."""

    def requests() -> Iterator[tuple[str, str, bytes]]:
        for i in range(seed, seed + n):
            path, body = request(random.Random(i))
            yield f"seed {i}: {path} {body[:80]!r} of {len(body)} bytes", path, body

    return f"{n:,} large bodies: {send_beside_stream(target, requests(), timeout_s=120)}"
