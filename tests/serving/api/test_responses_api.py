"""The Responses API: bodies become messages and settings, output events become items and stream events."""

import contextlib
import json
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from localchat.serving.api.responses import ResponseEncoder, ResponseStore, custom_input, parse_response
from localchat.serving.core.errors import InferenceError, NotFound, QueueFull
from localchat.serving.core.events import ContentDelta, OutputEnd, OutputToken, ReasoningDelta, ResponseHead, Usage
from localchat.serving.core.params import SamplingParams
from localchat.serving.core.request import ResponseFormat
from localchat.serving.core.text import to_json
from tests.support.chat_requests import parse_responses, read, values_of
from tests.support.wire_schemas import call, check_stream, sampled

LOOK = {"name": "look", "description": "Looks", "parameters": {"type": "object"}, "strict": True}
FUNCTION = {"type": "function", **LOOK}
PATCH = {"type": "custom", "name": "patch", "description": "Patches"}
CRM = {"type": "namespace", "name": "crm", "description": "Customers", "tools": [{"type": "function", "name": "find"}]}
CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"a":1}'}
CUSTOM = {"call_id": "c1", "name": "patch"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "seen"}


def parse(parser: Any = parse_responses, /, **fields: Any) -> Any:
    return read(parser, {"input": "hi", **fields})


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
LOOKED = called("look", '{"a":1}')
SEEN = {"role": "tool", "tool_call_id": "c1", "content": "seen"}

# The fields of a request, or its items after a first message; the messages after the first one.
MESSAGES: dict[str, tuple[Any, list[dict[str, Any]]]] = {
    "text": ({"input": "hi"}, []),
    "parts": ({"input": [{"role": "user", "content": texts("input_text", "h", "i")}]}, []),
    "a later developer is another message": ([developer("b")], [developer("b")]),
    "call and result": ([CALL, RESULT], [assistant(tool_calls=[LOOKED]), SEEN]),
    "the assistant's items are one message": (
        [
            reasoning(id="rs_1", content=texts("reasoning_text", "hm", "!")),
            {"type": "message", **assistant(texts("output_text", "I look."))}, CALL, {**CALL, "call_id": "c2"}, RESULT,
            {**RESULT, "call_id": "c2", "output": texts("input_text", "seen")},
        ],
        [
            assistant("I look.", reasoning_content="hm!", tool_calls=[LOOKED, {**LOOKED, "id": "c2"}]), SEEN,
            {**SEEN, "tool_call_id": "c2"},
        ],
    ),
    "two texts of the assistant are two messages": ([assistant("a"), assistant("b")], [assistant("a"), assistant("b")]),
    "text and reasoning between a call and its result": (
        [CALL, assistant("a"), reasoning(content=texts("reasoning_text", "r")), RESULT],
        [assistant("a", tool_calls=[LOOKED], reasoning_content="r"), SEEN],
    ),
    "a tool that returned nothing": ([{**RESULT, "output": None}], [{**SEEN, "content": ""}]),
    "a result without the id of its call": (
        [CALL, {"type": "function_call_output", "call_id": None, "name": "find", "namespace": "crm", "output": "seen"}],
        [assistant(tool_calls=[LOOKED]), {"role": "tool", "name": "crm__find", "content": "seen"}],
    ),
    "custom call": (
        [{**CUSTOM, "type": "custom_tool_call", "input": "a\nb"}, {**RESULT, "type": "custom_tool_call_output"}],
        [assistant(tool_calls=[called("patch", {"input": "a\nb"})]), SEEN],
    ),
    "call in a namespace": (
        [{**CALL, "name": "find", "namespace": "crm"}], [assistant(tool_calls=[called("crm__find", '{"a":1}')])],
    ),
    "reasoning that a client kept encrypted": (
        [reasoning(encrypted_content="localchat:hä"), CALL], [assistant(reasoning_content="hä", tool_calls=[LOOKED])],
    ),
    "reasoning that another server encrypted": ([reasoning(encrypted_content="gAAAA")], []),
    "a summary": ([reasoning(summary=texts("summary_text", "s"), content=None)], [assistant(reasoning_content="s")]),
    "a refusal": ([assistant([{"type": "refusal", "refusal": "No."}])], [assistant("No.")]),
    "items of unsupported tools": ([{"type": "web_search_call", "id": "x"}, {"type": "compaction", "id": "y"}], []),
}  # fmt: skip


