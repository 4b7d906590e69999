"""The encoder of the Responses API: output events become items and stream events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from localchat.serving.api.responses import decode_reasoning
from localchat.serving.api.responses_events import ResponseEncoder, custom_input
from localchat.serving.core.errors import InferenceError, QueueFull
from localchat.serving.core.events import (
    ContentDelta,
    OutputEnd,
    OutputToken,
    ReasoningDelta,
    ResponseHead,
    SampledTokens,
    ToolCallArguments,
    ToolCallStart,
    Usage,
)
from localchat.serving.core.params import SamplingParams

from .response_events import check_body, check_stream, check_types
from .responses_requests import CRM, FUNCTION, PATCH, parse

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


def call(index: int, id: str, name: str, *pieces: str) -> list[Any]:
    return [ToolCallStart(index, id, name), *(ToolCallArguments(index, piece) for piece in pieces)]


OUTPUTS: dict[str, tuple[list[Any], dict[str, Any], list[tuple[str, str]]]] = {
    "text": ([ContentDelta("a"), ContentDelta("b")], {}, [("message", "ab")]),
    "nothing": ([], {}, [("message", "")]),
    "reasoning and text": (
        [ReasoningDelta("h"), ReasoningDelta("m"), ContentDelta("a")], {}, [("reasoning", "hm"), ("message", "a")]
    ),
    "reasoning as a summary": (
        [ReasoningDelta("hm"), ContentDelta("a")],
        {"reasoning": {"summary": "auto"}},
        [("reasoning", "hm"), ("message", "a")],
    ),
    "reasoning between texts": (
        [ContentDelta("a"), ReasoningDelta("hm"), ContentDelta("b")],
        {},
        [("message", "a"), ("reasoning", "hm"), ("message", "b")],
    ),
    "calls": (
        [ContentDelta("a"), *call(0, "1", "look", "{", "}"), *call(1, "2", "look"), *call(2, "3", "crm__find", "{}")],
        {"tools": [FUNCTION, CRM]},
        [("message", "a"), ("function_call", "{}"), ("function_call", ""), ("function_call", "{}")],
    ),
    "custom call": (
        call(0, "c1", "patch", '{"in', 'put":', '"a\\', 'nb', '\\u00', 'e9"', "}"),
        {"tools": [PATCH]},
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
    pytest.importorskip("openai", reason="its types come with the test extra")
    chunks, response = run(events, reason, **fields)
    assert [(item["type"], item_text(item)) for item in response["output"]] == items
    statuses = [item["status"] for item in response["output"]]
    last = "incomplete" if reason == "length" else "completed"
    assert statuses == ["completed"] * (len(items) - 1) + [last]
    assert response["incomplete_details"] == ({"reason": "max_output_tokens"} if reason == "length" else None)
    assert response["completed_at"] == (None if reason == "length" else 1700000001)
    check_types(chunks)
    check_body(response)


def test_names_of_calls_are_those_of_the_request():
    _, response = run(call(0, "c1", "crm__find", "{}"), tools=[CRM])
    (item,) = response["output"]
    assert (item["call_id"], item["name"], item["namespace"]) == ("c1", "find", "crm")


def test_usage_has_details():
    _, response = run([ContentDelta("a")])
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
    assert decode_reasoning(response["output"][0]["encrypted_content"]) == "hm"
    assert "encrypted_content" not in chunks[2]["item"]
    _, response = run([ReasoningDelta("hm")])
    assert "encrypted_content" not in response["output"][0]


def test_log_probabilities_are_those_of_the_text():
    entries = [{"token": t, "logprob": -1.0, "bytes": [ord(t)], "top_logprobs": []} for t in "hab"]
    h, a, b = (SampledTokens((OutputToken(1, t.encode(), -1.0),)) for t in "hab")
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
    stream.failed(error)
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
    """S22."""
    assert custom_input(raw) == value
