"""The parser of the Responses API and its store: bodies become messages and settings."""

from __future__ import annotations

from typing import Any

import pytest

from localchat.serving.api.responses import ResponseStore, encode_reasoning
from localchat.serving.core.errors import BadRequest, NotFound
from localchat.serving.core.text import to_json

from .responses_requests import CRM, FUNCTION, PATCH, parse

CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"a":1}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "seen"}


def called(name: str, arguments: Any, id: str = "c1") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def developer(content: str) -> dict[str, Any]:
    return {"role": "developer", "content": content}


def assistant(content: Any = None, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", **({} if content is None else {"content": content}), **fields}


def reasoning(**fields: Any) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], **fields}


def texts(kind: str, *values: str) -> list[dict[str, Any]]:
    return [{"type": kind, "text": value} for value in values]


USER = {"role": "user", "content": "hi"}
LOOK = called("look", '{"a":1}')
SEEN = {"role": "tool", "tool_call_id": "c1", "content": "seen"}

# The fields of a request, or its items after a first message; the messages after the first one.
MESSAGES: dict[str, tuple[Any, list[dict[str, Any]]]] = {
    "text": ({"input": "hi"}, []),
    "parts": ({"input": [{"role": "user", "content": texts("input_text", "h", "i")}]}, []),
    "a later developer is another message": ([developer("b")], [developer("b")]),
    "call and result": ([CALL, RESULT], [assistant(tool_calls=[LOOK]), SEEN]),
    "the assistant's items are one message": (
        [
            reasoning(id="rs_1", content=texts("reasoning_text", "hm", "!")),
            {"type": "message", **assistant(texts("output_text", "I look."))},
            CALL,
            {**CALL, "call_id": "c2"},
            RESULT,
            {**RESULT, "call_id": "c2", "output": texts("input_text", "seen")},
        ],
        [
            assistant("I look.", reasoning_content="hm!", tool_calls=[LOOK, {**LOOK, "id": "c2"}]),
            SEEN,
            {**SEEN, "tool_call_id": "c2"},
        ],
    ),
    "two texts of the assistant are two messages": ([assistant("a"), assistant("b")], [assistant("a"), assistant("b")]),
    "text and reasoning between a call and its result": (
        [CALL, assistant("a"), reasoning(content=texts("reasoning_text", "r")), RESULT],
        [assistant("a", tool_calls=[LOOK], reasoning_content="r"), SEEN],
    ),
    "custom call": (
        [
            {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "a\nb"},
            {"type": "custom_tool_call_output", "call_id": "c1", "output": "seen"},
        ],
        [assistant(tool_calls=[called("patch", {"input": "a\nb"})]), SEEN],
    ),
    "call in a namespace": (
        [{**CALL, "name": "find", "namespace": "crm"}],
        [assistant(tool_calls=[called("crm__find", '{"a":1}')])],
    ),
    "reasoning that a client kept encrypted": (
        [reasoning(encrypted_content=encode_reasoning("hä")), CALL],
        [assistant(reasoning_content="hä", tool_calls=[LOOK])],
    ),
    "reasoning that another server encrypted": ([reasoning(encrypted_content="gAAAA")], []),
    "reasoning as a summary": (
        [reasoning(summary=texts("summary_text", "s"), content=None)],
        [assistant(reasoning_content="s")],
    ),
    "a refusal": ([assistant([{"type": "refusal", "refusal": "No."}])], [assistant("No.")]),
    "items of unsupported tools": ([{"type": "web_search_call", "id": "x"}, {"type": "compaction", "id": "y"}], []),
}


@pytest.mark.parametrize(("given", "messages"), MESSAGES.values(), ids=MESSAGES)
def test_items_become_messages(given, messages):
    fields = given if isinstance(given, dict) else {"input": [USER, *given]}
    assert list(parse(**fields).messages) == [USER, *messages]


def test_instructions_come_first_and_are_one_message_with_those_of_a_developer():
    assert parse(instructions="a").messages == (developer("a"), USER)
    assert parse(instructions="a", input=[developer("b"), USER]).messages == (developer("a\n\nb"), USER)


PNG = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no input": ({"input": None}, "input"),
    "item of another type": ({"input": [1]}, "input[0]"),
    "unknown item": ({"input": [{"type": "song"}]}, "input"),
    "role": ({"input": [{"role": "king", "content": "a"}]}, "input[0].role"),
    "image": ({"input": [USER, {"role": "user", "content": [PNG]}]}, "input[1].content[0]"),
    "file": ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0]"),
    "call without an id": ({"input": [{**CALL, "call_id": ""}]}, "input[0].call_id"),
    "result without output": ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
    "tool without a type": ({"tools": [{"name": "a"}]}, "tools[0].type"),
    "tool without a name": ({"tools": [{"type": "function"}]}, "tools[0].name"),
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
    "format": ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    "schema": ({"text": {"format": {"type": "json_schema", "name": "a", "schema": 1}}}, "text.format.schema"),
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


def test_item_reference_is_the_item():
    store = ResponseStore()
    store.put(response("resp_1", "yes"), ())
    for reference in ({"type": "item_reference", "id": "msg_resp_1"}, {"id": "msg_resp_1"}):
        assert parse(store, input=[reference, USER]).messages[0] == {"role": "assistant", "content": "yes"}
    with pytest.raises(NotFound) as caught:
        parse(store, input=[USER, {"type": "item_reference", "id": "msg_2"}])
    assert caught.value.param == "input[1].id"


def test_store_is_bounded_in_bytes():
    n_bytes = len(to_json([response("resp_1")]))
    store = ResponseStore(max_bytes=2 * n_bytes)
    for id in ("resp_1", "resp_2"):
        store.put(response(id), ())
    store.get("resp_1")
    store.put(response("resp_3"), ())
    with pytest.raises(NotFound):
        store.get("resp_2")
    store.put(response("resp_3"), ())
    assert store.get("resp_1").body["id"] == "resp_1"
    store.put(response("resp_4", "x" * 2 * n_bytes), ())
    with pytest.raises(NotFound):
        store.get("resp_4")
