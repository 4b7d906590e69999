"""Requests in the formats of agents and editors, to the built-in model, with and without `stream`.

tests/data/program_requests.json has the fields, kinds of tools and headers of each program, with small conversations.
Each body and each event is validated against a schema of its interface.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_cpp", reason="the real engine needs llama-cpp-python")

from tests.support.exchanges import exchange
from tests.support.live import running_process
from tests.support.wire_schemas import check_stream, validate

REQUESTS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "data" / "program_requests.json").read_text())


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with running_process("--any-name", "--ctx", "4096", "--max-tokens", "100") as server:
        yield server.url.removeprefix("http://").removesuffix("/v1")


def has_ended(interface: str, events: list[Any]) -> bool:
    """Whether the last events are those that end a stream of this interface."""
    last = events[-1]
    if interface == "/responses":
        return last["type"] in ("response.completed", "response.incomplete")
    if interface == "/messages":
        return [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    if interface == "/completion":
        return last["stop"] is True
    return last["done"] is True if interface.startswith("/api/") else last == "[DONE]"


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("name", REQUESTS)
def test_request_of_a_program_succeeds(address: str, name: str, stream: bool):
    check(address, REQUESTS[name], stream=stream)


PATCH = {"type": "custom", "name": "apply_patch"}
# Other outputs of the same requests: the request, the fields to change, and a text in the events or the body.
OUTPUTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "chat, call": ("cline-native-tools", {"tool_choice": "required"}, '"tool_calls"'),
    "chat, cut": ("aider", {"max_tokens": 1}, '"length"'),
    "responses, call": ("codex", {"tool_choice": "required", "max_output_tokens": 200}, '"arguments"'),
    "responses, custom call": ("codex", {"tool_choice": PATCH, "max_output_tokens": 200}, '"custom_tool_call"'),
    "responses, cut": ("codex", {"max_output_tokens": 1}, '"incomplete"'),
    "messages, call": ("claude-code", {"tool_choice": {"type": "any"}, "max_tokens": 200}, '"tool_use"'),
    "messages, cut": ("claude-code", {"max_tokens": 1}, '"max_tokens"'),
    "messages, no thinking": ("claude-code", {"thinking": {"type": "disabled"}, "temperature": 0}, '"end_turn"'),
    "Ollama, cut": ("zed", {"options": {"num_predict": 1}}, '"length"'),
    "Ollama, thinking": ("zed", {"think": True}, '"done_reason"'),
}


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize(("name", "fields", "text"), OUTPUTS.values(), ids=OUTPUTS)
def test_other_outputs_follow_the_schemas(address: str, name: str, fields: dict[str, Any], text: str, stream: bool):
    assert text in json.dumps(check(address, REQUESTS[name], stream=stream, **fields))


# Requests that do not generate chat messages, by path: the method and the body.
OTHERS: dict[str, tuple[str, Any]] = {
    "/api/version": ("GET", None),
    "/api/tags": ("GET", None),
    "/api/ps": ("GET", None),
    "/api/generate": ("POST", {"model": "m", "prompt": "Hi", "stream": False, "options": {"num_predict": 3}}),
    "/api/embed": ("POST", {"model": "m", "input": ["a", "b"]}),
    "/api/embeddings": ("POST", {"model": "m", "prompt": "a"}),
    "/v1/models": ("GET", None),
    "/v1/models/demo": ("GET", None),
    "/v1/embeddings": ("POST", {"model": "m", "input": ["a", "b"]}),
    "/v1/messages/count_tokens": ("POST", {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}),
    "/completion": ("POST", {"prompt": "Hi", "n_predict": 3, "n_probs": 2, "return_tokens": True}),
    "/completion?several": ("POST", {"prompt": ["Hi", [1]], "n_predict": 3, "post_sampling_probs": True, "n_probs": 1}),
    "/tokenize": ("POST", {"content": "Hi <think>"}),
    "/tokenize?pieces": ("POST", {"content": "Hi \U0001f600", "with_pieces": True}),
    "/detokenize": ("POST", {"tokens": [1, 2]}),
    "/apply-template": ("POST", {"messages": [{"role": "user", "content": "Hi"}]}),
    "/slots": ("GET", None),
}


@pytest.mark.parametrize("path", OTHERS)
def test_other_bodies_follow_the_schemas(address: str, path: str):
    method, body = OTHERS[path]
    response, found = exchange(address, path, body, method)
    assert response.status == 200, found
    validate(found, path.partition("?")[0].removeprefix("/v1").strip("/").replace("/", "-"))


@pytest.mark.parametrize("path", ["/api/generate", "/completion", "/completion?several"])
def test_generated_text_is_streamed_in_the_format_of_its_interface(address: str, path: str):
    check(address, {"path": path, "headers": {}, "body": OTHERS[path][1]}, stream=True, return_progress=True)


def check(address: str, request: dict[str, Any], **fields: Any) -> Any:
    """The valid body or events of a request."""
    headers = {"Content-Type": "application/json", **request["headers"]}
    response, found = exchange(address, request["path"], {**request["body"], **fields}, headers=headers)
    assert response.status == 200, found
    interface = request["path"].partition("?")[0].removeprefix("/v1")
    schema = interface.strip("/").replace("/", "-")
    if response.getheader("Content-Type") == "application/json":
        assert not fields["stream"] or interface == "/api/show"
        validate(found, schema)
        return found
    assert has_ended(interface, found)
    if interface == "/responses":
        validate(check_stream(found), "responses")
    for event in found:
        if event != "[DONE]":
            validate(event, f"{schema}-event")
    return found
