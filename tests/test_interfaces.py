"""Rules that hold on every wire interface: full contexts, replayed history, limits, and null in schemas."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from localchat.serving.api.chat import parse_chat
from localchat.serving.api.completions import parse_completion
from localchat.serving.api.messages import parse_messages
from localchat.serving.api.native_completion import parse_infill, parse_native
from localchat.serving.api.ollama import parse_chat as parse_ollama
from localchat.serving.api.ollama_models import parse_embed
from localchat.serving.api.responses import parse_response
from localchat.serving.api.responses_store import ResponseStore
from localchat.serving.core.errors import BadRequest
from localchat.serving.core.request import DEFAULT_OPTIONS, ParseOptions

from .serving import generating, serving

HI = [{"role": "user", "content": "hi"}]
LONG = "a b c d " * 200
LONG_CHAT = [{"role": "user", "content": LONG}]
STRICT = ParseOptions(strict=True)
PHRASE = r"This model's maximum context length is \d+ tokens.* your request has (at least )?\d+ tokens"


def messages(options: ParseOptions = DEFAULT_OPTIONS, **fields: Any) -> Any:
    return parse_messages(json.dumps({"messages": HI, "max_tokens": 5, **fields}).encode(), options)


def responses(items: Any, strict: bool = False, **fields: Any) -> Any:
    raw = json.dumps({"input": items, **fields}).encode()
    return parse_response(ResponseStore(), raw, ParseOptions(strict=strict))


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
    ],
)
def test_replayed_item_is_served(item: dict[str, Any], text: str | None):
    request = responses([item, {"role": "user", "content": "hi"}], strict=True)
    assert [message["content"] for message in request.messages] == [*([text] if text else []), "hi"]


def test_unknown_item_is_skipped_and_logged_but_its_text_is_served():
    request = responses([{"type": "new", "id": "1"}, {"type": "newer", "text": "fact"}, *HI])
    assert [message["content"] for message in request.messages] == ["fact", "hi"]
    assert request.unknown == ("input of type new", "input of type newer")
    with pytest.raises(BadRequest, match=r"'input\[0\].type' is \"new\", which --strict refuses"):
        responses([{"type": "new", "id": "1"}, *HI], strict=True)


def test_tools_of_an_item_are_offered():
    tool = {"type": "function", "name": "look", "parameters": {"type": "object", "required": None}}
    request = responses([{"type": "additional_tools", "tools": [tool, tool]}, *HI])
    assert [tool["function"]["name"] for tool in request.tools] == ["look"]
    assert request.tool_choice == "auto"
    assert request.settings["tools"] == []


@pytest.mark.parametrize(
    ("role", "block", "text"),
    [
        ("assistant", {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}}, ""),
        (
            "assistant",
            {
                "type": "web_search_tool_result",
                "tool_use_id": "s",
                "content": [{"type": "web_search_result", "title": "T", "url": "U", "encrypted_content": "x"}],
            },
            "T\nU",
        ),
        ("assistant", {"type": "mcp_tool_use", "id": "m", "name": "f", "server_name": "s", "input": {}}, ""),
        ("assistant", {"type": "mcp_tool_result", "content": [{"type": "text", "text": "fact"}]}, "fact"),
        ("assistant", {"type": "compaction", "content": "fact"}, "fact"),
        ("user", {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "tool_reference", "tool_name": "f"}]},
         "f"),
    ],
)  # fmt: skip
def test_replayed_block_is_served(role: str, block: dict[str, Any], text: str):
    request = messages(STRICT, messages=[{"role": role, "content": [block]}, *HI])
    assert request.messages[0]["content"] == text


def test_unknown_block_is_skipped_and_logged():
    history = [{"role": "assistant", "content": [{"type": "new"}, {"type": "text", "text": "a"}]}, *HI]
    request = messages(messages=history)
    assert (request.messages[0]["content"], request.unknown) == ("a", ("blocks of type new",))
    with pytest.raises(BadRequest, match=r"messages\[0\].content\[0\].type' is \"new\", which --strict refuses"):
        messages(STRICT, messages=history)


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
    assert parse(json.dumps(body).encode(), DEFAULT_OPTIONS).params.max_tokens is None


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"stop_sequences": ["x"] * 65}, "'stop_sequences' must be .* at most 64"),
        ({"stop": ["x"]}, "'stop' is an unknown field"),
        ({"max_completion_tokens": 3}, "'max_completion_tokens' is an unknown field"),
        ({"prompt_logprobs": 1}, "'prompt_logprobs' is not supported"),
    ],
)
def test_messages_takes_only_its_own_names(fields: dict[str, Any], error: str):
    with pytest.raises(BadRequest, match=error):
        messages(STRICT, **fields)


@pytest.mark.parametrize(
    ("parse", "body"),
    [
        (parse_native, {"prompt": "a", "prompt_logprobs": 1}),
        (parse_infill, {"input_prefix": "a", "prompt_logprobs": 1}),
        (parse_ollama, {"messages": HI, "options": {"prompt_logprobs": 1}}),
    ],
)
def test_prompt_logprobs_are_refused_where_the_response_has_none(parse: Any, body: Any):
    with pytest.raises(BadRequest, match="prompt_logprobs' is not supported"):
        parse(json.dumps(body).encode(), DEFAULT_OPTIONS)


@pytest.mark.parametrize(("fields", "n"), [({"n_probs": 2}, 2), ({"logprobs": True, "n_probs": 2}, 2),
                                           ({"logprobs": True, "top_logprobs": 1, "n_probs": 2}, 1)])  # fmt: skip
def test_n_probs_beside_logprobs(fields: dict[str, Any], n: int):
    assert parse_chat(json.dumps({"messages": HI, **fields}).encode(), STRICT).params.top_logprobs == n


SCHEMA = {
    "type": "object",
    "required": None,
    "enum": None,
    "properties": {"a": {"type": "string", "enum": None, "default": None}, "b": {"enum": [None, "x"]}},
}
CLEAN = {"type": "object", "properties": {"a": {"type": "string", "default": None}, "b": {"enum": [None, "x"]}}}


@pytest.mark.parametrize(
    "given",
    [
        lambda: parse_chat(
            json.dumps(
                {"messages": HI, "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]}
            ).encode()
        ),
        lambda: messages(tools=[{"name": "f", "input_schema": SCHEMA}]),
        lambda: responses("hi", tools=[{"type": "function", "name": "f", "parameters": SCHEMA}]),
    ],
    ids=["chat", "messages", "responses"],
)
def test_null_in_a_schema_is_absent(given: Any):
    assert given().tools[0]["function"]["parameters"] == CLEAN


def test_null_in_a_response_format_is_absent():
    format = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    request = parse_chat(json.dumps({"messages": HI, "response_format": format}).encode())
    assert request.response_format is not None
    assert request.response_format.value == CLEAN


@pytest.mark.parametrize(("fields", "expected"), [({}, True), ({"truncate": True}, True), ({"truncate": False}, False)])
def test_ollama_embed_truncates_by_default(fields: dict[str, Any], expected: bool):
    assert parse_embed(json.dumps({"input": "a", **fields}).encode(), DEFAULT_OPTIONS).truncates is expected


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/v1/chat/completions", {"messages": HI, "stop": ["hm"]}, '"finish_reason":"stop"'),
        ("/v1/messages", {"messages": HI, "max_tokens": 50, "stop_sequences": ["hm"]}, '"stop_reason":"end_turn"'),
        ("/api/chat", {"messages": HI, "stream": False, "options": {"stop": ["hm"]}}, '"done_reason":"stop"'),
    ],
)
def test_stop_text_counts_in_the_content_alone(path: str, body: Any, reason: str):
    with serving(generating("<think>hm</think>Let me look.")) as running:
        status, answer = running.request("POST", path, json.dumps(body))
    text = json.dumps(answer, separators=(",", ":"))
    assert (status, "Let me look." in text, reason in text) == (200, True, True), text