@pytest.mark.parametrize(("given", "messages"), MESSAGES.values(), ids=MESSAGES)
def test_items_become_messages(given, messages):
    fields = given if isinstance(given, dict) else {"input": [USER, *given]}
    assert list(parse(**fields).messages) == [USER, *messages]


def test_instructions_come_first():
    assert parse(instructions="a").messages == (developer("a"), USER)
    assert parse(instructions="a", input=[developer("b"), USER]).messages == (developer("a"), developer("b"), USER)


@pytest.mark.parametrize(
    ("reasoning", "summary"),
    [
        ({}, None), ({"summary": None}, None), ({"summary": "none"}, None), ({"summary": "concise"}, "concise"),
        ({"generate_summary": "detailed"}, "detailed"), ({"summary": "none", "generate_summary": "auto"}, None),
    ],
)  # fmt: skip
def test_reasoning_is_a_summary_if_the_request_asks_for_one(reasoning, summary):
    request = parse(reasoning=reasoning)
    assert (request.summary, request.settings["reasoning"]["summary"]) == (summary, summary)


def test_settings_are_read_and_repeated():
    format = {"type": "json_schema", "name": "a", "schema": {"type": "object"}, "strict": True}
    repeated = {
        "max_output_tokens": 7, "top_logprobs": 2, "metadata": {"k": "v"}, "store": False, "prompt_cache_key": "key",
        "text": {"format": format, "verbosity": "low"}, "reasoning": {"effort": "high", "summary": "auto"},
        "parallel_tool_calls": False,
    }  # fmt: skip
    include = ["reasoning.encrypted_content", "web_search_call.action.sources"]
    request = parse(**repeated, temperature=0.5, truncation="auto", stream=True, include=include, service_tier="flex")
    values = {
        "max_tokens": 7, "top_logprobs": 2, "sampling": {"temperature": 0.5}, "stream": True, "store": None,
        "response_format": ResponseFormat("json_schema", {"type": "object"}, "text.format.schema"), "summary": "auto",
        "chat_template_kwargs": {"reasoning_effort": "high"}, "include": tuple(include), "parallel_tool_calls": False,
    }  # fmt: skip
    assert values_of(request, values) == values
    assert {name: request.settings[name] for name in repeated} == repeated
    assert (request.settings["truncation"], request.settings["service_tier"]) == ("disabled", "default")


def test_tools_of_each_kind():
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: WORD"}
    hosted = [{"type": "web_search"}, {"type": "local_shell"}, {"type": "mcp", "server_label": "x"}]
    request = parse(tools=[*hosted, FUNCTION, {**PATCH, "format": grammar}, CRM, {"type": "function", "name": "bare"}])
    look, patch, find, bare = (tool["function"] for tool in request.tools)
    assert look == LOOK
    assert next(iter(look)) == "name"  # As in the training data of models.
    assert patch["description"] == "Patches\n\nThe input must match this grammar (lark):\nstart: WORD"
    assert patch["parameters"]["required"] == ["input"]
    assert (find["name"], bare["name"]) == ("crm__find", "bare")
    assert bare["parameters"] == {"type": "object", "properties": {}}
    kinds = [tool["type"] for tool in request.settings["tools"]]
    assert kinds == ["web_search", "local_shell", "mcp", "function", "custom", "namespace", "function"]


CHOICES: dict[str, tuple[Any, tuple[str, tuple[str, ...]]]] = {
    "absent": (None, ("auto", ())),
    "function": ({"type": "function", "name": "look"}, ("required", ("look",))),
    "custom": ({"type": "custom", "name": "patch"}, ("required", ("patch",))),
    "in a namespace": ({"type": "function", "name": "find", "namespace": "crm"}, ("required", ("crm__find",))),
    "allowed": ({"type": "allowed_tools", "mode": "auto", "tools": [FUNCTION, {"type": "mcp"}]}, ("auto", ("look",))),
}


@pytest.mark.parametrize(("choice", "expected"), CHOICES.values(), ids=CHOICES)
def test_tool_choice(choice, expected):
    request = parse(tools=[FUNCTION, PATCH, CRM], tool_choice=choice)
    assert (request.tool_choice, request.allowed_tools) == expected
    assert request.settings["tool_choice"] == ("auto" if choice is None else choice)


def response(id: str, text: str = "x") -> dict[str, Any]:
    item = {"type": "message", "id": f"msg_{id}", "role": "assistant", "content": text}
    return {"id": id, "object": "response", "output": [item]}


