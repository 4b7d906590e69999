"""Rules that hold on every wire interface: limits, errors also inside a stream, replayed history, and null in schemas.

Events and bodies of errors are validated against the schemas of their interface (tests/data/wire_schemas.json).
"""

import contextlib
import json
import re
from typing import Any

import pytest

from localchat.serving.api.chat import parse_chat
from localchat.serving.api.messages import parse_messages
from localchat.serving.api.ollama import parse_ollama
from localchat.serving.core.errors import BadRequest
from localchat.serving.core.fields import parse_body
from localchat.serving.core.text import MAX_CONTAINERS, json_bytes
from localchat.serving.engine import prompts
from tests.support.chat_requests import HI, NAMED, TOOL, ignored, parse_responses, read
from tests.support.exchanges import ask
from tests.support.exchanges import read as read_response
from tests.support.serving import BIG, generating, serving
from tests.support.wire_schemas import check_stream, validate

LONG = "a b c d " * 200
LONG_CHAT = [{"role": "user", "content": LONG}]


def messages(**fields: Any) -> Any:
    return {"messages": HI, "max_tokens": 5, **fields}


# --- limits ---

PHRASE = r"This model's maximum context length is \d+ tokens.* your request has \d+ tokens"


@pytest.mark.parametrize(
    ("path", "body", "phrase"),
    [
        ("/v1/chat/completions", {"messages": LONG_CHAT}, PHRASE),
        ("/v1/completions", {"prompt": ["a", LONG]}, PHRASE),
        ("/completion", {"prompt": LONG}, PHRASE),
        ("/v1/responses", {"input": LONG}, PHRASE),
        ("/v1/messages", {"messages": LONG_CHAT, "max_tokens": 5}, r"prompt is too long: \d+ tokens > \d+ maximum"),
        ("/api/chat", {"messages": LONG_CHAT}, "exceeds the context length"),
        ("/api/generate", {"prompt": LONG}, "exceeds the context length"),
    ],
)
def test_prompt_that_is_too_long_has_the_phrase_that_agents_search(path: str, body: Any, phrase: str, monkeypatch: Any):
    """The tokens of the prompt are counted up to a limit."""
    with serving() as running:
        status, answer = ask(running.port, path, body)
        monkeypatch.setattr(prompts, "COUNTED_TOKENS", 4)
        assert phrase != PHRASE or "request has at least " in str(ask(running.port, path, body))
    assert (status, bool(re.search(phrase, str(answer)))) == (400, True), answer
    if phrase == PHRASE and path != "/completion":
        assert answer["error"]["code"] == "context_length_exceeded"


def test_tokens_are_counted_beyond_the_context():
    with serving() as running:
        found = ask(running.port, "/v1/messages/count_tokens", {"messages": LONG_CHAT})
    assert found == (200, {"input_tokens": len(LONG)})


