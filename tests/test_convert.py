"""Conversion of values to and from llama-stack's types: a test for each row of docs/contract.md."""

from __future__ import annotations

import base64
import enum
import json
from dataclasses import dataclass
from typing import Any, List

import pytest

from localchat.events import Choice, ToolCall
from localchat.extras.convert import (
    StackCall,
    StackReply,
    UnparseableToolCall,
    chat_logprobs,
    completion_logprobs,
    from_openai,
    native_calls,
    sampling_options,
    stack_call,
    stack_calls,
    stack_reply,
    stop_reason,
    streamed_logprobs,
    to_openai,
    tool_definition,
    type_schema,
    with_parts,
)
from localchat.reply.assembly import Accumulator

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
TAG = "<|python_tag|>"


# K7 and sampling


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("stop", "end_of_turn"),
        ("eos", "end_of_turn"),
        ("eos_token", "end_of_turn"),
        ("eom", "end_of_message"),
        ("tool_calls", "end_of_message"),
        ("function_call", "end_of_message"),
        ("tool_use", "end_of_message"),
        ("length", "out_of_tokens"),
        ("max_tokens", "out_of_tokens"),
        ("content_filter", "end_of_turn"),
        ("never heard of", "end_of_turn"),
        (None, None),
        ("", None),
        ("error", None),
        ("abort", None),
    ],
)
def test_k7_one_table_of_stop_reasons(raw: Any, reason: Any):
    """L5, L6, L25 and L36 in one."""
    assert stop_reason(raw) == reason


@pytest.mark.parametrize(
    ("params", "options"),
    [
        (None, {}),
        ({}, {}),
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


def test_l2_unknown_strategy_is_named():
    with pytest.raises(ValueError, match="'beam'"):
        sampling_options({"strategy": {"type": "beam"}})


# Log probabilities


@pytest.mark.parametrize(
    ("logprobs", "maps"),
    [
        ({"top_logprobs": [{"a": -1.0}, None]}, [{"a": -1.0}, {}]),
        ({"tokens": ["a", "b"], "token_logprobs": [-1.0, -2.0], "top_logprobs": None}, [{"a": -1.0}, {"b": -2.0}]),
        ({}, None),
        (None, None),
    ],
)
def test_l7_completion_logprobs(logprobs: Any, maps: Any):
    assert completion_logprobs(logprobs) == maps


@pytest.mark.parametrize(
    ("logprobs", "maps"), [(-0.5, [{"x": -0.5}]), ({"top_logprobs": [{"a": -1.0}]}, [{"a": -1.0}]), (None, None)]
)
def test_l8_streamed_logprobs(logprobs: Any, maps: Any):
    assert streamed_logprobs("x", logprobs) == maps


def test_l33_chat_logprobs_hold_the_chosen_token_too():
    item = {"token": "a", "logprob": -1.0, "top_logprobs": [{"token": "b", "logprob": -0.5}]}
    assert chat_logprobs([item, {"token": "c", "logprob": -2.0}]) == [{"b": -0.5, "a": -1.0}, {"c": -2.0}]
    assert chat_logprobs(None) is None


# Tools


@pytest.mark.parametrize(
    ("name", "schema"),
    [
        ("int", {"type": "integer"}),
        ("float", {"type": "number"}),
        ("bool", {"type": "boolean"}),
        ("str", {"type": "string"}),
        ("list", {"type": "array"}),
        ("dict", {"type": "object"}),
        ("None", {"type": "null"}),
        ("List[int]", {"type": "array", "items": {"type": "integer"}}),
        ("Optional[str]", {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ("dict[str, int]", {"type": "object"}),
        ("string", {"type": "string"}),
        ("Any", {}),
        ("typing.Dict", {"type": "object"}),
        ("int | None", {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        ("Union[int, List[str]]", {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "string"}}]}),
        ("Literal['a', 1]", {"enum": ["a", 1]}),
        ("any-thing", {"type": "any-thing"}),
        ("not one", {"type": "not one"}),
    ],
)
def test_l30_type_names(name: str, schema: Any):
    assert type_schema(name) == schema


class BuiltIn(enum.Enum):
    SEARCH = "brave_search"


def test_l31_tool_definition():
    parameters = {
        "x": {"param_type": "int", "description": "a number", "required": True},
        "y": {"param_type": "bool", "required": False, "default": False},
        "z": {"param_type": "str", "default": None, "required": False},
    }
    assert tool_definition({"tool_name": "f", "description": "Do.", "parameters": parameters}) == {
        "type": "function",
        "function": {
            "name": "f",
            "description": "Do.",
            "parameters": {
                "type": "object",
                "properties": {
                    "x": {"type": "integer", "description": "a number"},
                    "y": {"type": "boolean", "default": False},
                    "z": {"type": "string"},
                },
                "required": ["x"],
            },
        },
    }
    assert tool_definition({"tool_name": BuiltIn.SEARCH})["function"] == {"name": "brave_search"}


def test_l27_call_is_converted_and_never_raises():
    call = {"id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}}
    assert stack_call(call) == StackCall("1", "f", {"a": 1}, '{"a": 1}')
    bad = {"id": None, "function": {"name": "f", "arguments": "{"}}
    assert stack_call(bad) == UnparseableToolCall("", "f", "{")
    assert stack_call({"function": {"name": "f", "arguments": "[1]"}}) == UnparseableToolCall("", "f", "[1]")
    assert stack_call({}) == UnparseableToolCall("", "", "{}")
    assert stack_call({"id": "1", "function": {"name": "f", "arguments": {"a": 1}}}) == stack_call(call)


def test_l32_no_calls_are_an_empty_list():
    assert stack_calls(None) == stack_calls([]) == []


def test_l26_unparseable_call_has_empty_defaults():
    assert UnparseableToolCall() == UnparseableToolCall("", "", "")


# Messages

ASSISTANT = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}],
}
STACK_ASSISTANT = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"call_id": "1", "tool_name": "f", "arguments": {"a": 1}, "arguments_json": '{"a":1}'}],
    "stop_reason": "end_of_message",
}
IMAGE_PARTS = [
    {"type": "text", "text": "see"},
    {"type": "image_url", "image_url": {"url": "https://host/a.png"}},
    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
]
STACK_ITEMS = [
    {"type": "text", "text": "see"},
    {"type": "image", "image": {"url": {"uri": "https://host/a.png"}}},
    {"type": "image", "image": {"data": PNG}},
]


