"""Conversion of values and streams to and from llama-stack's types: a row for each rule."""

from __future__ import annotations

import base64
import enum
from types import SimpleNamespace
from typing import Any, List

import pytest

from examples import llama_stack as stack
from examples.llama_stack import StackCall, StackEvent, StackReply, StackText, StackToolCall, UnparseableToolCall
from localchat.errors import IncompleteStream
from localchat.events import Choice, StreamEvent, ToolCall
from localchat.reply.assembly import Accumulator
from tests.support.scripted import chunk


class BuiltIn(enum.Enum):
    SEARCH = "brave_search"


REASONS = {
    "end_of_turn": ("stop", "eos", "eos_token", "content_filter", "another"),
    "end_of_message": ("eom", "tool_calls", "function_call", "tool_use"),
    "out_of_tokens": ("length", "max_tokens"),
    None: ("error", "abort", "", None),
}
TOP_K = {"type": "top_k", "top_k": 7}
OPTIONS: list[tuple[Any, Any]] = [
    (None, {}),
    ({"strategy": {"type": "greedy"}}, {"temperature": 0.0}),
    ({"strategy": {"type": "top_p", "temperature": 0.5, "top_p": 0.9}}, {"temperature": 0.5, "top_p": 0.9}),
    ({"strategy": TOP_K}, {"top_k": 7}),
    ({"strategy": {**TOP_K, "temperature": 0.0}}, {"top_k": 7, "temperature": 0.0}),
    ({"max_tokens": 0, "stop": ["x"]}, {"max_tokens": 0, "stop": ["x"]}),
    ({"max_tokens": None, "stop": None, "repetition_penalty": None}, {}),
    ({"repetition_penalty": 1.0}, {}),
    ({"repetition_penalty": 1.1, "seed": 0}, {"repeat_penalty": 1.1, "seed": 0}),
]
CHOSEN = {"token": "a", "logprob": -1.0, "top_logprobs": [{"token": "b", "logprob": -0.5}]}
TYPES = {"int": "integer", "float": "number", "bool": "boolean", "str": "string", "string": "string", "list": "array"}
TYPES |= {"typing.Dict": "object", "dict[str, int]": "object", "None": "null"}
PARAMETERS = {
    "x": {"param_type": "int", "description": "a number", "required": True},
    "y": {"param_type": "bool", "required": False, "default": False},
    "z": {"param_type": "str", "default": None, "required": False},
}
INTEGER, STRING, NULL = ({"type": name} for name in ("integer", "string", "null"))
PROPERTIES = {"x": {**INTEGER, "description": "a number"}, "y": {"type": "boolean", "default": False}, "z": STRING}
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": PROPERTIES, "required": ["x"]}}
DO = {"name": "brave_search", "description": "Do."}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
STACK_CALL = {"call_id": "1", "tool_name": "f", "arguments": {"a": 1}, "arguments_json": '{"a":1}'}
CALLS = (ToolCall("1", "f", {}, "{}"), ToolCall("2", "g", None, "{", "not JSON"))
STACK_CALLS = (StackCall("1", "f", {}, "{}"), UnparseableToolCall("2", "g", "{"))
# The name of a built-in tool, and arguments without their text.
SEARCH = {"call_id": "1", "tool_name": BuiltIn.SEARCH, "arguments": {"q": "é"}}
SEARCHED = {"id": "1", "type": "function", "function": {"name": "brave_search", "arguments": '{"q": "\\u00e9"}'}}
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
HI = {"type": "text", "text": "hi"}
IMAGES = [{"url": {"uri": "https://host/a.png"}}, {"data": PNG}]
URLS = ["https://host/a.png", f"data:image/png;base64,{PNG}"]


def user(content: Any) -> Any:
    return {"role": "user", "content": content}


def assistant(call: Any, content: str | None = "") -> Any:
    return {"role": "assistant", "content": content, "tool_calls": [call]}