@pytest.mark.parametrize("item", [b"[],", b'{"a":[]},'])
def test_body_of_too_many_lists_is_refused(item: bytes):
    body = b'{"x":[%b0]}' % (item * (MAX_CONTAINERS // (item.count(b"[") + item.count(b"{"))))
    with pytest.raises(BadRequest, match=f"it has {MAX_CONTAINERS + 2} opening brackets, the limit is"):
        parse_body(body)


@pytest.mark.parametrize("field", [{"stop": ["x"]}, {"max_completion_tokens": 3}])
def test_field_of_another_interface_is_refused(field: dict[str, Any]):
    with pytest.raises(BadRequest, match=f"'{next(iter(field))}' is an unknown field"):
        read(parse_messages, messages(**field), strict=True)


# --- stop texts ---

# For each interface with stop texts: a path, a body without them, and their field.
STOPS: dict[str, tuple[str, dict[str, Any], str]] = {
    "chat": ("/v1/chat/completions", {"messages": HI}, "stop"),
    "completions": ("/v1/completions", {"prompt": "a"}, "stop"),
    "completion": ("/completion", {"prompt": "a"}, "stop"),
    "responses": ("/v1/responses", {"input": "a"}, "stop"),
    "messages": ("/v1/messages", messages(max_tokens=99), "stop_sequences"),
    "ollama": ("/api/chat", {"messages": HI}, "options.stop"),
    "generate": ("/api/generate", {"prompt": "a"}, "options.stop"),
}


@pytest.mark.parametrize("interface", STOPS)
def test_empty_stop_text_is_no_stop_text(interface: str):
    """Programs send it for none."""
    path, body, field = STOPS[interface]
    with serving(generating("a red b"), **BIG) as running:
        for stop, text in (("", "a red b"), ([""], "a red b"), (["", "red"], "a "), (None, "a red b"), ([], "a red b")):
            fields = {"options": {"stop": stop}} if "." in field else {field: stop}
            status, found = ask(running.port, path, {**body, **fields, "stream": False, "max_tokens": 99})
            assert status == 200, found
            assert f'"{text}"' in json.dumps(found), (stop, found)


# --- counted tokens ---


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/v1/messages/count_tokens", messages(), {}),
        ("/v1/chat/completions/input_tokens", {"messages": HI}, {"object": "response.input_tokens"}),
        ("/v1/responses/input_tokens", {"input": "hi"}, {"object": "response.input_tokens"}),
        ("/v1/responses/input_tokens", {"input": HI, "store": True}, {"object": "response.input_tokens"}),
    ],
)
def test_tokens_of_a_prompt_are_counted(path: str, body: dict[str, Any], expected: dict[str, Any]):
    with serving(generating("yes"), **BIG) as running:
        prompt = ask(running.port, "/v1/chat/completions", {"messages": HI, "max_tokens": 1})[1]["usage"][
            "prompt_tokens"
        ]
        assert ask(running.port, path, body) == (200, {**expected, "input_tokens": prompt})


# --- types of tools that this server does not have ---

SEARCH_TOOL = {"type": "web_search_preview", "name": "search"}
LOOK_TOOL = {"type": "function", "name": "look", "function": {"name": "look"}}


def choosing(choice: Any, *tools: Any) -> list[tuple[Any, dict[str, Any]]]:
    """The parser and the body for chat completions and for Responses."""
    fields = {"tools": list(tools), "tool_choice": choice}
    return [(parse_chat, {"messages": HI, **fields}), (parse_responses, {"input": "x", **fields})]


@pytest.mark.parametrize("kind", ["web_search_preview", "file_search", "code_interpreter", "image_generation", "mcp"])
def test_choice_of_a_tool_that_the_server_does_not_have_is_refused(kind: str):
    """The response would be one without the search that the request insists on."""
    for parse, body in choosing({"type": kind}, SEARCH_TOOL, LOOK_TOOL):
        with pytest.raises(
            BadRequest, match=f"'tool_choice' names a tool of type \"{kind}\", which this server does not have"
        ) as caught:
            read(parse, body)
        assert caught.value.param == "tool_choice"
    needs_function = [*choosing("required", SEARCH_TOOL)]
    needs_function += [(parse_messages, messages(tools=[SEARCH_TOOL], tool_choice={"type": "any"}))]
    for parse, body in needs_function:
        with pytest.raises(BadRequest, match="needs a function in 'tools': this server has no tools of other types"):
            read(parse, body)


@pytest.mark.parametrize(("mode", "tools"), [("auto", ()), ("auto", (LOOK_TOOL,)), ("required", (LOOK_TOOL,))])
def test_allowed_tools_that_the_server_does_not_have_are_left_out(mode: str, tools: Any):
    choice = {"type": "allowed_tools", "mode": mode, "tools": [SEARCH_TOOL, *tools]}
    for parse, body in choosing(choice, SEARCH_TOOL, LOOK_TOOL):
        request = read(parse, body)
        assert (request.tool_choice, request.allowed_tools) == ((mode, ("look",)) if tools else ("none", ()))


