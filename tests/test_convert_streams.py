"""Conversion of streams to llama-stack's events: a test for each row of docs/contract.md."""

from __future__ import annotations

from typing import Any, List

import pytest

from localchat.errors import IncompleteStream, StreamError
from localchat.events import StreamEvent
from localchat.extras.convert import (
    CompletionPiece,
    StackCall,
    StackEvent,
    StackText,
    StackToolCall,
    completion_pieces,
    stack_events,
)
from localchat.reply.assembly import Accumulator

TAG = "<|python_tag|>"


def events_of(*chunks: Any, done: bool = False) -> List[StreamEvent]:
    accumulator = Accumulator()
    events = [event for chunk in chunks for event in accumulator.add(chunk)]
    return events + accumulator.finish(done)


def chunk(finish: Any = None, logprobs: Any = None, **delta: Any) -> Any:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, **({"logprobs": logprobs} if logprobs else {})}
    return {"id": "1", "choices": [choice]}


def call_chunk(index: int, id: Any, name: Any, arguments: str) -> Any:
    function = {"arguments": arguments, **({"name": name} if name else {})}
    return chunk(tool_calls=[{"index": index, "id": id, "function": function}])


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_l14_markers_are_removed_from_completion_pieces(size: int):
    text = "one<|eot_id|>"
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    chunks = [{"choices": [{"index": 0, "text": piece, "finish_reason": None}]} for piece in pieces]
    chunks.append({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
    found = list(completion_pieces(events_of(*chunks)))
    assert "".join(piece.delta for piece in found) == "one"
    assert found[-1] == CompletionPiece("", "end_of_turn")


def test_l8_l14_completion_pieces_have_log_probabilities():
    made = {
        "choices": [{"index": 0, "text": "a", "logprobs": {"top_logprobs": [{"a": -1.0}]}, "finish_reason": "stop"}]
    }
    assert list(completion_pieces(events_of(made))) == [
        CompletionPiece("a", None, [{"a": -1.0}]),
        CompletionPiece("", "end_of_turn"),
    ]


def progress(delta: Any) -> StackEvent:
    return StackEvent("progress", delta)


def test_l15_l17_l42_events_of_text():
    events = list(stack_events(events_of(chunk(content=""), chunk(content="hi"), chunk("stop", content="!"))))
    assert events == [
        StackEvent("start", StackText("")),
        progress(StackText("hi")),
        progress(StackText("!")),  # L20: text beside the finish reason is not lost.
        StackEvent("complete", StackText(""), "end_of_turn"),
    ]


def test_l35_log_probabilities_come_with_the_text():
    logprobs = {"content": [{"token": "hi", "logprob": -1.0}]}
    events = list(stack_events(events_of(chunk(content="hi", logprobs=logprobs), chunk("stop"))))
    assert events[1] == StackEvent("progress", StackText("hi"), None, [{"hi": -1.0}])


def test_l37_l41_events_of_calls():
    made = events_of(
        call_chunk(0, "1", "f", '{"a":'),
        call_chunk(0, None, None, "1}"),
        call_chunk(1, "2", "g", "{"),
        chunk("tool_calls"),
    )
    assert list(stack_events(made)) == [
        StackEvent("start", StackText("")),
        progress(StackToolCall("", "started")),
        progress(StackToolCall("f(", "in_progress")),
        progress(StackToolCall('{"a":', "in_progress")),
        progress(StackToolCall("1}", "in_progress")),
        progress(StackToolCall("", "started")),
        progress(StackToolCall("g(", "in_progress")),
        progress(StackToolCall("{", "in_progress")),
        progress(StackToolCall(")", "in_progress")),
        progress(StackToolCall(StackCall("1", "f", {"a": 1}, '{"a":1}'), "succeeded")),
        progress(StackToolCall(")", "in_progress")),
        progress(StackToolCall("g({)", "failed")),
        StackEvent("complete", StackText(""), "end_of_message"),
    ]


def native(*pieces: str, offered: Any = None) -> List[StackEvent]:
    return list(stack_events(events_of(*(chunk(content=piece) for piece in pieces), chunk("stop")), offered))


@pytest.mark.parametrize("size", [1, 5, 14, 200])
def test_l18_l19_l23_native_call_in_the_text(size: int):
    text = f'so {TAG}{{"name": "f", "parameters": {{"a": 1}}}}<|eom_id|>'
    events = native(*(text[i : i + size] for i in range(0, len(text), size)), offered=["f"])
    deltas = [event.delta for event in events]
    assert "".join(delta.text for delta in deltas if isinstance(delta, StackText)) == "so "
    statuses = [delta.parse_status for delta in deltas if isinstance(delta, StackToolCall)]
    assert statuses[0] == "started"
    assert set(statuses[1:-1]) == {"in_progress"}
    assert deltas[-2] == StackToolCall(StackCall("", "f", {"a": 1}, '{"a": 1}'), "succeeded")
    assert events[-1].stop_reason == "end_of_message"


def test_l22_native_call_that_cannot_be_read_fails_with_its_text():
    assert native(TAG, "nonsense")[-2].delta == StackToolCall("nonsense", "failed")


def test_l23_native_call_that_was_not_offered_fails_with_its_text():
    text = '{"name": "f", "parameters": {}}'
    assert native(TAG + text, offered=["g"])[-2].delta == StackToolCall(text, "failed")


def test_l21_marker_in_the_text_sets_the_stop_reason():
    events = native("hi", "<|eom_id|>")
    assert [event.delta for event in events[1:]] == [StackText("hi"), StackText("")]
    assert events[-1].stop_reason == "end_of_message"


def test_l21_incomplete_marker_is_text():
    events = native("a <|eot")
    assert "".join(event.delta.text for event in events if isinstance(event.delta, StackText)) == "a <|eot"


def test_l36_first_finish_reason_is_used():
    accumulator = Accumulator()
    made = accumulator.add(chunk(content="a")) + accumulator.add(chunk("length")) + accumulator.add(chunk("stop"))
    assert list(stack_events(made + accumulator.finish()))[-1].stop_reason == "out_of_tokens"


def test_l35_usage_chunk_and_other_choices_are_ignored():
    other = {"choices": [{"index": 1, "delta": {"content": "no"}, "finish_reason": "stop"}]}
    made = events_of(chunk(content="a"), other, chunk("stop"), {"choices": [], "usage": {"prompt_tokens": 1}})
    assert [event.delta for event in stack_events(made)][1:] == [StackText("a"), StackText("")]


def test_l15_every_choice_has_a_start_event():
    second = {"choices": [{"index": 1, "delta": {"content": "b"}, "finish_reason": "stop"}]}
    accumulator = Accumulator(2)
    made = accumulator.add(chunk(content="a")) + accumulator.add(second) + accumulator.add(chunk("stop"))
    events = list(stack_events(made + accumulator.finish(), choice_index=1))
    assert [event.event_type for event in events] == ["start", "progress", "complete"]


def test_l42_stream_that_is_cut_or_fails_has_no_complete_event():
    def failing(error: Exception) -> Any:
        yield from Accumulator().add(chunk(content="a"))
        raise error

    for error in (IncompleteStream("cut"), StreamError("failed")):
        seen = []
        with pytest.raises(type(error)):
            seen.extend(stack_events(failing(error)))
        assert all(event.event_type != "complete" for event in seen)
