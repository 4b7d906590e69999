"""Sends one HTTP request, and reads the response of any interface."""

import contextlib
import json
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from typing import Any

from tests.support.deadline import DEADLINE_S


def ask(port: int, path: str, body: Any = None, method="", headers: Any = None) -> tuple[int, Any]:
    """The status, and the JSON or the text of the response, or a list of its events."""
    response, found = exchange(f"127.0.0.1:{port}", path, body, method, headers)
    return response.status, found


def exchange(address: str, path: str, body: Any = None, method="", headers: Any = None) -> tuple[HTTPResponse, Any]:
    """The response object, and the JSON or the text of the response, or a list of its events."""
    with opened(address, path, body, method, headers) as response:
        return read(response)


@contextlib.contextmanager
def opened(address: str, path: str, body: Any = None, method="", headers: Any = None) -> Iterator[HTTPResponse]:
    """A response whose head has arrived. Bytes and text are sent as they are, other bodies as JSON."""
    with contextlib.closing(HTTPConnection(address, timeout=DEADLINE_S)) as connection:
        raw = body if isinstance(body, (bytes, str)) or body is None else json.dumps(body)
        connection.request(method or ("GET" if raw is None else "POST"), path, raw, headers or {})
        yield connection.getresponse()


def read(response: HTTPResponse) -> tuple[HTTPResponse, Any]:
    text, kind = response.read().decode(), response.getheader("Content-Type")
    if kind == "text/event-stream":
        return response, events_of(text)
    if kind == "application/x-ndjson":
        return response, [json.loads(line) for line in text.splitlines()]
    return response, json.loads(text) if str(kind).startswith("application/json") else text


def events_of(text: str) -> list[Any]:
    """The payloads of a stream's events. If an event has a name, it must equal the `type` of the payload."""
    *blocks, end = text.split("\n\n")
    assert end == ""
    events = []
    for block in blocks:
        if block.startswith(":"):  # A comment: a ping of a response that waits.
            continue
        *names, data = block.split("\n")
        payload = data.removeprefix("data: ")
        assert payload != data
        events.append(payload if payload == "[DONE]" else json.loads(payload))
        assert names in ([], [f"event: {events[-1]['type'] if names else ''}"])
    return events
