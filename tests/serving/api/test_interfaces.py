"""Rules that hold on every wire interface: full contexts, replayed history, limits, and null in schemas."""

from __future__ import annotations

import contextlib
import json
import re
from functools import partial
from typing import Any

import pytest

from localchat.serving.api.chat import parse_chat
from localchat.serving.api.completions import parse_completion, parse_infill, parse_native
from localchat.serving.api.messages import parse_messages
from localchat.serving.api.ollama import parse_ollama
from localchat.serving.api.responses import ResponseStore, parse_response
from localchat.serving.core.errors import BadRequest
from tests.support.chat_requests import NAMED, TOOL, ignored, read
from tests.support.serving import BIG, generating, serving

HI = [{"role": "user", "content": "hi"}]
LONG = "a b c d " * 200
LONG_CHAT = [{"role": "user", "content": LONG}]
parse_responses = partial(parse_response, ResponseStore())
PHRASE = r"This model's maximum context length is \d+ tokens.* your request has (at least )?\d+ tokens"


def messages(**fields: Any) -> Any:
    return {"messages": HI, "max_tokens": 5, **fields}


@pytest.mark.parametrize(
    ("path", "body", "phrase"),
    [
        ("/v1/chat/completions", {"messages": LONG_CHAT}, PHRASE),
        ("/v1/completions", {"prompt": LONG}, PHRASE),
        ("/completion", {"prompt": LONG}, PHRASE),
        ("/v1/responses", {"input": LONG}, PHRASE),
        ("/v1/messages", {"messages": LONG_CHAT, "max_tokens": 5}, r"prompt is too long: \d+ tokens > \d+ maximum"),
        ("/api/chat", {"messages": LONG_CHAT}, "exceeds the context length"),
        ("/api/generate", {"prompt": LONG}, "exceeds the context length"),
    ],
)
def test_prompt_beyond_the_context_has_the_phrase_that_agents_search(path: str, body: Any, phrase: str):
    with serving() as running:
        status, answer = running.request("POST", path, json.dumps(body))
        assert (status, bool(re.search(phrase, str(answer)))) == (400, True), answer
        if path.startswith("/v1") and path.rpartition("/")[2] != "messages":
            assert answer["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("path", ["chat/completions", "completions", "completion", "responses", "messages", "api/chat"])
def test_text_with_line_separators_splits_no_line_of_a_stream(path: str):
    text = "a\x85b\u2028c\u2029d\x0b\x0ce\x1c\x1d\x1ef"
    prompt = {"input": "a"} if path == "responses" else {"messages": HI, "prompt": "a", "max_tokens": 99}
    fields = json.dumps({**prompt, "stream": True})
    with serving(generating(text), **BIG) as running, contextlib.closing(running.client()) as client:
        client.request("POST", f"/{path}", fields)
        lines = client.getresponse().read().decode().splitlines()
    payloads = [line.removeprefix("data: ") for line in lines if line and not line.startswith("event: ")]
    assert len([json.loads(payload) for payload in payloads if payload != "[DONE]"]) >= 2


def test_tokens_are_counted_beyond_the_context():
    with serving() as running:
        body = json.dumps({"messages": LONG_CHAT})
        assert running.request("POST", "/v1/messages/count_tokens", body) == (200, {"input_tokens": len(LONG)})


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ({"type": "agent_message", "content": [{"type": "input_text", "text": "fact"}]}, "fact"),
        ({"type": "agent_message", "author": "a", "content": [{"type": "encrypted_content", "data": "x"}]}, None),
        ({"type": "additional_tools", "role": "developer", "tools": [{"type": "web_search"}]}, None),
        ({"type": "context_compaction", "encrypted_content": "x"}, None),
        ({"type": "compaction_summary", "summary": [{"type": "summary_text", "text": "fact"}]}, "fact"),
        ({"type": "configuration_update"}, None),
        ({"type": "web_search_call", "id": "1", "status": "completed", "action": {"query": "q"}}, None),
        ({"type": "mcp_call", "id": "1", "name": "f", "arguments": "{}", "output": "x"}, None),
        ({"type": "new", "text": "fact"}, "fact"),
    ],
)
def test_replayed_item_is_skipped_but_its_text_is_served(item: dict[str, Any], text: str | None):
    fields = {"input": [item, *HI]}
    request = read(parse_responses, fields)
    assert [message["content"] for message in request.messages] == [*([text] if text else []), "hi"]
    kind = item["tools"][0]["type"] if "tools" in item else item["type"]
    assert ignored(parse_responses, fields) == (f"input{'.tools' if 'tools' in item else ''} of type {kind}",)


def test_tools_of_an_item_are_offered():
    tool = {"type": "function", "name": "look", "parameters": {"type": "object", "required": None}}
    fields = {"input": [{"type": "additional_tools", "tools": [tool, tool]}, *HI]}
    request = read(parse_responses, fields, strict=True)
    assert [tool["function"]["name"] for tool in request.tools] == ["look"]
    assert request.tool_choice == "auto"
    assert request.settings["tools"] == []


IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
SEARCH = {"type": "web_search_result", "title": "T", "url": "U", "encrypted_content": "x"}