@pytest.mark.parametrize(
    ("stack", "openai"),
    [
        ({"role": "user", "content": "hi"}, {"role": "user", "content": "hi"}),
        ({"role": "system", "content": "be"}, {"role": "system", "content": "be"}),
        ({"role": "user", "content": STACK_ITEMS}, {"role": "user", "content": IMAGE_PARTS}),
        (STACK_ASSISTANT, ASSISTANT),
        (
            {"role": "assistant", "content": "ok", "tool_calls": [], "stop_reason": "end_of_turn"},
            {"role": "assistant", "content": "ok"},
        ),
        (
            {"role": "tool", "call_id": "1", "content": "42"},
            {"role": "tool", "tool_call_id": "1", "content": "42"},
        ),
    ],
)
def test_l28_l29_messages_both_ways(stack: Any, openai: Any):
    assert to_openai(stack) == openai
    assert from_openai(openai) == stack


@dataclass
class Item:
    type: str
    text: str


@dataclass
class Message:
    role: str
    content: Any


def test_l28_typed_message_and_lone_part():
    assert to_openai(Message("user", Item("text", "hi"))) == {
        "role": "user",
        "content": [{"type": "text", "text": "hi"}],
    }
    assert to_openai({"role": "developer", "content": ["a", "b"]})["role"] == "system"
    assert to_openai({"role": "user", "content": None})["content"] == ""


def test_l29_names_of_built_in_tools_and_arguments_without_their_text():
    call = {"call_id": "1", "tool_name": BuiltIn.SEARCH, "arguments": {"q": "é"}}
    function = to_openai({"role": "assistant", "content": "", "tool_calls": [call]})["tool_calls"][0]["function"]
    assert (function["name"], json.loads(function["arguments"])) == ("brave_search", {"q": "é"})


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