def test_mode_that_requires_a_tool_needs_one_that_the_server_has():
    choice = {"type": "allowed_tools", "mode": "required", "tools": [SEARCH_TOOL]}
    for parse, body in choosing(choice, SEARCH_TOOL, LOOK_TOOL):
        with pytest.raises(BadRequest, match=r"'tool_choice.tools' must be a list of at least one function"):
            read(parse, body)


# --- schemas ---


SCHEMA = {
    "type": "object",
    "required": None,
    "enum": None,
    "properties": {"a": {"type": "string", "enum": None, "default": None}, "b": {"enum": [None, "x"]}},
}
CLEAN = {"type": "object", "properties": {"a": {"type": "string", "default": None}, "b": {"enum": [None, "x"]}}}
LARGE = {"enum": ["a" * 1000] * 2000}


def with_tool(**function: Any) -> dict[str, Any]:
    return messages(tools=[{"type": "function", "function": {"name": "f", **function}}])


def test_null_in_a_schema_is_absent():
    assert read(parse_chat, with_tool(parameters=SCHEMA)).tools[0]["function"]["parameters"] == CLEAN


@pytest.mark.parametrize(
    ("parse", "fields", "param"),
    [
        (parse_chat, with_tool(parameters=LARGE), "tools"),
        (parse_messages, messages(tools=[{"name": "f", "input_schema": LARGE}]), "tools"),
        (parse_responses, {"input": "x", "tools": [{"type": "function", "name": "f", "parameters": LARGE}]}, "tools"),
        (parse_chat, messages(json_schema=LARGE), "json_schema"),
        (parse_chat, messages(grammar="root ::= " + '"a" ' * 500_000), "grammar"),
        (parse_chat, messages(response_format={"type": "json_schema", "schema": LARGE}), "response_format.schema"),
        (parse_ollama, messages(format=LARGE), "format"),
    ],
)
def test_long_schema_is_refused(parse: Any, fields: dict[str, Any], param: str):
    with pytest.raises(BadRequest, match=rf"'{param}' has \d+ characters, the limit is 1048576"):
        read(parse, fields)


# --- replayed history ---


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
    assert (request.tool_choice, request.settings["tools"]) == ("auto", [])


NO_RESOURCE = '[a part of type "resource", left out: this server does not support it]'
SEARCH = {"type": "web_search_result", "title": "T", "url": "U", "encrypted_content": "x"}


@pytest.mark.parametrize(
    ("parse", "role", "part", "text"),
    [
        (parse_chat, "assistant", {"type": "new", "text": "fact"}, "fact"),
        (parse_chat, "assistant", {"type": "thinking", "signature": "x"}, ""),
        (parse_chat, "tool", {"type": "json", "json": {"a": 1}}, '{"json":{"a":1}}'),
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
    words = rf"'{name}\[0\].content\[0\].type' is \"{part['type']}\", which --strict refuses"
    with pytest.raises(BadRequest, match=words):
        read(parse, fields, strict=True)


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ({"type": "video_url", "video_url": {"url": "http://a/b.mp4"}}, '{"video_url":{"url":"http://a/b.mp4"}}'),
        ({"type": "resource", "resource": {"uri": "file:///a", "blob": "A" * 5000}}, NO_RESOURCE),
        ({"type": "resource"}, NO_RESOURCE),
        ({"type": "resource", "text": "fact"}, "fact"),
    ],
)
def test_every_part_of_a_result_says_something(part: dict[str, Any], text: str):
    """In all interfaces: an agent would otherwise take the result for an empty one."""
    chat_message = {"role": "tool", "tool_call_id": "t", "content": [part]}
    assert read(parse_chat, {"messages": [*HI, chat_message]}).messages[-1]["content"] == text
    block = {"type": "tool_result", "tool_use_id": "t", "content": [part]}
    fields = {**messages(), "messages": [*HI, {"role": "user", "content": [block]}]}
    assert read(parse_messages, fields).messages[-1]["content"] == text
    output = {"type": "function_call_output", "call_id": "t", "output": [part]}
    assert read(parse_responses, {"input": [*HI, output]}).messages[-1]["content"] == text


