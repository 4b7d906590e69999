"""Ollama's API: over HTTP with a fake model, and with the `ollama` package and the built-in model."""

import json
import re
from typing import Any

import pytest

from localchat.serving.api.ollama import GenerateEncoder, OllamaEncoder, parse_generate, parse_ollama
from localchat.serving.core.request import CompletionRequest, ResponseFormat
from tests.support.chat_requests import ignored, read, values_of
from tests.support.exchanges import ask
from tests.support.serving import BIG, REASONING_AND_TEXT, TOOLS, generating, serving

USER = {"role": "user", "content": "hello"}
CALL = '<tool_call>\n{"name": "look", "arguments": {"a": 1}}\n</tool_call>'


def parse(**fields: Any) -> Any:
    return read(parse_ollama, {"messages": [USER], **fields})


@pytest.mark.parametrize("stream", [True, False])
def test_chat_has_thinking_content_whole_calls_and_counts(stream):
    output = REASONING_AND_TEXT + CALL
    with serving(generating(output), **BIG) as running:
        status, body = ask(running.port, "/api/chat", {"messages": [USER], "tools": TOOLS, "stream": stream})
    lines = body if stream else [body]
    assert status == 200
    assert "".join(line["message"].get("thinking", "") for line in lines) == "hm"
    assert "".join(line["message"]["content"] for line in lines) == "Let me look."
    calls = [call for line in lines for call in line["message"].get("tool_calls", ())]
    assert [call["function"] for call in calls] == [{"index": 0, "name": "look", "arguments": {"a": 1}}]
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    last = lines[-1]
    assert (last["done_reason"], last["model"], last["eval_count"]) == ("stop", "Fake", len(output) + 1)
    assert last["prompt_eval_count"] > 0
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", last["created_at"])
    assert last["total_duration"] >= last["eval_duration"] > 0


# The JSON arguments of a call that a model may generate, and those of the response.
ARGUMENTS = [
    ("null", {}),
    ("1", {"_value": 1}),
    ('[{"a": 1}]', {"_value": [{"a": 1}]}),
    ('{"a": *}', {"_incomplete_json": '{"a": *}}'}),
    ('{"a": red}', {"a": "red"}),
    ('{"a": 1}, "note": *', {"a": 1}),
]


@pytest.mark.parametrize(("text", "arguments"), ARGUMENTS, ids=[text for text, _ in ARGUMENTS])
@pytest.mark.parametrize("path", ["/api/chat", "/v1/messages"])
def test_call_is_never_left_out_for_its_arguments(path: str, text: str, arguments: Any):
    output = CALL.replace('{"a": 1}', text)
    with serving(generating(output), **BIG) as running:
        fields = {"messages": [USER], "tools": TOOLS, "stream": False}
        if path == "/v1/messages":
            fields = {**fields, "tools": [{"name": "look", "input_schema": {}}], "max_tokens": 999}
        status, body = ask(running.port, path, fields)
    assert status == 200
    if path == "/api/chat":
        assert [call["function"]["arguments"] for call in body["message"]["tool_calls"]] == [arguments]
    else:
        assert [block["input"] for block in body["content"] if block["type"] == "tool_use"] == [arguments]


@pytest.mark.parametrize("stream", [True, False])
def test_call_that_the_limit_of_tokens_cuts_is_left_out(stream: bool):
    with serving(generating(CALL + CALL), **BIG) as running:
        options = {"num_predict": len(CALL) + CALL.index("1") + 1}
        _, body = ask(
            running.port, "/api/chat", {"messages": [USER], "tools": TOOLS, "stream": stream, "options": options}
        )
    lines = body if stream else [body]
    assert [len(line["message"]["tool_calls"]) for line in lines if "tool_calls" in line["message"]] == [1]
    assert lines[-1]["done_reason"] == "length"