def test_l28_wrong_openai_message_is_a_value_error():
    for message in ({"content": ""}, {"role": "user", "content": [{"type": "input_audio"}]}):
        with pytest.raises(ValueError, match=r"role|counterpart"):
            from_openai(message)


def test_l24_content_becomes_parts_and_other_fields_are_kept():
    assert with_parts(ASSISTANT) == {**ASSISTANT, "content": [{"type": "text", "text": ""}]}
    assert with_parts({"role": "user", "content": IMAGE_PARTS})["content"] == IMAGE_PARTS


# Replies


@pytest.mark.parametrize(
    ("text", "finish", "content", "reason"),
    [
        ("hi<|eot_id|>", "length", "hi", "end_of_turn"),
        ("hi<|eom_id|>", "stop", "hi", "end_of_message"),
        ("hi", "length", "hi", "out_of_tokens"),
        ("hi", "stop", "hi", "end_of_turn"),
    ],
)
def test_l9_l34_reply_of_text(text: str, finish: str, content: str, reason: Any):
    choice = Choice(text=text, finish_reason=finish, finish_reason_raw=finish)
    assert stack_reply(choice) == StackReply(content, (), reason, None)


def test_l1_l4_text_message_and_delta_of_a_choice_are_read():
    for content in ({"text": "hi"}, {"message": {"content": "hi"}}, {"delta": {"content": "hi"}}):
        accumulator = Accumulator(think_tags="off")
        accumulator.add({"choices": [{"index": 0, "finish_reason": "stop", **content}]})
        accumulator.finish(True)
        assert stack_reply(accumulator.reply().choice).content == "hi"


def test_l10_l11_unparseable_call_does_not_affect_the_others():
    calls = (ToolCall("1", "f", {}, "{}"), ToolCall("2", "g", None, "{", "not JSON"))
    reply = stack_reply(Choice(text="so", tool_calls=calls, finish_reason="tool_calls", finish_reason_raw="stop"))
    assert reply.tool_calls == (StackCall("1", "f", {}, "{}"), UnparseableToolCall("2", "g", "{"))
    assert (reply.content, reply.stop_reason) == ("so", "end_of_message")


def test_l12_native_calls_are_parsed_only_with_tools():
    text = TAG + '{"name": "f", "parameters": {"a": 1}}'
    choice = Choice(text=text, finish_reason="stop", finish_reason_raw="stop")
    assert stack_reply(choice).content == text
    reply = stack_reply(choice, offered=["f"])
    assert (reply.content, reply.tool_calls) == ("", (StackCall("", "f", {"a": 1}, '{"a": 1}'),))


def test_l13_call_that_was_not_offered_keeps_the_text(caplog: pytest.LogCaptureFixture):
    text = '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}'
    reply = stack_reply(Choice(text=text, finish_reason_raw="stop"), offered=["f"])
    assert reply.content == text
    assert [call.tool_name for call in reply.tool_calls] == ["f"]
    assert "'g', which was not offered" in caplog.text


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('{"name": "f", "arguments": {"a": ";"}};{"name": "g", "parameters": {}}', ["f", "g"]),
        ('<function=f>{"a": 1}</function><function=g>{}</function>', ["f", "g"]),
        ('brave_search.call(query="a, b")', ["brave_search"]),
        ("brave_search.call(query=open('x'))", []),
        ("brave_search.call(", []),
        ('a.call(city="Bonn"), a.call(city="Rome")', []),
        ('a.call("Bonn", days=3)', []),
        ('a.call(**{"a": 1})', []),
        ("a.call(x=1).b(y=2)", []),
        ('{"name": "f"} and more', []),
        ('{"name": 1}', []),
        ('{"name": "f", "parameters": [1]}', []),
        ("plain text", []),
        ("<function=f>{</function>", []),
        ("", []),
    ],
)
def test_l12_native_calls(text: str, names: List[str]):
    assert [call.tool_name for call in native_calls(text)] == names
    assert [call.tool_name for call in native_calls(TAG + text)] == names
