"""Conversion of values and streams to and from llama-stack's types: a test for each row of docs/contract.md."""

from __future__ import annotations

import base64
import enum
import json
from types import SimpleNamespace
from typing import Any, List

import pytest

from examples.llama_stack import (
    CompletionPiece,
    StackCall,
    StackEvent,
    StackReply,
    StackText,
    StackToolCall,
    UnparseableToolCall,
    chat_logprobs,
    completion_logprobs,
    completion_pieces,
    sampling_options,
    stack_calls,
    stack_events,
    stack_reply,
    stop_reason,
    to_openai,
    tool_definition,
    type_schema,
)
from localchat.errors import IncompleteStream, StreamError
from localchat.events import Choice, StreamEvent, ToolCall
from localchat.reply.assembly import Accumulator
from tests.support.scripted import chunk

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()


REASONS = {
    "end_of_turn": "stop eos eos_token content_filter another",
    "end_of_message": "eom tool_calls function_call tool_use",
    "out_of_tokens": "length max_tokens",
    None: "error abort",
}


def test_k7_one_table_of_stop_reasons():
    """L5, L6, L25 and L36 in one."""
    assert {reason: {stop_reason(word) for word in words.split()} for reason, words in REASONS.items()} == {
        reason: {reason} for reason in REASONS
    }
    assert stop_reason(None) is stop_reason("") is None


@pytest.mark.parametrize(
    ("params", "options"),
    [
        (None, {}),
        ({"strategy": {"type": "greedy"}}, {"temperature": 0.0}),
        ({"strategy": {"type": "top_p", "temperature": 0.5, "top_p": 0.9}}, {"temperature": 0.5, "top_p": 0.9}),
        ({"strategy": {"type": "top_k", "top_k": 7}}, {"top_k": 7}),
        ({"strategy": {"type": "top_k", "top_k": 7, "temperature": 0.0}}, {"top_k": 7, "temperature": 0.0}),
        ({"max_tokens": 0, "stop": ["x"]}, {"max_tokens": 0, "stop": ["x"]}),
        ({"max_tokens": None, "stop": None, "repetition_penalty": None}, {}),
        ({"repetition_penalty": 1.0}, {}),
        ({"repetition_penalty": 1.1, "seed": 0}, {"repeat_penalty": 1.1, "seed": 0}),
    ],
)
def test_l2_l3_sampling_options(params: Any, options: Any):
    assert sampling_options(params) == options
    with pytest.raises(ValueError, match="'beam'"):
        sampling_options({"strategy": {"type": "beam"}})


@pytest.mark.parametrize(
    ("logprobs", "maps"),
    [
        ({"top_logprobs": [{"a": -1.0}, None]}, [{"a": -1.0}, {}]),
        ({"tokens": ["a", "b"], "token_logprobs": [-1.0, -2.0], "top_logprobs": None}, [{"a": -1.0}, {"b": -2.0}]),
        (-0.5, [{"x": -0.5}]),
        ({}, None),
        (None, None),
    ],
)
def test_l7_l8_completion_logprobs(logprobs: Any, maps: Any):
    assert completion_logprobs(logprobs, "x") == maps


def test_l33_chat_logprobs_hold_the_chosen_token_too():
    item = {"token": "a", "logprob": -1.0, "top_logprobs": [{"token": "b", "logprob": -0.5}]}
    assert chat_logprobs([item, {"token": "c", "logprob": -2.0}]) == [{"b": -0.5, "a": -1.0}, {"c": -2.0}]
    assert chat_logprobs(None) is None


TYPES = {"int": "integer", "float": "number", "bool": "boolean", "str": "string", "string": "string", "list": "array"}
TYPES |= {"typing.Dict": "object", "dict[str, int]": "object", "None": "null"}
SCHEMAS = {
    **{name: {"type": kind} for name, kind in TYPES.items()},
    "List[int]": {"type": "array", "items": {"type": "integer"}},
    "Optional[str]": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "int | None": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "Any": {},
}


def test_l30_type_names():
    assert {name: type_schema(name) for name in SCHEMAS} == SCHEMAS


class BuiltIn(enum.Enum):
    SEARCH = "brave_search"


def test_l31_tool_definition():
    parameters = {
        "x": {"param_type": "int", "description": "a number", "required": True},
        "y": {"param_type": "bool", "required": False, "default": False},
        "z": {"param_type": "str", "default": None, "required": False},
    }
    properties = {
        "x": {"type": "integer", "description": "a number"},
        "y": {"type": "boolean", "default": False},
        "z": {"type": "string"},
    }
    schema = {"type": "object", "properties": properties, "required": ["x"]}
    function = {"name": "f", "description": "Do.", "parameters": schema}
    definition = tool_definition({"tool_name": "f", "description": "Do.", "parameters": parameters})
    assert definition == {"type": "function", "function": function}
    assert tool_definition({"tool_name": BuiltIn.SEARCH})["function"] == {"name": "brave_search"}