def test_generate_with_template_raw_and_suffix():
    with serving(generating("yes"), **BIG) as running:
        _, lines = ask(running.port, "/api/generate", {"prompt": "hello", "system": "s"})
        assert "".join(line["response"] for line in lines) == "yes"
        assert running.last_prompt == "s\n\nhello"
        _, body = ask(running.port, "/api/generate", {"prompt": "a[b]", "raw": True, "stream": False})
        assert body["response"] == "yes"
        assert running.last_prompt == "a[b]"
        status, body = ask(running.port, "/api/generate", {"prompt": "a", "suffix": "b", "stream": False})
        assert status == 400
        assert "suffix" in body["error"]


@pytest.mark.parametrize(
    ("path", "fields"), [("/api/chat", {"messages": []}), ("/api/chat", {"model": "Fake"}), ("/api/generate", {})]
)
@pytest.mark.parametrize(("keep_alive", "reason"), [(0, "unload"), ("5m", "load")])
def test_empty_request_loads_the_model(path, fields, keep_alive, reason):
    with serving(generating("yes"), **BIG) as running:
        _, body = ask(running.port, path, {**fields, "keep_alive": keep_alive, "stream": False})
    assert (body["done"], body["done_reason"]) == (True, reason)
    assert body.get("response", body.get("message", {}).get("content")) == ""


def test_options_are_mapped():
    options = {"num_predict": 7, "temperature": 0, "top_k": 3, "seed": 5, "stop": ["x"], "repeat_last_n": 9}
    fields = {"options": {**options, "num_ctx": 1, "colour": 1}, "think": "high", "format": {"type": "object"}}
    values = {
        "sampling": {"temperature": 0, "top_k": 3, "seed": 5, "penalty_last_n": 9}, "stop": ("x",), "max_tokens": 7,
        "chat_template_kwargs": {"enable_thinking": True, "reasoning_effort": "high"}, "stream": True,
        "response_format": ResponseFormat("json_schema", {"type": "object"}, "format"),
    }  # fmt: skip
    assert values_of(parse(**fields), values) == values
    assert ignored(parse_ollama, {"messages": [USER], **fields}) == ("options.colour",)
    assert parse(options={"num_predict": -2}).params.max_tokens is None
    assert parse(think=False).chat_template_kwargs == {"enable_thinking": False}
    assert isinstance(read(parse_generate, {"prompt": "a", "suffix": "b"}), CompletionRequest)


TEXT = {"type": "text", "text": "a"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
CALLED = {"role": "assistant", "tool_calls": [{"function": {"name": "look", "arguments": '{"at": "x"}'}}]}
# Messages in the format of other interfaces, which Ollama itself refuses, and what the model gets.
LENIENT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "parts": ({"role": "user", "content": [TEXT, {**TEXT, "text": "b"}]}, {"role": "user", "content": "ab"}),
    "no parts": ({"role": "user", "content": []}, {"role": "user", "content": ""}),
    "parts of a result": (
        {"role": "tool", "content": [TEXT], "tool_call_id": "c"}, {"role": "tool", "content": "a", "tool_call_id": "c"},
    ),
    "arguments as text": (CALLED, {"arguments": '{"at": "x"}'}),
    "a developer": ({"role": "developer", "content": "a"}, {"role": "developer", "content": "a"}),
    "capital letters": ({"role": "User", "content": "a"}, {"role": "user", "content": "a"}),
    "a function": ({"role": "function", "content": "a", "name": "f"}, {"role": "tool", "content": "a", "name": "f"}),
}  # fmt: skip


@pytest.mark.parametrize(("message", "expected"), LENIENT.values(), ids=LENIENT)
def test_message_in_the_format_of_another_interface_is_read(message: dict[str, Any], expected: dict[str, Any]):
    *_, read_message = parse(messages=[USER, message]).messages
    if "arguments" in expected:
        ((read_message),) = (call["function"] for call in read_message["tool_calls"])
        expected = {"name": "look", **expected}
    assert read_message == expected


def test_image_in_a_part_is_attached_like_those_of_the_message():
    request = parse(messages=[{"role": "user", "images": ["AAAA"], "content": [TEXT, IMAGE]}])
    assert [attachment.path for attachment in request.attachments] == ["messages[0].images", "messages[0].content[1]"]