def test_item_reference_is_the_item():
    store = ResponseStore()
    store.put(response("resp_1", "yes"), ())
    parser = partial(parse_response, store)
    for reference in (
        {"type": "item_reference", "id": "msg_resp_1"},
        {"id": "msg_resp_1"},
        {"type": None, "id": "msg_resp_1"},
    ):
        assert parse(parser, input=[reference, USER]).messages[0] == assistant("yes")
    with pytest.raises(NotFound) as caught:
        parse(parser, input=[USER, {"type": "item_reference", "id": "msg_2"}])
    assert caught.value.param == "input[1].id"


def test_store_is_bounded_in_bytes():
    n_bytes = len(to_json([response("resp_1")]))
    store = ResponseStore(max_bytes=2 * n_bytes)
    for id in ("resp_1", "resp_2"):
        store.put(response(id), ())
    store.get("resp_1")
    store.put(response("resp_3"), ())
    assert store.get("resp_1").body["id"] == "resp_1"
    store.put(response("resp_4", "x" * 2 * n_bytes), ())
    for id in ("resp_2", "resp_4"):
        with pytest.raises(NotFound):
            store.get(id)


def test_store_takes_no_more_memory_than_it_counts():
    store = ResponseStore(max_bytes=1_000_000)
    tracemalloc.start()
    try:
        items = [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": f"{i}"}]} for i in range(50)
        ]
        for i in range(500):
            store.put(response(f"resp_{i}"), json.loads(json.dumps(items)))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 1.3 * 1_000_000


def test_store_is_read_while_other_threads_change_it():
    """Without its lock, it would change under an iteration, which is an error."""
    store = ResponseStore(max_bytes=20 * len(to_json([response("resp_1")])))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def use(thread: int) -> None:
        for i in range(400):
            store.put(response(f"resp_{thread}_{i}"), ())
            with contextlib.suppress(NotFound):
                store.item(f"msg_resp_{thread}_{i - 5}", "id")
            with contextlib.suppress(NotFound):
                store.delete(f"resp_{thread}_{i - 9}")

    try:
        with ThreadPoolExecutor(4) as pool:
            for used in [pool.submit(use, thread) for thread in range(4)]:
                used.result(60)
    finally:
        sys.setswitchinterval(interval)


# --- the encoder ---


USAGE = Usage(n_prompt=10, n_cached=4, n_completion=6, prompt_s=0.5, completion_s=0.6, n_reasoning=3)
SAMPLING = SamplingParams(temperature=0.8, top_p=0.9)


def encoder(**fields: Any) -> ResponseEncoder:
    request = parse(**{"stream": True, **fields})
    head = ResponseHead("resp_" + "0" * 32, 1700000000, "m", sampling=SAMPLING)
    return ResponseEncoder(head, request, lambda: USAGE)


