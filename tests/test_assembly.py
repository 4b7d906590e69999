"""Assembly of a reply from payloads: choices, calls, reasoning, logprobs, and defects of servers."""

from __future__ import annotations

from typing import Any

import pytest

from localchat.errors import IncompleteStream, StreamError
from localchat.events import StreamEvent
from localchat.reply.assembly import Accumulator
from localchat.reply.payloads import parse_error


def text_chunk(text: str, finish: str | None = None, index: int = 0) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": {"content": text}, "finish_reason": finish}]}


def test_finish_reason_in_every_delta_does_not_end_the_response():
    """Some servers send a finish reason in every delta: only [DONE] ends the response, with the last reason."""
    accumulator = Accumulator()
    for text, finish in (("You may delete it", "stop"), (" only after", "stop"), (" a", "length")):
        accumulator.add(text_chunk(text, finish))
    assert not accumulator.complete
    with pytest.raises(IncompleteStream, match="the finish reason 'length' is unknown or not at the end"):
        accumulator.finish()
    assert accumulated(text_chunk("a", "stop"), text_chunk("b", "length"))[1].reply().finish_reason == "length"


def test_choice_that_begins_late_is_required():
    accumulator = Accumulator()
    accumulator.add(text_chunk("one", "stop"))
    assert accumulator.complete
    accumulator.add(text_chunk("tw", index=1))
    assert not accumulator.complete
    with pytest.raises(IncompleteStream):
        accumulator.finish()


@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_call_that_is_cut_before_its_arguments_has_an_error(finish):
    """Without the error, the function would be called with its defaults."""
    calls = [{"index": i, "id": f"c{i}", "function": {"name": "clean", "arguments": ""}} for i in range(2)]
    chunk = {"choices": [{"delta": {"tool_calls": calls}, "finish_reason": finish}]}
    first, second = accumulated(chunk)[1].reply().tool_calls
    assert (first.arguments, first.error) == ({}, None)
    assert (second.arguments, second.error) == (None, "the response was cut before the arguments")


def accumulated(*chunks: dict[str, Any], n: int = 1) -> tuple[list[StreamEvent], Accumulator]:
    accumulator = Accumulator(n)
    events = [event for chunk in chunks for event in accumulator.add(chunk)]
    return events + accumulator.finish(done=True), accumulator