@pytest.mark.parametrize(
    ("think", "expected"), [(None, {"enable_thinking": True}), (False, {"enable_thinking": False})]
)
def test_control_message_turns_on_the_reasoning(think: Any, expected: dict[str, Any]):
    """As Granite's templates for Ollama read it. The message is no part of the conversation."""
    request = parse(messages=[{"role": "control", "content": "thinking"}, USER], think=think)
    assert (request.chat_template_kwargs, request.messages) == (expected, (USER,))
    assert request.message_paths == ("messages[1]",)


CALLS = ["look", "look", "find", "read"]
# The results of these calls in the order of a request, each by its name or its id, and the calls that they belong to.
RESULTS: dict[str, tuple[list[dict[str, str]], list[int]]] = {
    "nothing": ([{}, {}, {}, {}], [0, 1, 2, 3]),
    "names in order": ([{"tool_name": name} for name in CALLS], [0, 1, 2, 3]),
    "names in another order": ([{"tool_name": name} for name in reversed(CALLS)], [3, 2, 0, 1]),
    "the older field": ([{"name": "read"}, {"name": "look"}, {"name": "find"}, {"name": "look"}], [3, 0, 2, 1]),
    "some names": ([{"tool_name": "find"}, {}, {"tool_name": "look"}, {}], [2, 1, 0, 3]),
    "names of no call": ([{"tool_name": "other"}, {}, {"tool_name": "look"}, {}], [1, 2, 0, 3]),
    "ids in another order": ([{"tool_call_id": f"id_{i}"} for i in (2, 0, 3, 1)], [2, 0, 3, 1]),
    "none before ids": ([{}, {"tool_call_id": "id_0"}, {"tool_name": "look"}, {"tool_call_id": "id_1"}], [2, 0, 3, 1]),
    "an id and a name": ([{"tool_call_id": "id_1", "tool_name": "read"}, {"tool_name": "look"}, {}, {}], [1, 0, 2, 3]),
}