@pytest.mark.parametrize("parse", [parse_chat, parse_ollama])
@pytest.mark.parametrize("kind", ["custom", "web_search", "builtin_function"])
def test_tools_of_other_types_are_skipped(parse: Any, kind: str):
    other = {"type": kind, kind: {"name": "x"}, "function": {"name": "x"}}
    choice = {"mode": "auto", "tools": [NAMED, {"type": "custom", "custom": {"name": "x"}}]}
    fields = {"messages": HI, "tools": [TOOL, other], "tool_choice": {"type": "allowed_tools", "allowed_tools": choice}}
    assert [tool["function"]["name"] for tool in read(parse, fields).tools] == ["look"]
    assert f"tools of type {kind}" in ignored(parse, fields)
    assert parse is parse_ollama or read(parse, fields).allowed_tools == ("look",)


@pytest.mark.parametrize("message", [{"content": None, "audio": {"id": "a"}}, {"audio": "a"}])
def test_audio_of_the_assistant_is_replaced_by_a_note(message: dict[str, Any]):
    request = read(parse_chat, {"messages": [{"role": "assistant", **message}, *HI]})
    assert "left out: this model supports only text" in request.messages[0]["content"]


def test_calls_of_other_types_are_replayed_or_skipped():
    calls = [{"type": "custom", "id": "c", "custom": {"name": "f", "input": "x"}}, {"type": "new", "id": "d"}]
    fields = {"messages": [{"role": "assistant", "content": "a", "tool_calls": calls}, *HI]}
    (call,) = read(parse_chat, fields).messages[0]["tool_calls"]
    assert call == {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"input": "x"}}}
    assert ignored(parse_chat, fields) == ("messages.tool_calls of type new",)


# --- characters that a stream cannot have ---


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


def test_lone_surrogates_in_a_response_are_question_marks():
    assert json_bytes({"a": "\ud800", "b": ((1, 2), [])}) == b'{"a":"?","b":[[1,2],[]]}'


# --- errors ---

PARAMETERS = {"type": "object", "properties": {"at": {"type": "string"}}}
OUTPUT = (
    '<think>\nhm\n</think>\n\nLet me look.\n<tool_call>\n{"name": "look", "arguments": {"at": "here"}}\n</tool_call>'
)
# The positions at which the output fails: in reasoning, in text, in the arguments of a call.
POSITIONS = {"reasoning": OUTPUT.index("m\n</"), "text": OUTPUT.index(" look."), "call": OUTPUT.index('ere"}}')}
LOOK = {"name": "look", "parameters": PARAMETERS}
CHAT = {"messages": HI, "tools": [{"type": "function", "function": LOOK}]}
RESPONSE = {"input": "x", "tools": [{"type": "function", **LOOK}]}
MESSAGE = messages(max_tokens=500, tools=[{"name": "look", "input_schema": PARAMETERS}])
# For each path: the schemas of its events, of an error in a stream and of an error response, and a request.
INTERFACES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "/v1/chat/completions": ("chat-completions-event", "error", "error", CHAT),
    "/v1/completions": ("completions-event", "error", "error", {"prompt": "x"}),
    "/v1/responses": ("responses-event", "responses-failure", "error", RESPONSE),
    "/v1/messages": ("messages-event", "messages-error", "messages-error", MESSAGE),
    "/api/chat": ("api-chat-event", "api-error", "api-error", {**CHAT, "think": True}),
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


def post(client: Any, path: str, body: Any) -> Any:
    client.request("POST", path, json.dumps(body))
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
        events = read_response(response)[1]
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
                found = read_response(response)[1]
                assert (response.status, response.getheader("Content-Type")) == (status, "application/json"), found
                validate(found, error)