def test_l26_l27_l32_calls_are_converted_and_never_raise():
    good = {"id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}}
    as_object = {"id": "1", "function": {"name": "f", "arguments": {"a": 1}}}
    call = StackCall("1", "f", {"a": 1}, '{"a": 1}')
    bad = [
        {"id": None, "function": {"name": "f", "arguments": "{"}},
        {"function": {"name": "f", "arguments": "[1]"}},
        {},
    ]
    unparseable = [UnparseableToolCall("", name, text) for name, text in (("f", "{"), ("f", "[1]"), ("", "{}"))]
    assert stack_calls([good, *bad, as_object]) == [call, *unparseable, call]
    assert stack_calls(None) == []
    assert UnparseableToolCall() == UnparseableToolCall("", "", "")


def test_what_the_server_requires_back_survives_the_conversion():
    """Reasoning in its field, null content, and signatures of the message and of its calls."""
    signed, details = {"extra_content": {"google": {"thought_signature": "s"}}}, [{"type": "reasoning.encrypted"}]
    calls = [ToolCall("1", "f", {"a": 1}, '{"a":1}', extra=signed), ToolCall("2", "g", {}, "{}", extra=signed)]
    extra = {"content": None, "reasoning_details": details}
    choice = Choice(reasoning="Hm.", tool_calls=tuple(calls), reasoning_field="reasoning", extra=extra)
    assert to_openai({"role": "assistant", **vars(stack_reply(choice))}) == choice.message
    assert stack_calls(choice.message["tool_calls"])[0].extra == signed


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
STACK_CALL = {"call_id": "1", "tool_name": "f", "arguments": {"a": 1}, "arguments_json": '{"a":1}'}
ASSISTANT = {"role": "assistant", "content": "", "tool_calls": [CALL]}
STACK_ASSISTANT = {"role": "assistant", "content": "", "tool_calls": [STACK_CALL]}
HI = {"type": "text", "text": "hi"}
IMAGE_PARTS = [
    HI,
    {"type": "image_url", "image_url": {"url": "https://host/a.png"}},
    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
]
STACK_IMAGES = [{"url": {"uri": "https://host/a.png"}}, {"data": PNG}]
STACK_ITEMS = [HI, *({"type": "image", "image": image} for image in STACK_IMAGES)]
# The name of a built-in tool, and arguments without their text.
SEARCH = {"call_id": "1", "tool_name": BuiltIn.SEARCH, "arguments": {"q": "é"}}
SEARCHED = {"id": "1", "type": "function", "function": {"name": "brave_search", "arguments": json.dumps({"q": "é"})}}


@pytest.mark.parametrize(
    ("stack", "openai"),
    [
        ({"role": "user", "content": "hi"}, {"role": "user", "content": "hi"}),
        ({"role": "user", "content": None}, {"role": "user", "content": ""}),
        ({"role": "developer", "content": ["hi"]}, {"role": "system", "content": [HI]}),
        (SimpleNamespace(role="user", content=SimpleNamespace(**HI)), {"role": "user", "content": [HI]}),
        ({"role": "user", "content": STACK_ITEMS}, {"role": "user", "content": IMAGE_PARTS}),
        (STACK_ASSISTANT, ASSISTANT),
        ({**STACK_ASSISTANT, "tool_calls": [SEARCH]}, {**ASSISTANT, "tool_calls": [SEARCHED]}),
        ({**STACK_ASSISTANT, "content": None}, {**ASSISTANT, "content": None}),
        ({"role": "assistant", "content": "ok", "tool_calls": []}, {"role": "assistant", "content": "ok"}),
        ({"role": "tool", "call_id": "1", "content": "42"}, {"role": "tool", "tool_call_id": "1", "content": "42"}),
    ],
)
def test_l28_l29_messages(stack: Any, openai: Any):
    assert to_openai(stack) == openai


@pytest.mark.parametrize(
    "message",
    [
        {"content": "hi"},
        {"role": "wizard", "content": "hi"},
        {"role": "user", "content": [{"type": "video"}]},
        {"role": "user", "content": [{"type": "image", "image": {}}]},
        {"role": "user", "content": [{"type": "image", "image": {"data": "?"}}]},
        {"role": "user", "content": [3]},
    ],
)
def test_l28_wrong_message_is_a_value_error(message: Any):
    with pytest.raises(ValueError, match=r"role|counterpart|image|expected a dict"):
        to_openai(message)


@pytest.mark.parametrize(
    ("text", "finish", "content", "reason"),
    [
        ("hi<|eot_id|>", "length", "hi", "end_of_turn"),
        ("hi<|eom_id|>", "stop", "hi", "end_of_message"),
        ("hi <|eom", "stop", "hi <|eom", "end_of_turn"),
        ("hi", "length", "hi", "out_of_tokens"),
    ],
)
def test_l9_l34_reply_of_text(text: str, finish: str, content: str, reason: Any):
    choice = Choice(text=text, finish_reason=finish, finish_reason_raw=finish)
    assert stack_reply(choice) == StackReply(content, (), reason, None)


def test_l10_l11_unparseable_call_does_not_affect_the_others():
    calls = (ToolCall("1", "f", {}, "{}"), ToolCall("2", "g", None, "{", "not JSON"))
    reply = stack_reply(Choice(text="so", tool_calls=calls, finish_reason="tool_calls", finish_reason_raw="stop"))
    assert reply.tool_calls == (StackCall("1", "f", {}, "{}"), UnparseableToolCall("2", "g", "{"))
    assert (reply.content, reply.stop_reason) == ("so", "end_of_message")


def events_of(*chunks: Any, done: bool = False) -> List[StreamEvent]:
    accumulator = Accumulator()
    events = [event for chunk in chunks for event in accumulator.add(chunk)]
    return events + accumulator.finish(done)


def call_chunk(index: int, id: Any, name: Any, arguments: str) -> Any:
    function = {"arguments": arguments, **({"name": name} if name else {})}
    return chunk(tool_calls=[{"index": index, "id": id, "function": function}])


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_l8_l14_completion_pieces_without_markers(size: int):
    text = "one<|eot_id|>"
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    chunks = [{"choices": [{"index": 0, "text": piece, "finish_reason": None}]} for piece in pieces]
    chunks.append({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
    found = list(completion_pieces(events_of(*chunks)))
    assert "".join(piece.delta for piece in found) == "one"
    assert found[-1] == CompletionPiece("", "end_of_turn")
    made = {"index": 0, "text": "a", "logprobs": {"top_logprobs": [{"a": -1.0}]}, "finish_reason": "stop"}
    assert next(completion_pieces(events_of({"choices": [made]}))) == CompletionPiece("a", None, [{"a": -1.0}])


def test_l15_l17_l42_events_of_text():
    """Log probabilities come with the text; usage and other choices are left out."""
    hi = chunk(content="hi")
    hi["choices"][0]["logprobs"] = {"content": [{"token": "hi", "logprob": -1.0}]}
    other = {"choices": [{"index": 1, "delta": {"content": "b"}, "finish_reason": "stop"}]}
    usage = {"choices": [], "usage": {"prompt_tokens": 1}}
    chunks = chunk(content=""), hi, other, chunk("stop", content="!"), usage
    assert list(stack_events(events_of(*chunks))) == [
        StackEvent("start", StackText("")),
        StackEvent("progress", StackText("hi"), None, [{"hi": -1.0}]),
        StackEvent("progress", StackText("!")),  # L20: text beside the finish reason is not lost.
        StackEvent("complete", StackText(""), "end_of_turn"),
    ]
    second = list(stack_events(events_of(*chunks), choice_index=1))
    assert [event.event_type for event in second] == ["start", "progress", "complete"]


def test_l37_l41_events_of_calls():
    pieces = call_chunk(0, "1", "f", '{"a":'), call_chunk(0, None, None, "1}"), call_chunk(1, "2", "g", "{")
    start, *events, end = stack_events(events_of(*pieces, chunk("tool_calls")))
    assert (start, end) == (StackEvent("start", StackText("")), StackEvent("complete", StackText(""), "end_of_message"))
    assert {event.event_type for event in events} == {"progress"}
    began, ended = StackToolCall("", "started"), StackToolCall(")", "in_progress")
    first = [StackToolCall(text, "in_progress") for text in ("f(", '{"a":', "1}")]
    second = [StackToolCall(text, "in_progress") for text in ("g(", "{")]
    whole = StackToolCall(StackCall("1", "f", {"a": 1}, '{"a":1}'), "succeeded")
    failed = StackToolCall("g({)", "failed")
    assert [event.delta for event in events] == [began, *first, began, *second, ended, whole, ended, failed]


def test_l21_marker_in_the_text_sets_the_stop_reason():
    events = list(stack_events(events_of(chunk(content="hi"), chunk(content="<|eom_id|>"), chunk("stop"))))
    assert [event.delta for event in events[1:]] == [StackText("hi"), StackText("")]
    assert events[-1].stop_reason == "end_of_message"


def test_l42_stream_that_is_cut_or_fails_has_no_complete_event():
    def failing(error: Exception) -> Any:
        yield from Accumulator().add(chunk(content="a"))
        raise error

    for error in (IncompleteStream("cut"), StreamError("failed")):
        seen = []
        with pytest.raises(type(error)):
            seen.extend(stack_events(failing(error)))
        assert all(event.event_type != "complete" for event in seen)