MESSAGES: list[tuple[Any, Any]] = [
    (user("hi"), user("hi")),
    (user(None), user("")),
    ({"role": "developer", "content": ["hi"]}, {"role": "system", "content": [HI]}),
    (SimpleNamespace(role="user", content=SimpleNamespace(**HI)), user([HI])),
    (
        user([HI, *({"type": "image", "image": image} for image in IMAGES)]),
        user([HI, *({"type": "image_url", "image_url": {"url": url}} for url in URLS)]),
    ),
    (assistant(STACK_CALL), assistant(CALL)),
    (assistant(SEARCH), assistant(SEARCHED)),
    (assistant(STACK_CALL, None), assistant(CALL, None)),
    ({"role": "assistant", "content": "ok", "tool_calls": []}, {"role": "assistant", "content": "ok"}),
    ({"role": "tool", "call_id": "1", "content": "42"}, {"role": "tool", "tool_call_id": "1", "content": "42"}),
]
VALUES: list[tuple[Any, Any, Any]] = [
    *((stack.stop_reason, word, reason) for reason, words in REASONS.items() for word in words),
    *((stack.sampling_options, *row) for row in OPTIONS),
    (stack.completion_logprobs, {"top_logprobs": [{"a": -1.0}, None]}, [{"a": -1.0}, {}]),
    (stack.completion_logprobs, {"tokens": "ab", "token_logprobs": [-1.0, -2.0]}, [{"a": -1.0}, {"b": -2.0}]),
    (stack.completion_logprobs, {}, None),
    (stack.completion_logprobs, None, None),
    (stack.chat_logprobs, [CHOSEN, {"token": "c", "logprob": -2.0}], [{"b": -0.5, "a": -1.0}, {"c": -2.0}]),
    (stack.chat_logprobs, None, None),
    *((stack.type_schema, name, {"type": kind}) for name, kind in TYPES.items()),
    (stack.type_schema, "List[int]", {"type": "array", "items": INTEGER}),
    (stack.type_schema, "Optional[str]", {"anyOf": [STRING, NULL]}),
    (stack.type_schema, "int | None", {"anyOf": [INTEGER, NULL]}),
    (stack.type_schema, "Any", {}),
    (stack.tool_definition, {"tool_name": "f", "parameters": PARAMETERS}, {"type": "function", "function": FUNCTION}),
    (stack.tool_definition, {"tool_name": BuiltIn.SEARCH, "description": "Do."}, {"type": "function", "function": DO}),
    *((stack.to_openai, *row) for row in MESSAGES),
]
WRONG: list[tuple[Any, Any, str]] = [
    (stack.sampling_options, {"strategy": {"type": "beam"}}, "'beam'"),
    (stack.to_openai, {"content": "hi"}, "role"),
    (stack.to_openai, {"role": "wizard", "content": "hi"}, "role"),
    (stack.to_openai, user([{"type": "video"}]), "counterpart"),
    (stack.to_openai, user([{"type": "image", "image": {}}]), "image"),
    (stack.to_openai, user([{"type": "image", "image": {"data": "?"}}]), "image"),
    (stack.to_openai, user([3]), "expected a dict"),
]


@pytest.mark.parametrize(("convert", "value", "converted"), VALUES)
def test_value_is_converted(convert: Any, value: Any, converted: Any):
    assert convert(value) == converted


@pytest.mark.parametrize(("convert", "value", "words"), WRONG)
def test_value_that_has_no_counterpart_is_refused(convert: Any, value: Any, words: str):
    with pytest.raises(ValueError, match=words):
        convert(value)


def test_calls_are_converted_and_never_raise():
    made = [(arguments, {"name": "f", "arguments": arguments}) for arguments in ('{"a": 1}', {"a": 1}, "{", "[1]")]
    calls = [*({"id": "1", "function": function} for _, function in made), {}]
    call = StackCall("1", "f", {"a": 1}, '{"a": 1}')
    wrong = [UnparseableToolCall("1", "f", text) for text in ("{", "[1]")]
    assert stack.stack_calls(calls) == [call, call, *wrong, UnparseableToolCall("", "", "{}")]
    assert stack.stack_calls(None) == []


def test_what_the_server_requires_back_survives_the_conversion():
    """Reasoning in its field, null content, and signatures of the message and of its calls."""
    signed, details = {"extra_content": {"google": {"thought_signature": "s"}}}, [{"type": "reasoning.encrypted"}]
    calls = [ToolCall("1", "f", {"a": 1}, '{"a":1}', extra=signed), ToolCall("2", "g", {}, "{}", extra=signed)]
    extra = {"content": None, "reasoning_details": details}
    choice = Choice(reasoning="Hm.", tool_calls=tuple(calls), reasoning_field="reasoning", extra=extra)
    assert stack.to_openai({"role": "assistant", **vars(stack.stack_reply(choice))}) == choice.message
    assert stack.stack_calls(choice.message["tool_calls"])[0].extra == signed


