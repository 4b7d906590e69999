"""The parser of the Responses API and its store: bodies become messages and settings."""

from __future__ import annotations

from typing import Any

import pytest

from localchat.serving.api.responses import encode_reasoning
from localchat.serving.api.responses_store import ResponseStore
from localchat.serving.core.errors import BadRequest, NotFound

from .responses_requests import CRM, FUNCTION, PATCH, parse

CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"a":1}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "seen"}


def text(value: str) -> dict[str, Any]:
    return {"type": "reasoning_text", "text": value}


def called(name: str, arguments: Any, id: str = "c1") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


USER = {"role": "user", "content": "hi"}

MESSAGES: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "text": ({"input": "hi"}, [USER]),
    "instructions": ({"instructions": "Be brief."}, [{"role": "developer", "content": "Be brief."}, USER]),
    "parts": (
        {
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "h"}, {"type": "input_text", "text": "i"}]}
            ]
        },
        [USER],
    ),
    "instructions and developer are one message": (
        {"instructions": "a", "input": [{"role": "developer", "content": "b"}, USER]},
        [{"role": "developer", "content": "a\n\nb"}, USER],
    ),
    "a later developer is another message": (
        {"instructions": "a", "input": [USER, {"role": "developer", "content": "b"}]},
        [{"role": "developer", "content": "a"}, USER, {"role": "developer", "content": "b"}],
    ),
    "call and result": (
        {"input": [USER, CALL, RESULT]},
        [
            USER,
            {"role": "assistant", "tool_calls": [called("look", '{"a":1}')]},
            {"role": "tool", "tool_call_id": "c1", "content": "seen"},
        ],
    ),
    "the assistant's items are one message": (
        {
            "input": [
                USER,
                {"type": "reasoning", "id": "rs_1", "summary": [], "content": [text("hm"), text("!")]},
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
                CALL,
                {**CALL, "call_id": "c2"},
                RESULT,
                {**RESULT, "call_id": "c2", "output": [{"type": "input_text", "text": "seen"}]},
            ]
        },
        [
            USER,
            {
                "role": "assistant",
                "reasoning_content": "hm!",
                "content": "I look.",
                "tool_calls": [called("look", '{"a":1}'), called("look", '{"a":1}', "c2")],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "seen"},
            {"role": "tool", "tool_call_id": "c2", "content": "seen"},
        ],
    ),
    "two texts of the assistant are two messages": (
        {"input": [USER, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}, USER]},
        [USER, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}, USER],
    ),
    "text and reasoning between a call and its result": (
        {
            "input": [
                USER,
                CALL,
                {"role": "assistant", "content": "a"},
                {"type": "reasoning", "content": [text("r")]},
                RESULT,
            ]
        },
        [
            USER,
            {"role": "assistant", "tool_calls": [called("look", '{"a":1}')], "content": "a", "reasoning_content": "r"},
            {"role": "tool", "tool_call_id": "c1", "content": "seen"},
        ],
    ),
    "custom call": (
        {
            "input": [
                USER,
                {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "a\nb"},
                {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
            ]
        },
        [
            USER,
            {"role": "assistant", "tool_calls": [called("patch", {"input": "a\nb"})]},
            {"role": "tool", "tool_call_id": "c1", "content": "done"},
        ],
    ),
    "call in a namespace": (
        {"input": [USER, {**CALL, "name": "find", "namespace": "crm"}]},
        [USER, {"role": "assistant", "tool_calls": [called("crm__find", '{"a":1}')]}],
    ),
    "reasoning that a client kept encrypted": (
        {"input": [USER, {"type": "reasoning", "summary": [], "encrypted_content": encode_reasoning("hä")}, CALL]},
        [USER, {"role": "assistant", "reasoning_content": "hä", "tool_calls": [called("look", '{"a":1}')]}],
    ),
    "reasoning that another server encrypted": (
        {"input": [USER, {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}]},
        [USER],
    ),
    "reasoning as a summary": (
        {"input": [USER, {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "content": None}]},
        [USER, {"role": "assistant", "reasoning_content": "s"}],
    ),
    "a refusal": (
        {"input": [{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, USER]},
        [{"role": "assistant", "content": "No."}, USER],
    ),
    "items of unsupported tools": (
        {"input": [USER, {"type": "web_search_call", "id": "x"}, {"type": "compaction", "id": "y"}]},
        [USER],
    ),
}


@pytest.mark.parametrize(("fields", "messages"), MESSAGES.values(), ids=MESSAGES)
def test_items_become_messages(fields, messages):
    assert list(parse(**fields).messages) == messages


PNG = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no input": ({"input": None}, "input"),
    "empty input": ({"input": []}, "input"),
    "input of another type": ({"input": 5}, "input"),
    "item of another type": ({"input": [1]}, "input[0]"),
    "unknown item": ({"input": [{"type": "song"}]}, "input"),
    "role": ({"input": [{"role": "king", "content": "a"}]}, "input[0].role"),
    "content": ({"input": [{"role": "user"}]}, "input[0].content"),
    "image": ({"input": [USER, {"role": "user", "content": [PNG]}]}, "input[1].content[0]"),
    "file": ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0]"),
    "part": ({"input": [{"role": "user", "content": [{"type": "song"}]}]}, "input[0].content[0]"),
    "call without an id": ({"input": [{**CALL, "call_id": ""}]}, "input[0].call_id"),
    "result without output": ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
    "tool without a type": ({"tools": [{"name": "a"}]}, "tools[0].type"),
    "tool without a name": ({"tools": [{"type": "function"}]}, "tools[0].name"),
    "parameters": ({"tools": [{**FUNCTION, "parameters": 1}]}, "tools[0].parameters"),
    "tool without a type in a namespace": ({"tools": [{**CRM, "tools": [{"name": "a"}]}]}, "tools[0].tools[0].type"),
    "choice of an unknown tool": (
        {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "nobody"}}, "tool_choice"
    ),
    "choice of an unsupported tool": (
        {"tools": [FUNCTION], "tool_choice": {"type": "web_search"}}, "tool_choice"
    ),
    "call without tools": ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
    "no allowed tools": (
        {"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}},
        "tool_choice.tools",
    ),
    "background": ({"background": True}, "background"),
    "prompt template": ({"prompt": {"id": "p"}}, "prompt"),
    "limit": ({"max_output_tokens": 0}, "max_output_tokens"),
    "format": ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    "schema": ({"text": {"format": {"type": "json_schema", "name": "a", "schema": 1}}}, "text.format.schema"),
    "top_logprobs": ({"top_logprobs": 21}, "top_logprobs"),
    "summary": ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
    "metadata": ({"metadata": {"a": 1}}, "metadata.a"),
    "conversation": ({"conversation": "conv_1"}, "conversation"),
}  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), REFUSED.values(), ids=REFUSED)
def test_refused_field_is_named(fields, param):
    with pytest.raises(BadRequest) as caught:
        parse(**fields)
    assert caught.value.param == param
    assert f"'{param}'" in caught.value.message


