"""Responses as bytes, with parts of streams as the payloads of OpenAI's API."""

from __future__ import annotations

import json
from typing import Any


def with_length(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


def chunked(*parts: bytes, end: bool = True) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + chunks(*parts, end=end)


def chunks(*parts: bytes, end: bool = True) -> bytes:
    """The body of a chunked response, or a part of it."""
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + (b"0\r\n\r\n" if end else b"")


def until_close(*parts: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    return head + b"".join(parts)


def sse(payload: Any) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def piece(text: str, finish: str | None = None) -> bytes:
    return sse({"id": "1", "model": "m", "choices": [choice({"content": text}, finish)]})


def delta(finish: str | None = None, index: int = 0, **fields: Any) -> bytes:
    return sse({"choices": [choice(fields, finish, index)]})


def choice(delta: Any, finish: str | None = None, index: int = 0) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": finish}


STOP = delta("stop")
USAGE = sse({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}})
DONE = b"data: [DONE]\n\n"
HELLO_EVENTS = (piece("Hel"), piece("lo"), STOP, USAGE, DONE)
HELLO = chunked(*HELLO_EVENTS)
OPEN = chunked(piece("a"), end=False)
MODELS = with_length(b'{"object": "list", "data": [{"id": "first"}]}')
HELLO_JSON = b'{"id": "1", "choices": [{"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"}]}'