def test_fewer_choices_than_requested_give_a_warning():
    events, accumulator = accumulated({"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}, n=2)
    assert [event.type for event in events][-2:] == ["warning", "message_stop"]
    assert accumulator.reply().warnings == ("the server sent 1 of the 2 requested choices",)


def test_choices_without_index_are_numbered_by_their_position():
    choices = [{"message": {"content": text}, "finish_reason": "stop"} for text in ("one", "two")]
    assert [choice.text for choice in accumulated({"choices": choices}, n=2)[1].reply().choices] == ["one", "two"]


def test_message_after_deltas_may_leave_out_the_reasoning():
    pieces = [{"choices": [{"delta": {"content": text}}]} for text in ("<think>hm</think>", "Hel", "lo")]
    whole = {"choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}]}
    reply = accumulated(*pieces, whole)[1].reply()
    assert (reply.text, reply.reasoning) == ("Hello", "hm")


@pytest.mark.parametrize("follower", [{"reasoning": "hm"}, {"content": [{"type": "thinking", "thinking": "hm"}]}])
def test_held_text_is_emitted_before_later_deltas(follower):
    deltas: list[dict[str, Any]] = [{"content": "<thi"}, follower, {"content": "b"}]
    events, accumulator = accumulated(*({"choices": [{"delta": delta}]} for delta in deltas))
    assert accumulator.reply().text == "<thib"
    assert [event.delta for event in events if event.type.endswith("_delta")] == ["<thi", "hm", "b"]


def test_logprobs_of_completions_have_the_format_of_chats():
    logprobs = {"tokens": ["a", "b"], "token_logprobs": [None, -0.5], "top_logprobs": [None, {"b": -0.5, "c": -1.0}]}
    reply = accumulated({"choices": [{"text": "ab", "logprobs": logprobs, "finish_reason": "stop"}]})[1].reply()
    first, second = reply.choice.logprobs
    assert first == {"token": "a", "logprob": None, "bytes": None, "top_logprobs": []}
    assert (second["token"], second["logprob"]) == ("b", -0.5)
    assert second["top_logprobs"] == [{"token": "b", "logprob": -0.5}, {"token": "c", "logprob": -1.0}]


def test_reply_keeps_extra_fields():
    accumulator = Accumulator()
    accumulator.add({"id": "1", "timings": {"n": 1}, "choices": [{"delta": {"content": "Hi"}}]})
    accumulator.add({"id": "1", "choices": [{"delta": {}, "finish_reason": "stop", "stop_reason": "##"}]})
    reply = accumulator.reply()
    assert reply.raw == {"id": "1", "timings": {"n": 1}}
    assert reply.choice.stop_reason == "##"
    message = {"content": None, "audio": {"transcript": "Hello"}}
    whole = {"id": "1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    assert accumulated(whole)[1].reply().raw == whole


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_nan_and_infinity_are_not_valid_in_arguments(number):
    """json.loads accepts them, but a server refuses them in the next request."""
    accumulator = Accumulator()
    accumulator.add(tool_delta({"index": 0, "function": {"name": "f", "arguments": f'{{"a": {number}}}'}}))
    call = accumulator.reply().tool_calls[0]
    assert (call.arguments, call.member["function"]["arguments"]) == (None, "{}")
    assert f"{number} is not a number of JSON" in (call.error or "")


def test_made_id_of_a_call_is_stable_until_the_server_sends_one():
    accumulator = Accumulator()
    accumulator.add(tool_delta({"index": 0, "function": {"name": "f", "arguments": "{}"}}))
    made = accumulator.reply().tool_calls[0].id
    assert accumulator.reply().tool_calls[0].id == made
    accumulator.add(tool_delta({"index": 0, "id": "late"}))
    assert accumulator.reply().tool_calls[0].id == "late"


def tool_delta(call: dict[str, Any]) -> dict[str, Any]:
    return {"choices": [{"delta": {"tool_calls": [call]}}]}


def test_deep_nesting_is_read_or_refused():
    deep: Any = "x"
    for _ in range(900):
        deep = [deep]
    accumulator = Accumulator()
    accumulator.add({"choices": [{"delta": {"content": [deep], "tool_calls": [{"name": "f", "arguments": deep}]}}]})
    accumulator.finish(done=True)
    assert parse_error([deep]).message


PIECES_OF_A_SMILE = ["Hi \ud83d", "\ude00!", "lone \ud83d"]


@pytest.mark.parametrize("field", ["content", "reasoning", "refusal"])
def test_split_surrogate_pairs_are_joined_and_lone_surrogates_replaced(field):
    events, accumulator = accumulated(
        *({"choices": [{"delta": {field: text}}]} for text in PIECES_OF_A_SMILE),
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    )
    deltas = [event.delta for event in events if event.type.startswith(field)]
    assert deltas == ["Hi ", "\N{GRINNING FACE}!", "lone ", "\ufffd"]
    choice = accumulator.reply().choices[0]
    assert "".join(deltas) == {"content": choice.text, "reasoning": choice.reasoning, "refusal": choice.refusal}[field]
    assert accumulator.reply().warnings == ("a half of a character came without the other; it is replaced by U+FFFD",)


def test_split_surrogate_pairs_in_arguments_are_joined():
    pieces = ['{"q": "', *PIECES_OF_A_SMILE[:2], '"}']
    deltas = [tool_delta({"index": 0, "id": "a", "function": {"name": "f", "arguments": text}}) for text in pieces]
    accumulator = Accumulator()
    for delta in deltas:
        accumulator.add(delta)
        accumulator.reply()  # This does not change the result.
    assert accumulator.reply().tool_calls[0].arguments == {"q": "Hi \N{GRINNING FACE}!"}


UNKNOWN_PAYLOADS: dict[str, tuple[dict[str, Any], str]] = {
    "code and message": ({"code": 50505, "message": "no luck"}, "no luck"),
    "status code": ({"statusCode": 500, "message": "no luck"}, "no luck"),
    "message and type": ({"message": "no luck", "type": "server_error"}, "no luck"),
    "message beside an id": ({"id": "req-1", "message": "no luck", "choices": None}, "no luck"),
    "code beside an id": ({"id": "req-1", "code": 500}, '"code": 500'),
    "reason": ({"reason": "no luck"}, "no part of a chat completion.*no luck"),
    "flat error": ({"object": "error", "message": "out of memory", "code": 500}, "out of memory"),
    "nothing known": ({"foo": 1}, 'no part of a chat completion: {"foo": 1}'),
}


@pytest.mark.parametrize(("payload", "words"), UNKNOWN_PAYLOADS.values(), ids=UNKNOWN_PAYLOADS)
def test_c2_unknown_payload_after_text_is_an_error(payload, words):
    accumulator = Accumulator()
    accumulator.add(text_chunk("Hel"))
    assert [event.type for event in accumulator.add(payload)] == ["error"]
    with pytest.raises(StreamError, match=words) as caught:
        accumulator.finish(done=True)
    assert caught.value.partial is not None
    assert caught.value.partial.text == "Hel"


KNOWN_PAYLOADS: dict[str, dict[str, Any]] = {
    "empty": {},
    "code of a success": {"code": 0, "message": "Success", "choices": []},
    "null detail (C20)": {"detail": None, "choices": [], "id": "1"},
    "only null detail (C20)": {"detail": None},
    "null error": {"error": None, "id": "1", "model": "m"},
    "ping": {"type": "ping"},
    "progress": {"prompt_progress": {"total": 9}},
    "SGLang": {"choices": [], "sglext": {}},
    "usage": {"usage": None},
    "timings": {"timings": {}},
}


@pytest.mark.parametrize("payload", KNOWN_PAYLOADS.values(), ids=KNOWN_PAYLOADS)
def test_c2_known_payload_without_choices_is_no_error(payload):
    events, accumulator = accumulated(text_chunk("Hel"), payload, text_chunk("lo", "stop"))
    assert accumulator.reply().text == "Hello"
    assert [event.type for event in events] == ["message_start", "content_delta", "content_delta", "message_stop"]


def test_unknown_finish_reason_does_not_end_the_response():
    accumulator = Accumulator()
    accumulator.add(text_chunk("Hello", "because"))
    assert not accumulator.complete
    with pytest.raises(IncompleteStream, match="the finish reason 'because' is unknown"):
        accumulator.finish()
    assert accumulator.reply().finish_reason_raw == "because"


PIECES: dict[str, tuple[list[Any], tuple[str, str, str]]] = {
    "refusal as a part of content": ([{"delta": {"content": [{"type": "refusal", "refusal": "no"}]}}], ("", "", "no")),
    "refusal once more, and longer": (
        [{"delta": {"refusal": "I can"}}, {"message": {"refusal": "I cannot"}}],
        ("", "", "I cannot"),
    ),
}


@pytest.mark.parametrize(("choices", "expected"), PIECES.values(), ids=PIECES)
def test_every_piece_of_a_choice_is_taken_once(choices, expected):
    accumulator = Accumulator()
    events = [event for choice in choices for event in accumulator.add({"choices": [choice], "usage": {"n": 1}})]
    choice = accumulator.reply().choice
    assert (choice.text, choice.reasoning, choice.refusal) == expected
    assert {event.choice_index for event in events} == {0}