@pytest.mark.parametrize(("results", "places"), RESULTS.values(), ids=RESULTS)
def test_results_are_assigned_to_their_calls(results: list[dict[str, str]], places: list[int]):
    """By their ids, else by their names, else in the order of the calls."""
    has_ids = any("tool_call_id" in result for result in results)
    calls = [
        {"function": {"name": name, "arguments": {"a": i}}, **({"id": f"id_{i}"} if has_ids else {})}
        for i, name in enumerate(CALLS)
    ]
    history = [USER, {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": calls}]
    history += [{"role": "tool", "content": f"R{i}", **result} for i, result in enumerate(results)]
    _, assistant, *converted = parse(messages=history).messages
    assert assistant["reasoning_content"] == "hm"
    ids = [call["id"] for call in assistant["tool_calls"]]
    assert len(set(ids)) == len(ids)
    assert [ids.index(result["tool_call_id"]) for result in converted] == places


@pytest.mark.parametrize(
    ("call_ids", "expected"),
    [
        (["", None], ["call_0", "call_1"]),
        (["call_1", None, None], ["call_1", "call_0", "call_2"]),
        (["x", "x", None], ["x", "x", "call_0"]),
    ],
)
def test_calls_without_an_id_get_new_ones(call_ids: list[str | None], expected: list[str]):
    """Some clients send the same id with several calls."""
    calls = [{"function": {"name": f"f{i}"}, "id": id} for i, id in enumerate(call_ids)]
    results = [{"role": "tool", "content": "", "tool_name": f"f{i}"} for i in range(len(calls))]
    _, assistant, *converted = parse(
        messages=[USER, {"role": "assistant", "tool_calls": calls}, *results, *results]
    ).messages
    assert [call["id"] for call in assistant["tool_calls"]] == expected
    assert [result.get("tool_call_id") for result in converted] == [*expected, *[None] * len(calls)]


def test_result_belongs_to_a_call_before_it():
    """A program may leave out the beginning of a conversation, and send calls in messages of their own."""
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}
    result = {"role": "tool", "content": "", "tool_name": "f"}
    messages = parse(messages=[result, call, result, USER, call, call, result, result]).messages
    ids = [message["tool_call_id"] for message in messages if message["role"] == "tool" and "tool_call_id" in message]
    assert ids == ["call_0", "call_1", "call_2"]
    assert "tool_call_id" not in messages[0]


# --- The built-in model ---


def test_model_is_listed_and_shown(port):
    version = ask(port, "/api/version")[1]["version"]
    assert tuple(map(int, version.split("."))) >= (0, 6, 4)
    (model,) = ask(port, "/api/tags")[1]["models"]
    assert (model["name"], model["details"]["format"], len(model["digest"])) == ("demo", "gguf", 64)
    (running,) = ask(port, "/api/ps")[1]["models"]
    _, shown = ask(port, "/api/show", {"model": "demo:latest"})
    family = shown["details"]["family"]
    assert shown["model_info"][f"{family}.context_length"] == running["context_length"] > 0
    assert {"completion", "tools"} <= set(shown["capabilities"])
    _, found = ask(port, "/v1/models?client_version=1.2&limit=5")
    (entry,) = found["models"]
    assert entry == {**model, "type": "model", "capabilities": shown["capabilities"]}
    assert found["data"][0]["max_model_len"] == running["context_length"]


@pytest.mark.parametrize(
    ("more", "capabilities"),
    [
        ("", []),
        ("{{ tools }}", ["tools"]),
        ("{# <think></think> #}", ["thinking"]),
        ("{# [THINK] [/THINK] #}", ["thinking"]),
        ("{{ enable_thinking }}", ["thinking"]),
    ],
)
def test_capabilities_are_those_of_the_template(more, capabilities):
    with serving(chat_template="{{ messages[-1].content }}" + more) as running:
        shown = ask(running.port, "/api/show", {"model": "Fake"})[1]
    assert shown["capabilities"] == ["completion", *capabilities]


def test_ollama_package(port, request):
    ollama = pytest.importorskip("ollama", reason="the real client comes with the clients extra")
    client = ollama.Client(host=f"http://127.0.0.1:{port}")
    request.addfinalizer(client._client.close)
    assert [model.model for model in client.list().models] == ["demo"]
    assert client.show("demo").capabilities
    options = {"temperature": 0}
    asked: Any = {"messages": [{"role": "user", "content": "What is your name?"}], "options": options}
    whole, parts = client.chat("demo", **asked), client.chat("demo", **asked, stream=True)
    assert "".join(part.message.content or "" for part in parts) == whole.message.content != ""

    def get_weather(city: str) -> str:
        """The weather in a city.

        Args:
            city: The city.
        """
        return f"21 degrees in {city}"

    messages: list[Any] = [{"role": "user", "content": "What is the weather in Rome?"}]
    first = client.chat("demo", messages=messages, tools=[get_weather], options=options)
    (call,) = first.message.tool_calls or ()
    result = get_weather(**call.function.arguments)
    messages += [first.message, {"role": "tool", "tool_name": "get_weather", "content": result}]
    assert "21" in (client.chat("demo", messages=messages, tools=[get_weather], options=options).message.content or "")
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    completion = client.generate("demo", "Is it so?", format=schema, options=options)
    assert isinstance(json.loads(completion.response)["ok"], bool)
    assert len(client.embed("demo", ["one", "two"]).embeddings) == 2
    with pytest.raises(ollama.ResponseError, match="nobody"):
        client.generate("nobody", "a")


@pytest.mark.parametrize(
    ("encoder", "fields"),
    [(OllamaEncoder, {"message": {"role": "assistant", "content": ""}}), (GenerateEncoder, {"response": ""})],
)
def test_object_of_a_stream_that_waits_has_no_text_and_is_not_the_last(encoder: Any, fields: dict[str, Any]):
    chunk = encoder.ping_chunk(parse(model="m"))
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", chunk.pop("created_at"))
    assert chunk == {"model": "m", "done": False, **fields}
