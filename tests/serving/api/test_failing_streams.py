"""Streams that fail in the middle, and refused requests, in the format of each interface.

Each event and each body is validated against a schema of its interface (tests/data/wire_schemas.json).
"""

from __future__ import annotations

import contextlib
import http.client
import json
from typing import Any

import pytest

from tests.support.exchanges import read
from tests.support.response_events import check_stream
from tests.support.serving import BIG, generating, serving
from tests.support.wire_schemas import validate

MESSAGES = [{"role": "user", "content": "x"}]
PARAMETERS = {"type": "object", "properties": {"at": {"type": "string"}}}
OUTPUT = (
    '<think>\nhm\n</think>\n\nLet me look.\n<tool_call>\n{"name": "look", "arguments": {"at": "here"}}\n</tool_call>'
)
# The positions at which the output fails: in reasoning, in text, in the arguments of a call.
POSITIONS = {"reasoning": OUTPUT.index("m\n</"), "text": OUTPUT.index(" look."), "call": OUTPUT.index('ere"}}')}

FUNCTION = {"name": "look", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": FUNCTION}]
# For each path: the schemas of its events, of an error in a stream and of an error response, and a request.
INTERFACES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "/v1/chat/completions": ("chat-completions-event", "error", "error", {"messages": MESSAGES, "tools": TOOLS}),
    "/v1/completions": ("completions-event", "error", "error", {"prompt": "x"}),
    "/v1/responses": (
        "responses-event",
        "responses-failure",
        "error",
        {"input": "x", "tools": [{"type": "function", **FUNCTION}]},
    ),
    "/v1/messages": (
        "messages-event",
        "messages-error",
        "messages-error",
        {"messages": MESSAGES, "max_tokens": 500, "tools": [{"name": "look", "input_schema": PARAMETERS}]},
    ),
    "/api/chat": ("api-chat-event", "api-error", "api-error", {"messages": MESSAGES, "tools": TOOLS, "think": True}),
    "/completion": ("completion-event", "error", "error", {"prompt": "x"}),
}


def breaking_at(n: int) -> Any:
    """A model that fails at the n-th token of the output."""
    whole = generating(OUTPUT)

    def model(tokens: Any, n_prompt: int) -> int:
        if len(tokens) - n_prompt == n:
            raise RuntimeError("broken")
        return int(whole(tokens, n_prompt))

    return model


def post(client: http.client.HTTPConnection, path: str, body: Any) -> http.client.HTTPResponse:
    client.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    return client.getresponse()


@pytest.mark.parametrize("place", POSITIONS)
@pytest.mark.parametrize("path", INTERFACES)
def test_failure_in_a_stream_has_the_format_of_the_interface(path: str, place: str):
    kind, failure, _, fields = INTERFACES[path]
    n = POSITIONS[place]
    with serving(breaking_at(n), is_gated=True, **BIG) as running, contextlib.closing(running.client()) as client:
        running.gate.release(n)
        response = post(client, path, {**fields, "stream": True})
        running.gate.release(1000)  # The response has begun: what fails now is inside the stream.
        assert response.status == 200
        events = read(response)[1]
        assert post(client, path, {**fields, "stream": False}).status == 500, "the connection goes on"
    if path in ("/v1/chat/completions", "/v1/completions"):
        assert events.pop() == "[DONE]"
        assert events[-1]["error"]["type"] == "inference_error"
        assert all(choice["finish_reason"] is None for event in events[:-1] for choice in event["choices"])
    assert len(events) > 1
    validate(events[-1], failure)
    for event in events[:-1]:
        validate(event, kind)
    if path == "/v1/responses":
        assert check_stream(events)["status"] == "failed"


REFUSED = {"/v1/completions": {"prompt": 5}, "/completion": {"prompt": 5}, "/v1/responses": {"input": 5}}


@pytest.mark.parametrize("path", INTERFACES)
def test_refused_request_has_the_format_of_the_interface(path: str):
    _, _, error, fields = INTERFACES[path]
    refused = {**fields, **REFUSED.get(path, {"messages": 5})}
    broken = serving(breaking_at(0), **BIG)
    with broken as running, contextlib.closing(running.client()) as client:
        for body, status in ((refused, 400), (fields, 500)):
            for stream in (True, False):
                response = post(client, path, {**body, "stream": stream})
                found = read(response)[1]
                assert (response.status, response.getheader("Content-Type")) == (status, "application/json"), found
                validate(found, error)