def test_settings_are_read_and_repeated():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    request = parse(
        max_output_tokens=7,
        temperature=0.5,
        parallel_tool_calls=False,
        text={"format": {"type": "json_schema", "name": "a", "schema": schema, "strict": True}, "verbosity": "low"},
        reasoning={"effort": "high", "summary": "auto"},
        top_logprobs=2,
        metadata={"k": "v"},
        truncation="auto",
        store=False,
        stream=True,
        include=["reasoning.encrypted_content", "web_search_call.action.sources"],
        prompt_cache_key="key",
        service_tier="flex",
    )
    assert (request.params.max_tokens, request.params.top_logprobs) == (7, 2)
    assert request.params.sampling == {"temperature": 0.5}
    assert request.response_format is not None
    assert (request.response_format.kind, request.response_format.value, request.response_format.param) == (
        "json_schema",
        schema,
        "text.format.schema",
    )
    assert request.template_vars == {"reasoning_effort": "high"}
    assert (request.stream, request.summarises, request.includes_encrypted) == (True, True, True)
    assert request.store is None
    assert not request.parallel_tool_calls
    repeated = {name: request.settings[name] for name in ("max_output_tokens", "metadata", "truncation", "store")}
    assert repeated == {"max_output_tokens": 7, "metadata": {"k": "v"}, "truncation": "disabled", "store": False}
    assert request.settings["text"]["format"]["schema"] == schema
    assert request.settings["reasoning"] == {"effort": "high", "summary": "auto"}


