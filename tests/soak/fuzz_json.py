"""Sends JSON bodies with wrong values to every endpoint. Statuses must be documented, and errors must be JSON."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from typing import Any

from ..wire_cases import chat_cases, other_cases
from .target import DOCUMENTED, Broken, Target, counted, parsed, post, responses

BATCH = 100
MESSAGES = [{"role": "user", "content": "Hi"}]
# Requests to endpoints that have few recorded cases.
OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/responses", {"input": "Hi", "max_output_tokens": 4, "instructions": "Be brief."}),
    ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}], "store": False}),
    ("/v1/messages", {"max_tokens": 4, "messages": MESSAGES, "system": [{"type": "text", "text": "Be brief."}]}),
    ("/v1/messages/count_tokens", {"messages": MESSAGES}),
    ("/api/chat", {"model": "demo", "messages": MESSAGES, "options": {"num_predict": 4}}),
    ("/api/generate", {"model": "demo", "prompt": "Hi", "options": {"num_predict": 4}, "stream": False}),
    ("/api/embed", {"model": "demo", "input": ["one", "two"]}),
    ("/completion", {"prompt": "Hi", "n_predict": 4}),
]
VALUES: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2**31,
        2**63,
        10**400,
        1.5,
        -0.0,
        1e308,
        "",
        " ",
        "x",
        "auto",
        "\ud800",
        "\0",
        "<|im_end|>",
    ),
    *([], {}, [None], [[]], [0], ["x"], {"a": 1}, {"type": "object"}, {"type": "text"}, "A" * 5000, [1] * 300),
]


def _bodies() -> list[tuple[str, Any]]:
    recorded = [
        (case.path, case.body)
        for case in (*chat_cases(), *other_cases())
        if case.method == "POST" and case.verbatim is None
    ]
    return [*((path, body) for path, body in recorded if isinstance(body, dict) and body), *OTHERS]


_BODIES = _bodies()


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values within a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in items for place in [(*path, key), *places(item, (*path, key))]]


def damaged(chance: random.Random) -> tuple[str, bytes]:
    """The path and the body of a request with one to three wrong values or fields of another request."""
    path, body = chance.choice(_BODIES)
    body = copy.deepcopy(body)
    for _ in range(chance.randrange(1, 4)):
        found = places(body)
        if not found or chance.random() < 0.2:
            name = chance.choice(list(chance.choice(_BODIES)[1]))
            body[name] = copy.deepcopy(chance.choice(VALUES))
            continue
        *parents, key = chance.choice(found)
        holder = body
        for parent in parents:
            holder = holder[parent]
        if chance.random() < 0.15:
            del holder[key]
        else:
            holder[key] = copy.deepcopy(chance.choice(VALUES))
    return path, json.dumps(body).encode()


def _check_error(path: str, raw: bytes) -> None:
    _, payload = parsed(raw)
    error = payload["error"]
    message = error if isinstance(error, str) else error["message"]
    if not message or "Traceback" in message or "internal" in message:
        raise Broken(f"{path}: the error is {payload}")


def run(target: Target, n: int, seed: int) -> str:
    """Send `n` bodies. An ordinary request follows each batch."""
    statuses: Counter[int] = Counter()
    for i in range(n):
        path, body = damaged(random.Random(seed + i))
        try:
            raw = target.send(post(path, body, "Content-Type: application/json"))
            [(status, _)] = responses(raw)
            if status not in DOCUMENTED:
                raise Broken(f"status {status}: {raw[-500:]!r}")
            if status >= 400:
                _check_error(path, raw)
        except (AssertionError, ValueError, LookupError, TypeError) as error:
            target.fault(f"seed {seed + i}: {error!r} for {path} {body[:1000]!r}")
            continue
        statuses[status] += 1
        if i % BATCH == BATCH - 1:
            target.check()
    return f"{n:,} JSON bodies: {counted(statuses)}; an ordinary request in {target.ordinary}"