@pytest.mark.parametrize(
    ("parse", "role", "part", "text"),
    [
        (parse_chat, "assistant", {"type": "new", "text": "fact"}, "fact"),
        (parse_chat, "assistant", {"type": "thinking", "signature": "x"}, ""),
        (parse_chat, "tool", {"type": "resource"}, ""),
        (parse_messages, "assistant", {"type": "server_tool_use", "id": "s", "name": "f", "input": {"query": "q"}}, ""),
        (parse_messages, "assistant", {"type": "web_search_tool_result", "content": [SEARCH]}, "T\nU"),
        (parse_messages, "assistant", {"type": "mcp_tool_use", "id": "m", "name": "f", "input": {}}, ""),
        (parse_messages, "assistant", {"type": "mcp_tool_result", "content": [{"type": "text", "text": "a"}]}, "a"),
        (parse_messages, "assistant", {"type": "compaction", "content": "fact"}, "fact"),
        (parse_responses, "assistant", {"type": "new", "text": "fact"}, "fact"),
    ],
)
def test_replayed_part_is_skipped_but_its_text_is_served(parse: Any, role: str, part: dict[str, Any], text: str):
    """An error would end the conversation, since agents send their whole history with each request."""
    message = {"role": role, "tool_call_id": "t", "content": [part, {"type": "text", "text": "!"}]}
    name = "input" if parse is parse_responses else "messages"
    fields = {**messages(), name: [message, *HI]}
    assert read(parse, fields).messages[0]["content"] == text + "!"
    assert f"{name}.content of type {part['type']}" in ignored(parse, fields)
    with pytest.raises(
        BadRequest, match=rf"'{name}\[0\].content\[0\].type' is \"{part['type']}\", which --strict refuses"
    ):
        read(parse, fields, strict=True)


@pytest.mark.parametrize("parse", [parse_chat, parse_ollama])
@pytest.mark.parametrize("kind", ["custom", "web_search", "builtin_function"])
def test_tools_of_other_types_are_skipped(parse: Any, kind: str):
    other = {"type": kind, kind: {"name": "x"}, "function": {"name": "x"}}
    choice = {"mode": "auto", "tools": [NAMED, {"type": "custom", "custom": {"name": "x"}}]}
    fields = {"messages": HI, "tools": [TOOL, other], "tool_choice": {"type": "allowed_tools", "allowed_tools": choice}}
    assert [tool["function"]["name"] for tool in read(parse, fields).tools] == ["look"]
    assert f"tools of type {kind}" in ignored(parse, fields)
    assert parse is parse_ollama or read(parse, fields).allowed == ("look",)


@pytest.mark.parametrize("message", [{"content": None, "audio": {"id": "a"}}, {"audio": "a"}])
def test_audio_of_the_assistant_is_replaced_by_a_note(message: dict[str, Any]):
    request = read(parse_chat, {"messages": [{"role": "assistant", **message}, *HI]})
    assert "left out: this model supports only text" in request.messages[0]["content"]


def test_image_of_the_assistant_is_no_error_if_the_model_cannot_take_it():
    request = read(parse_chat, {"messages": [{"role": "assistant", "content": [IMAGE]}, *HI]})
    assert [one.is_replayed for one in request.attachments] == [True]


def test_calls_of_other_types_are_replayed_or_skipped():
    calls = [{"type": "custom", "id": "c", "custom": {"name": "f", "input": "x"}}, {"type": "new", "id": "d"}]
    fields = {"messages": [{"role": "assistant", "content": "a", "tool_calls": calls}, *HI]}
    (call,) = read(parse_chat, fields).messages[0]["tool_calls"]
    assert call == {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"input": "x"}}}
    assert ignored(parse_chat, fields) == ("messages.tool_calls of type new",)


@pytest.mark.parametrize(
    ("parse", "body"),
    [
        (parse_chat, {"messages": HI, "max_tokens": -1}),
        (parse_chat, {"messages": HI, "max_completion_tokens": -1}),
        (parse_completion, {"prompt": "a", "max_tokens": -1}),
        (parse_native, {"prompt": "a", "n_predict": -1}),
        (parse_infill, {"input_prefix": "a", "n_predict": -1}),
        (parse_ollama, {"messages": HI, "options": {"num_predict": -1}}),
    ],
)
def test_length_of_minus_one_is_no_limit(parse: Any, body: Any):
    assert read(parse, body).params.max_tokens is None


@pytest.mark.parametrize(
    ("parse", "body", "error"),
    [
        (parse_messages, messages(stop=["x"]), "'stop' is an unknown field"),
        (parse_messages, messages(max_completion_tokens=3), "'max_completion_tokens' is an unknown field"),
        (parse_messages, messages(prompt_logprobs=1), "'prompt_logprobs' is not supported"),
        (parse_native, {"prompt": "a", "prompt_logprobs": 1}, "prompt_logprobs' is not supported"),
        (parse_infill, {"input_prefix": "a", "prompt_logprobs": 1}, "prompt_logprobs' is not supported"),
        (parse_ollama, {"messages": HI, "options": {"prompt_logprobs": 1}}, "prompt_logprobs' is not supported"),
    ],
)
def test_field_of_another_interface_is_refused(parse: Any, body: Any, error: str):
    """The responses of the others have no field for log probabilities of the prompt."""
    with pytest.raises(BadRequest, match=error):
        read(parse, body, strict=parse is parse_messages)


SCHEMA = {
    "type": "object",
    "required": None,
    "enum": None,
    "properties": {"a": {"type": "string", "enum": None, "default": None}, "b": {"enum": [None, "x"]}},
}
CLEAN = {"type": "object", "properties": {"a": {"type": "string", "default": None}, "b": {"enum": [None, "x"]}}}


@pytest.mark.parametrize(
    ("parse", "fields"),
    [
        (
            parse_chat,
            {"messages": HI, "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]},
        ),
        (parse_messages, messages(tools=[{"name": "f", "input_schema": SCHEMA}])),
        (parse_responses, {"input": "hi", "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}]}),
    ],
    ids=["chat", "messages", "responses"],
)
def test_null_in_a_schema_is_absent(parse: Any, fields: dict[str, Any]):
    assert read(parse, fields).tools[0]["function"]["parameters"] == CLEAN
