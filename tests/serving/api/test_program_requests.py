"""Requests in the formats of agents and editors, to the built-in model, with and without `stream`.

tests/data/program_requests.json has the fields, kinds of tools and headers of each program, with small conversations.
Each body and each event is validated against a schema of its interface.
"""

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_cpp", reason="the real engine needs llama-cpp-python")

from tests.support.chat_requests import TOOL
from tests.support.documents import run
from tests.support.exchanges import exchange
from tests.support.live import running_process
from tests.support.wire_schemas import check_stream, validate

REQUESTS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "data" / "program_requests.json").read_text())
USER = {"role": "user", "content": "hello"}
SCHEMA = {"type": "object", "required": None, "enum": None, "properties": {"a": {"type": "integer", "minimum": None}}}


def called(id: Any, arguments: Any) -> dict[str, Any]:
    call = {"id": id, "type": "function", "function": {"name": "look", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def result(id: Any, content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


def request(path: str, **fields: Any) -> dict[str, Any]:
    return {"path": path, "headers": {}, "body": fields}


def chat(*messages: Any, **fields: Any) -> dict[str, Any]:
    return request("/v1/chat/completions", **{"messages": messages or [USER], "max_tokens": 8, **fields})


TEXT = {"type": "text", "text": "What is this?"}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
SAID = {"role": "assistant", "content": "A picture."}
A, B = ({"role": "system", "content": text} for text in "ab")
USED = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]}
RETURNED = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}
# Requests that failed on other servers, by public reports.
REQUESTS |= {
    "calls without ids": chat(USER, called(None, "{}"), result(None, "x"), tools=[TOOL]),
    "arguments that are an object": chat(USER, called("1", {"at": "x"}), result("1", "x")),
    "arguments that are no JSON": chat(USER, called("1", "{bad"), result("1", "x")),
    "a tool that returned nothing": chat(USER, called("1", ""), result("1", None)),
    "a system message at the end": chat(USER, A),
    "two system messages": chat(A, B, USER),
    "a tool without parameters": chat(tools=[{"type": "function", "function": {"name": "f"}}]),
    "a limit that is a float": chat(max_tokens=10.0),
    "options of a stream without one": chat(stream_options={"include_usage": True}),
    "Ollama's empty format": request("/api/chat", messages=[USER], format=""),
    "null in Ollama's format": request("/api/chat", messages=[USER], format=SCHEMA),
    "null in Ollama's format of a text": request("/api/generate", prompt="a", format=SCHEMA),
    "null in all fields": request("/v1/responses", input="hi", reasoning=None, text=None, tools=None),
    "an empty stop text": chat(stop=""),
    "empty stop texts": request("/v1/messages", max_tokens=5, messages=[USER], stop_sequences=[""]),
    "an empty stop text in Ollama's options": request("/api/chat", messages=[USER], options={"stop": [""]}),
    "parts in Ollama's format": request("/api/chat", messages=[{"role": "user", "content": [TEXT]}]),
    "arguments as text in Ollama's format": request("/api/chat", messages=[USER, called("1", "{}"), result("1", "x")]),
    "no summary of the reasoning": request("/v1/responses", input="hi", reasoning={"summary": "none"}),
    "a plain prompt without reasoning": request("/completion", prompt="a", n_predict=5, include_reasoning=False),
    "an image in an earlier message": chat({"role": "user", "content": [TEXT, PICTURE]}, SAID, USER),
    "a tool result without content": request("/v1/messages", max_tokens=5, messages=[USER, USED, RETURNED]),
}


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
    **{
        f"chat, call of {name}": (name, {"tool_choice": "required", "max_tokens": 300}, '"tool_calls"')
        for name in ("opencode", "cline-cli", "continue-cli")
    },
    "responses, call of codex-exec": ("codex-exec", {"tool_choice": "required", "max_output_tokens": 300}, '"name"'),
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
    "/v1/responses/input_tokens": ("POST", {"model": "m", "input": "Hi"}),
    "/v1/chat/completions/input_tokens": ("POST", {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}),
    "/completion": ("POST", {"prompt": "Hi", "n_predict": 3, "n_probs": 2, "return_tokens": True}),
    "/completion?choices": ("POST", {"prompt": "Hi", "n_predict": 3, "n": 2}),
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
    check(address, request(path, **OTHERS[path][1]), stream=True, return_progress=True)


def check(address: str, asked: dict[str, Any], **fields: Any) -> Any:
    """The valid body or events of a request."""
    headers = {"Content-Type": "application/json", **asked["headers"]}
    response, found = exchange(address, asked["path"], {**asked["body"], **fields}, headers=headers)
    assert response.status == 200, found
    interface = asked["path"].partition("?")[0].removeprefix("/v1")
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


# --- requests that failed on other servers, by public reports ---

REPLAYED = {**called("1", '{"at": "x"}'), "content": "I look.", "reasoning_content": "Where?"}
# A request, and whether its response is right, with the fields of its first choice.
RESPONSES: dict[str, tuple[dict[str, Any], Any]] = {
    "zero log probabilities are those of the tokens": (
        request("/v1/completions", prompt="a", logprobs=0, max_tokens=3),
        lambda one: [*map(list, one["logprobs"]["top_logprobs"])] == [[token] for token in one["logprobs"]["tokens"]],
    ),
    "a natural end with log probabilities": (
        chat(max_tokens=300, logprobs=True),
        lambda one: (one["finish_reason"], one["message"]["content"])
        == ("stop", "".join(token["token"] for token in one["logprobs"]["content"])),
    ),
    "control tokens as stop texts": (
        chat(stop=["<|im_end|>", "<|im_start|>"]), lambda one: one["usage"]["completion_tokens"] == 8,
    ),
    "content, reasoning and a call in one message": (
        chat(USER, REPLAYED, result("1", [{"type": "text", "text": "x"}]), tools=[TOOL]),
        lambda one: one["finish_reason"] == "length",
    ),
    "the count of a cached prompt": (
        request("/api/chat", messages=[USER], options={"num_predict": 2}), lambda one: one["prompt_eval_count"] > 5,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "is_right"), RESPONSES.values(), ids=RESPONSES)
def test_response_is_right_also_for_a_cached_prompt(address: str, asked: dict[str, Any], is_right: Any):
    for _ in range(2):
        found = check(address, asked, stream=False)
        assert is_right({**found, **found.get("choices", [{}])[0]}), found


LITELLM = """
import sys, litellm
for model, base in ("openai/demo", "http://{0}/v1"), ("anthropic/demo", "http://{0}"):
    try:
        text = "many words " * 20_000
        messages = [dict(role="user", content=text)]
        litellm.completion(model=model, api_base=base.format(sys.argv[1]), api_key="none", messages=messages)
    except litellm.ContextWindowExceededError:
        print("recognised")
"""


def test_litellm_recognises_a_prompt_that_is_too_long(address: str):
    if importlib.util.find_spec("litellm") is None:
        pytest.skip("the extra 'clients' has the package")
    done = run([sys.executable, "-c", LITELLM, address], LITELLM_LOCAL_MODEL_COST_MAP="True")  # without the network
    assert done.stdout.split().count("recognised") == 2, done.stderr