def test_tools_of_each_kind():
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: WORD"}
    hosted = [{"type": "web_search"}, {"type": "local_shell"}, {"type": "mcp", "server_label": "x"}]
    request = parse(tools=[*hosted, FUNCTION, {**PATCH, "format": grammar}, CRM, {"type": "function", "name": "bare"}])
    look, patch, find, bare = (tool["function"] for tool in request.tools)
    assert look == {"name": "look", "description": "Looks", "parameters": {"type": "object"}, "strict": True}
    assert next(iter(look)) == "name"  # As in the training data of models.
    assert patch["description"] == "Patches\n\nThe input must match this grammar (lark):\nstart: WORD"
    assert patch["parameters"]["required"] == ["input"]
    assert (find["name"], bare["name"]) == ("crm__find", "bare")
    assert bare["parameters"] == {"type": "object", "properties": {}}
    kinds = [tool["type"] for tool in request.settings["tools"]]
    assert kinds == ["web_search", "local_shell", "mcp", "function", "custom", "namespace", "function"]


CHOICES: dict[str, tuple[Any, tuple[str, tuple[str, ...]]]] = {
    "absent": (None, ("auto", ())),
    "none": ("none", ("none", ())),
    "required": ("required", ("required", ())),
    "function": ({"type": "function", "name": "look"}, ("required", ("look",))),
    "custom": ({"type": "custom", "name": "patch"}, ("required", ("patch",))),
    "in a namespace": ({"type": "function", "name": "find", "namespace": "crm"}, ("required", ("crm__find",))),
    "allowed": (
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}, {"type": "mcp"}]},
        ("auto", ("look",)),
    ),
    "allowed and required": (
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "patch"}]},
        ("required", ("patch",)),
    ),
}


@pytest.mark.parametrize(("choice", "expected"), CHOICES.values(), ids=CHOICES)
def test_tool_choice(choice, expected):
    request = parse(tools=[FUNCTION, PATCH, CRM], tool_choice=choice)
    assert (request.tool_choice, request.allowed) == expected
    assert request.settings["tool_choice"] == ("auto" if choice is None else choice)


def response(id: str, text: str = "x") -> dict[str, Any]:
    item = {"type": "message", "id": f"msg_{id}", "role": "assistant", "content": text}
    return {"id": id, "object": "response", "output": [item]}


def test_request_continues_a_stored_response():
    store = ResponseStore()
    first = parse(store, instructions="first")
    store.put(response("resp_1", "yes"), first.items)
    second = parse(store, input="and", previous_response_id="resp_1", instructions="second")
    assert [message["content"] for message in second.messages] == ["second", "hi", "yes", "and"]
    store.put(response("resp_2", "no"), second.items)
    store.delete("resp_1")
    third = parse(store, input="so?", previous_response_id="resp_2")
    assert [message["content"] for message in third.messages] == ["hi", "yes", "and", "no", "so?"]
    with pytest.raises(NotFound) as caught:
        parse(store, previous_response_id="resp_1")
    assert (caught.value.param, caught.value.code) == ("previous_response_id", "previous_response_not_found")


def test_item_reference_is_the_item():
    store = ResponseStore()
    store.put(response("resp_1", "yes"), ())
    for reference in ({"type": "item_reference", "id": "msg_resp_1"}, {"id": "msg_resp_1"}):
        assert parse(store, input=[reference, USER]).messages[0] == {"role": "assistant", "content": "yes"}
    with pytest.raises(NotFound) as caught:
        parse(store, input=[USER, {"type": "item_reference", "id": "msg_2"}])
    assert caught.value.param == "input[1].id"


def test_store_is_bounded_in_number_and_bytes():
    store = ResponseStore(max_entries=2, max_bytes=3000)
    for id in ("resp_1", "resp_2"):
        store.put(response(id), ())
    store.get("resp_1")
    store.put(response("resp_3"), ())
    with pytest.raises(NotFound):
        store.get("resp_2")
    assert store.get("resp_1").body["id"] == "resp_1"
    store.put(response("resp_4", "x" * 2800), ())
    with pytest.raises(NotFound):
        store.get("resp_3")
    store.put(response("resp_4"), ())
    store.put(response("resp_5"), ())
    assert store.get("resp_4")
    store.put(response("resp_6", "x" * 4000), ())
    with pytest.raises(NotFound):
        store.get("resp_6")