def run(events: list[Any], reason: str = "stop", **fields: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The events of the stream, and the response, which must equal that of a request without `stream`."""
    stream, whole = encoder(**fields), encoder(**{**fields, "stream": False})
    chunks: list[str] = []
    for event in [*events, OutputEnd(reason)]:
        for one in (stream, whole):
            one.add(0, event)
        chunks += stream.take()
    stream.finish()
    decoded = [json.loads(chunk) for chunk in [*chunks, *stream.take()]]
    response = check_stream(decoded)
    assert whole.body() == response
    assert whole.take() == []
    return decoded, response


OUTPUTS: dict[str, tuple[list[Any], dict[str, Any], list[tuple[str, str]]]] = {
    "text": ([ContentDelta("a"), ContentDelta("b")], {}, [("message", "ab")]),
    "nothing": ([], {}, [("message", "")]),
    "reasoning and text": (
        [ReasoningDelta("h"), ReasoningDelta("m"), ContentDelta("a")], {}, [("reasoning", "hm"), ("message", "a")]
    ),
    "a summary": (
        [ReasoningDelta("hm"), ContentDelta("a")], {"reasoning": {"summary": "auto"}},
        [("reasoning", "hm"), ("message", "a")],
    ),
    "reasoning between texts": (
        [ContentDelta("a"), ReasoningDelta("hm"), ContentDelta("b")], {},
        [("message", "a"), ("reasoning", "hm"), ("message", "b")],
    ),
    "calls": (
        [ContentDelta("a"), *call(0, "1", "look", "{", "}"), *call(1, "2", "look"), *call(2, "3", "crm__find", "{}")],
        {"tools": [FUNCTION, CRM]},
        [("message", "a"), ("function_call", "{}"), ("function_call", ""), ("function_call", "{}")],
    ),
    "custom call": (
        call(0, "c1", "patch", '{"in', 'put":', '"a\\', 'nb', '\\u00', 'e9"', "}"), {"tools": [PATCH]},
        [("custom_tool_call", "a\nbé")],
    ),
    "a call of an unknown tool": (call(0, "c1", "other", "{}"), {}, [("function_call", "{}")]),
}  # fmt: skip


def item_text(item: dict[str, Any]) -> str:
    parts = [*item.get("content", ()), *item.get("summary", ())]
    return item.get("arguments", item.get("input", "".join(part["text"] for part in parts)))


@pytest.mark.parametrize(("events", "fields", "items"), OUTPUTS.values(), ids=OUTPUTS)
@pytest.mark.parametrize("reason", ["stop", "length"])
def test_output_becomes_items(events, fields, items, reason):
    _, response = run(events, reason, **fields)
    assert [(item["type"], item_text(item)) for item in response["output"]] == items
    statuses = [item["status"] for item in response["output"]]
    last = "incomplete" if reason == "length" else "completed"
    assert statuses == ["completed"] * (len(items) - 1) + [last]
    assert response["incomplete_details"] == ({"reason": "max_output_tokens"} if reason == "length" else None)
    assert response["completed_at"] == (None if reason == "length" else 1700000001)


def test_response_has_the_names_of_the_request_and_the_details_of_the_usage():
    _, response = run(call(0, "c1", "crm__find", "{}"), tools=[CRM])
    (item,) = response["output"]
    assert (item["call_id"], item["name"], item["namespace"]) == ("c1", "find", "crm")
    assert response["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 6},
        "output_tokens": 6,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 16,
    }
    assert (response["temperature"], response["top_p"]) == (0.8, 0.9)


def test_encrypted_reasoning_comes_back_as_text():
    chunks, response = run([ReasoningDelta("hm")], include=["reasoning.encrypted_content"])
    assert parse(input=[{**response["output"][0], "content": []}, USER]).messages[0]["reasoning_content"] == "hm"
    assert "encrypted_content" not in chunks[2]["item"]
    _, response = run([ReasoningDelta("hm")])
    assert "encrypted_content" not in response["output"][0]


def test_log_probabilities_are_those_of_the_text():
    entries = [{"token": t, "logprob": -1.0, "bytes": [ord(t)], "top_logprobs": []} for t in "hab"]
    h, a, b = (sampled(OutputToken(1, t.encode(), -1.0)) for t in "hab")
    events = [h, ReasoningDelta("h"), a, ContentDelta("a"), b, ContentDelta("b")]
    chunks, response = run(events, include=["message.output_text.logprobs"])
    assert response["output"][1]["content"][0]["logprobs"] == entries[1:]
    deltas = [chunk["logprobs"] for chunk in chunks if chunk["type"] == "response.output_text.delta"]
    assert deltas == [entries[1:2], entries[2:]]


@pytest.mark.parametrize(
    ("error", "code"), [(InferenceError("broken"), "server_error"), (QueueFull("full"), "rate_limit_exceeded")]
)
def test_failure_ends_the_stream(error, code):
    stream = encoder()
    stream.add(0, ContentDelta("a"))
    stream.failed(error, error.body())
    chunks = [json.loads(chunk) for chunk in stream.take()]
    response = check_stream(chunks)
    assert (response["status"], response["error"]) == ("failed", {"code": code, "message": error.message})
    assert response["output"][0]["content"][0]["text"] == "a"


INPUTS = ["", 'quote " and \\ slash', "line\nend\ttab", "é 漢 😀", "\x07 bell"]


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        *((json.dumps({"input": value}, ensure_ascii=ascii), value) for value in INPUTS for ascii in (True, False)),
        ('{"input":"cut \\u00', "cut \\u00"),
        ('{"input":"grep \\d+ \\\\d x"}', "grep \\d+ \\d x"),
        ('{"patch":"a"}', '{"patch":"a"}'),
        ("not JSON", "not JSON"),
        ('{ "input" : "spaced" , "b": 1}', "spaced"),
    ],
)
def test_custom_input_is_decoded(raw, value):
    assert custom_input(raw) == value