@pytest.mark.parametrize(
    ("text", "calls", "finish", "reply"),
    [
        ("hi<|eot_id|>", (), "length", StackReply("hi", (), "end_of_turn", None)),
        ("hi<|eom_id|>", (), "stop", StackReply("hi", (), "end_of_message", None)),
        ("hi <|eom", (), "stop", StackReply("hi <|eom", (), "end_of_turn", None)),
        ("hi", (), "length", StackReply("hi", (), "out_of_tokens", None)),
        ("so", CALLS, "stop", StackReply("so", STACK_CALLS, "end_of_message", None)),
    ],
)
def test_reply(text: str, calls: Any, finish: str, reply: StackReply):
    assert stack.stack_reply(Choice(text=text, tool_calls=calls, finish_reason_raw=finish)) == reply


def events_of(*chunks: Any, done: bool = False) -> List[StreamEvent]:
    accumulator = Accumulator()
    events = [event for chunk in chunks for event in accumulator.add(chunk)]
    return events + accumulator.finish(done)


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_completion_pieces_have_no_markers(size: int):
    def piece(text: str, **fields: Any) -> Any:
        return {"choices": [{"index": 0, "text": text, **fields}]}

    text = "one<|eot_id|>"
    pieces = [piece(text[i : i + size]) for i in range(0, len(text), size)]
    found = list(stack.completion_pieces(events_of(*pieces, piece("", finish_reason="length"))))
    assert "".join(piece.delta for piece in found) == "one"
    assert found[-1] == stack.CompletionPiece("", "end_of_turn")
    # Some servers send one number for a piece.
    (first, _) = stack.completion_pieces(events_of(piece("a", logprobs=-1.0, finish_reason="stop")))
    assert first == stack.CompletionPiece("a", None, [{"a": -1.0}])


def test_events_of_text():
    """Log probabilities come with the text; usage and other choices are left out."""
    hi = chunk(content="hi")
    hi["choices"][0]["logprobs"] = {"content": [{"token": "hi", "logprob": -1.0}]}
    other = {"choices": [{"index": 1, "delta": {"content": "b"}, "finish_reason": "stop"}]}
    usage = {"choices": [], "usage": {"prompt_tokens": 1}}
    chunks = chunk(content=""), hi, other, chunk("stop", content="!"), usage
    assert list(stack.stack_events(events_of(*chunks))) == [
        StackEvent("start", StackText("")),
        StackEvent("progress", StackText("hi"), None, [{"hi": -1.0}]),
        StackEvent("progress", StackText("!")),  # Text beside the finish reason is not lost.
        StackEvent("complete", StackText(""), "end_of_turn"),
    ]
    second = list(stack.stack_events(events_of(*chunks), choice_index=1))
    assert [event.event_type for event in second] == ["start", "progress", "complete"]


def test_events_of_calls():
    pieces = [(0, "1", "f", '{"a":'), (0, None, None, "1}"), (1, "2", "g", "{")]
    calls = [{"index": i, "id": id, "function": {"name": name, "arguments": text}} for i, id, name, text in pieces]
    events = events_of(*(chunk(tool_calls=[call]) for call in calls), chunk("tool_calls"))
    start, *progress, end = stack.stack_events(events)
    assert (start, end) == (StackEvent("start", StackText("")), StackEvent("complete", StackText(""), "end_of_message"))
    assert {event.event_type for event in progress} == {"progress"}
    began, ended = StackToolCall("", "started"), StackToolCall(")", "in_progress")
    texts = ["f(", '{"a":', "1}"], ["g(", "{"]
    first, second = ([StackToolCall(text, "in_progress") for text in given] for given in texts)
    whole = StackToolCall(StackCall("1", "f", {"a": 1}, '{"a":1}'), "succeeded")
    failed = StackToolCall("g({)", "failed")
    assert [event.delta for event in progress] == [began, *first, began, *second, ended, whole, ended, failed]


def test_stream_that_is_cut_has_no_complete_event():
    accumulator, seen = Accumulator(), []
    steps = (lambda: accumulator.add(chunk(content="a")), accumulator.finish)
    with pytest.raises(IncompleteStream):
        seen.extend(stack.stack_events(event for step in steps for event in step()))
    assert [event.event_type for event in seen] == ["start", "progress"]
