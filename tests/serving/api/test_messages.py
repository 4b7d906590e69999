"""The Messages API without a model: bodies become chat requests, output events become blocks."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from localchat.serving.api.messages import MessageEncoder, error_body, parse_messages
from localchat.serving.core.errors import BadRequest, InferenceError, QueueFull
from localchat.serving.core.events import ContentDelta, Event, OutputEnd, ReasoningDelta, ResponseHead, Usage
from localchat.serving.core.request import ResponseFormat
from tests.support.chat_requests import read, values_of
from tests.support.wire_schemas import call

HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"name": "get_weather", "description": "The weather.", "input_schema": {"type": "object", "properties": {}}}
FUNCTION = {"name": "get_weather", "description": "The weather.", "parameters": {"type": "object", "properties": {}}}
BODY = {"model": "demo", "max_tokens": 9, "messages": HELLO}


def parsed(**fields: Any) -> Any:
    return read(parse_messages, {**BODY, **fields})


def block(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, **fields}


def called(content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "t1", "content": content}


def result(content: Any, **fields: Any) -> dict[str, Any]:
    return block("tool_result", tool_use_id="t1", content=content, **fields)


TEXT, MORE = block("text", text="Hi", cache_control={"type": "ephemeral"}), block("text", text=" there")
CALL = block("tool_use", id="t1", name="get_weather", input={"city": "Oslo"})
CALLED = {"id": "t1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}
THINKING = block("thinking", thinking="Hm.", signature="x")
DOCUMENT = block("document", title="Notes", source={"type": "text", "media_type": "text/plain", "data": "a"})
FOUND = block("search_result", title="T", source="S", content=[block("text", text="a")])


@pytest.mark.parametrize(
    ("role", "content", "expected"),
    [
        ("user", "Hi", [{"role": "user", "content": "Hi"}]),
        ("user", [TEXT, MORE], [{"role": "user", "content": "Hi there"}]),
        ("user", [], [{"role": "user", "content": ""}]),
        ("system", "Be brief.", [{"role": "system", "content": "Be brief."}]),
        ("user", [result([block("text", text="21"), block("tool_reference", tool_name="f")])], [called("21f")]),
        ("user", [result("no such city", is_error=True)], [called("Error: no such city")]),
        ("user", [result("Error: no such city", is_error=True)], [called("Error: no such city")]),
        ("user", [result("21"), TEXT], [called("21"), {"role": "user", "content": "Hi"}]),
        ("assistant", [TEXT, CALL], [{"role": "assistant", "content": "Hi", "tool_calls": [CALLED]}]),
        ("assistant", [CALL], [{"role": "assistant", "tool_calls": [CALLED]}]),
        ("assistant", [THINKING, TEXT], [{"role": "assistant", "content": "Hi", "reasoning_content": "Hm."}]),
        (
            "assistant",
            [THINKING, TEXT, THINKING, CALL],
            [{"role": "assistant", "content": "Hi", "reasoning_content": "Hm.\n\nHm.", "tool_calls": [CALLED]}],
        ),
        ("assistant", [block("redacted_thinking", data="x"), TEXT], [{"role": "assistant", "content": "Hi"}]),
        ("user", [DOCUMENT], [{"role": "user", "content": "Notes\na"}]),
        ("user", [FOUND], [{"role": "user", "content": "T\nS\na"}]),
    ],
)
def test_blocks_become_chat_messages(role: str, content: Any, expected: list[dict[str, Any]]):
    assert list(parsed(messages=[*HELLO, {"role": role, "content": content}]).messages[1:]) == expected


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        ("Be brief.", "Be brief."),
        ([block("text", text="A"), block("text", text="B")], "A\n\nB"),
        ("x-anthropic-billing-header: cc_version=2; cch=1a2b;\nBe brief.", "Be brief."),
        ([block("text", text="x-anthropic-billing-header: cch=1a2b;"), block("text", text="B")], "B"),
        ([block("text", text="A\nx-anthropic-billing-header: quoted")], "A\nx-anthropic-billing-header: quoted"),
    ],
)
def test_system_text_comes_first_without_a_line_that_changes_with_every_request(system: Any, expected: str):
    assert parsed(system=system).messages[0] == {"role": "system", "content": expected}


as_format = partial(ResponseFormat, "json_schema", {"type": "object"})
FORMAT = {"type": "json_schema", "schema": {"type": "object"}}
ON, OFF = {"enable_thinking": True}, {"enable_thinking": False}
ONE_CALL = {"type": "auto", "disable_parallel_tool_use": True}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"tools": [TOOL]}, {"tools": ({"type": "function", "function": FUNCTION},)}),
        ({"tools": [{**TOOL, "type": "custom"}]}, {"tool_choice": "auto"}),
        ({"tools": [TOOL], "tool_choice": {"type": "any"}}, {"tool_choice": "required"}),
        ({"tools": [TOOL], "tool_choice": {"type": "none"}}, {"tool_choice": "none"}),
        (
            {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "get_weather"}},
            {"allowed_tools": ("get_weather",)},
        ),
        ({"tools": [TOOL], "tool_choice": ONE_CALL}, {"parallel_tool_calls": False}),
        ({"tools": [block("web_search_20250305", name="web_search")]}, {"tool_choice": "none"}),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, {"reasoning_budget": 9, "chat_template_kwargs": ON}),
        ({"thinking": {"type": "adaptive"}}, {"chat_template_kwargs": ON}),
        ({}, {"chat_template_kwargs": OFF}),
        ({"thinking": {"type": "disabled"}}, {"chat_template_kwargs": OFF}),
        ({"output_config": {"effort": "high"}}, {"chat_template_kwargs": {**OFF, "reasoning_effort": "high"}}),
        ({"output_config": {"format": FORMAT}}, {"response_format": as_format("output_config.format.schema")}),
        ({"output_format": FORMAT}, {"response_format": as_format("output_format.schema")}),
        ({"messages": [*HELLO, {"role": "assistant", "content": "I"}]}, {"continue_final_message": True}),
        (
            {"temperature": 0.5, "top_k": 3, "stop_sequences": ["END"], "seed": 7},
            {"max_tokens": 9, "stop": ("END",), "sampling": {"temperature": 0.5, "top_k": 3, "seed": 7}},
        ),
    ],
)
def test_field_is_read(fields: dict[str, Any], expected: dict[str, Any]):
    assert values_of(parsed(**fields), expected) == expected


USAGE = Usage(n_prompt=10, n_cached=4, n_completion=9, prompt_s=0.0, completion_s=0.0)
COUNTS = {"input_tokens": 6, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4, "output_tokens": 9}
CALLS = [*call(0, "t1", "get_weather", '{"city":', '"Oslo"}'), *call(1, "t2", "now", "{}")]
EVENTS = [ReasoningDelta("Hm"), ReasoningDelta("."), ContentDelta("Hi"), *CALLS]
HEAD = ResponseHead("msg_1", 0, "demo")


def encoded(end: OutputEnd, *, n_completion: int = 9, events: Sequence[Event] = EVENTS) -> tuple[list[Any], Any]:
    """The events of the stream, and the body, of the same output under a limit of 20 tokens."""
    usage = replace(USAGE, n_completion=n_completion)
    requests = (parsed(max_tokens=20, stream=is_stream) for is_stream in (True, False))
    stream, whole = (MessageEncoder(HEAD, request, lambda: usage) for request in requests)
    chunks = []
    for event in (*events, end):
        stream.add(0, event)
        whole.add(0, event)
        chunks += stream.take()
    stream.finish()
    return [json.loads(chunk) for chunk in (*chunks, *stream.take())], whole.body()


def test_stream_has_the_blocks_of_the_message_one_after_another():
    events, whole = encoded(OutputEnd("tool_calls"))
    thinking, *content = whole["content"]
    assert (thinking["type"], thinking["thinking"], bool(thinking["signature"])) == ("thinking", "Hm.", True)
    assert content == [
        {"type": "text", "text": "Hi"},
        {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Oslo"}},
        {"type": "tool_use", "id": "t2", "name": "now", "input": {}},
    ]
    deltas = ["thinking_delta", "thinking_delta", "signature_delta"], ["text_delta"], ["input_json_delta"] * 2
    expected: list[Any] = [("message_start", None), ("ping", None)]
    for i, kinds in enumerate([*deltas, ["input_json_delta"]]):
        expected += [("content_block_start", i), *((kind, i) for kind in kinds), ("content_block_stop", i)]
    assert [(event.get("delta", event)["type"], event.get("index")) for event in events[:-2]] == expected
    ends = {"stop_reason": "tool_use", "stop_sequence": None}
    assert events[-2:] == [{"type": "message_delta", "delta": ends, "usage": COUNTS}, {"type": "message_stop"}]
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "demo"}
    assert whole == {**head, "content": whole["content"], **ends, "usage": COUNTS}


@pytest.mark.parametrize(
    ("end", "n_completion", "expected"),
    [
        (OutputEnd("stop"), 9, ("end_turn", None)),
        (OutputEnd("stop", "END"), 9, ("stop_sequence", "END")),
        (OutputEnd("length"), 20, ("max_tokens", None)),
        (OutputEnd("length"), 9, ("model_context_window_exceeded", None)),
    ],
)
def test_stop_reason(end: OutputEnd, n_completion: int, expected: tuple[str, str | None]):
    events, whole = encoded(end, n_completion=n_completion)
    assert (whole["stop_reason"], whole["stop_sequence"]) == expected
    assert tuple(events[-2]["delta"].values()) == expected


def test_arguments_cut_by_the_length_limit_are_kept_as_text():
    for text in ('{"a": [1,', '{"a": 1e999}', '{"a": ' + "[" * 5000):
        _, whole = encoded(OutputEnd("length"), events=call(0, "t1", "now", text))
        assert whole["content"][0]["input"] == {"_incomplete_json": text}


def test_types_of_errors():
    kinds = {BadRequest: "invalid_request_error", QueueFull: "rate_limit_error", InferenceError: "api_error"}
    for error, kind in kinds.items():
        assert error_body(error("x")) == {"type": "error", "error": {"type": kind, "message": "x"}}
