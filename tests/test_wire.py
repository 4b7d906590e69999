"""Requests, payloads, and the corpus of dialects: every server's stream as recorded bytes."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from localchat.assembly import Accumulator
from localchat.call import CallState
from localchat.client import _read_events
from localchat.errors import IncompleteStream, LocalChatError, ProtocolError, StreamError
from localchat.events import StreamEvent, Usage
from localchat.frames import parse_frame
from localchat.model_list import parse_models
from localchat.payloads import build_request, normal_reason, parse_error
from localchat.settings import Settings
from localchat.think_tags import ThinkSplitter
from localchat.timeouts import Timeout

DIALECTS = Path(__file__).parent / "data" / "dialects"
NAMES = sorted(path.stem for path in DIALECTS.glob("*.json"))


# The corpus


class Recorded(CallState):
    """Stands where the connection is: hands out recorded bytes in the given pieces."""

    def __init__(self, pieces: Iterable[bytes], content_type: str) -> None:
        super().__init__(Settings(model="m", api_key=""), Timeout(), 0)
        self._pieces = iter(pieces)
        self.headers = {"content-type": content_type}

    def read(self) -> bytes:
        piece = next(self._pieces, b"")
        self.ended = not piece
        return piece

    def drain(self) -> None:
        """Nothing follows."""


def play(name: str, pieces: Iterable[bytes]) -> tuple[list[list[Any]], Accumulator]:
    """The events of a recording in the notation of its .json file."""
    options = recorded(name)[1].get("options", {})
    accumulator = Accumulator(options.get("n", 1), options.get("think_tags", "auto"))
    call: Any = Recorded(pieces, options.get("content_type", "text/event-stream"))
    shown = []
    try:
        for event in _read_events(call, accumulator):
            shown.append(show(event))
    except LocalChatError as error:
        shown.append(["raises", type(error).__name__])
    return shown, accumulator


def recorded(name: str) -> tuple[bytes, dict[str, Any]]:
    raw = (DIALECTS / f"{name}.stream").read_bytes()
    return raw, json.loads((DIALECTS / f"{name}.json").read_text(encoding="utf-8"))


def show(event: StreamEvent) -> list[Any]:
    """One event as a short list: kind, what it holds, and the choice if it is not the first.

    A call that cannot be read shows its text in place of its arguments; made-up ids show as call_*.
    """
    index = [event.choice_index] if event.choice_index else []
    if event.type == "message_start":
        return ["start", event.id, event.model]
    if event.type in ("content_delta", "reasoning_delta", "refusal_delta"):
        return [event.type.partition("_")[0], event.delta, *index]
    if event.type == "tool_call_delta":
        return ["call_delta", event.index, event.id, event.name, event.delta, *index]
    if event.type == "tool_call":
        assert (event.arguments is None) == (event.error is not None)
        id = "call_*" if len(event.id) == len("call_") + 24 else event.id
        extra = [event.extra] if event.extra else []
        return ["call", id, event.name, event.arguments_json if event.error else event.arguments, *extra, *index]
    if event.type == "logprobs":
        return ["logprobs", "".join(item["token"] for item in event.items), *index]
    if event.type == "usage":
        usage = event.usage
        counts = [usage.input_tokens, usage.output_tokens, usage.total_tokens]
        return ["usage", *counts, usage.cached_tokens, usage.reasoning_tokens]
    if event.type == "message_stop":
        return ["stop", event.reason, event.reason_raw, event.inferred, *index]
    return [event.type, event.text if event.type == "warning" else event.message, *index]


def in_pieces(raw: bytes, seed: int) -> Iterator[bytes]:
    chance = random.Random(seed)
    while raw:
        size = chance.randrange(1, 60)
        yield raw[:size]
        raw = raw[size:]


@pytest.mark.parametrize("name", NAMES)
def test_dialect(name):
    """Its events, whatever the chunks are; the reply is their sum."""
    raw, expected = recorded(name)
    shown, accumulator = play(name, [raw])
    assert shown == expected["events"], expected["about"]
    assert play(name, (raw[i : i + 1] for i in range(len(raw))))[0] == expected["events"]
    for seed in range(10):
        assert play(name, in_pieces(raw, seed))[0] == expected["events"], seed
    check_reply(name, accumulator.reply(), expected["events"])


def check_reply(name, reply, events):
    if name == "think-stray":
        assert (reply.reasoning, reply.text) == ("hm\n", "42")
        return
    for choice in reply.choices:
        index = [choice.index] if choice.index else []
        for kind, told in (("content", choice.text), ("reasoning", choice.reasoning)):
            assert told == "".join(event[1] for event in events if event[0] == kind and event[2:] == index)
    calls = [event[2] for event in events if event[0] == "call"]
    assert [call.name for call in reply.tool_calls] == calls or events[-1][0] == "raises"


@pytest.mark.parametrize("name", NAMES)
def test_dialect_cut_anywhere_is_never_another_answer(name):
    """What a cut stream gives is a prefix of the whole, and then an error unless nothing was missing."""
    raw, expected = recorded(name)
    whole = expected["events"]
    full = play(name, [raw])[1].reply()
    for end in random.Random(name).sample(range(len(raw)), min(40, len(raw))):
        shown, accumulator = play(name, [raw[:end]])
        if shown and shown[-1][0] == "stop":
            assert accumulator.reply().text == full.text
            continue
        assert shown[-1][0] == "raises", end
        told = [event for event in shown[:-1] if event[0] != "warning"]
        assert told == [event for event in whole if event[0] != "warning"][: len(told)], end


# Requests


def test_request_from_text():
    assert build_request("hi") == {
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_request_from_messages_leaves_them_alone():
    messages = [{"role": "user", "content": "hi"}]
    body = build_request(messages, model="m", system="s")
    assert body["messages"] == [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]
    assert messages == [{"role": "user", "content": "hi"}]


OPTIONS = {
    "unknown-passes": ({"min_p": 0.1, "grammar": "root ::= x"}, {"min_p": 0.1, "grammar": "root ::= x"}),
    "none-is-not-set": ({"seed": None, "temperature": 0}, {"temperature": 0}),
    "no-tools-c5": ({"tools": [], "tool_choice": "auto"}, {}),
    "required-without-tools-is-sent": ({"tool_choice": "required"}, {"tool_choice": "required"}),
    "extra-body-is-the-body": (
        {"extra_body": {"min_p": 0.1, "seed": None}, "top_k": 5},
        {"top_k": 5, "min_p": 0.1},
    ),
    "tools": (
        {"tools": [{"type": "function"}], "tool_choice": "auto"},
        {"tools": [{"type": "function"}], "tool_choice": "auto"},
    ),
}


@pytest.mark.parametrize(("options", "members"), OPTIONS.values(), ids=OPTIONS)
def test_request_options(options, members):
    body = build_request("hi", options={**options, "extra_body": {**options.get("extra_body", {}), "stream": False}})
    assert body == {"messages": body["messages"], **members, "stream": False}


def test_function_as_a_tool_is_sent_to_run():
    """It is no JSON, and only `run` would call it."""
    with pytest.raises(TypeError, match=r"functions as tools go to run\(\)"):
        build_request("hi", options={"tools": [{"type": "function"}, print]})


def test_messages_are_no_option():
    """They would take the place of the prompt."""
    with pytest.raises(ValueError, match="messages are the first argument"):
        build_request("hi", options={"messages": []})


@pytest.mark.parametrize(
    ("given", "sent"),
    [({"include_usage": False}, {"include_usage": False}), ({}, None), (None, {"include_usage": True})],
    ids=["own", "empty", "none"],
)
def test_request_stream_options(given, sent):
    assert build_request("hi", options={"stream_options": given}).get("stream_options") == sent


# Payloads


FRAMES = {
    "chunk": ("message", '{"a": 1}', {"a": 1}),
    "done": ("message", "[DONE]", True),
    "done-with-blanks": ("message", " [DONE]\r", True),
    "blank": ("message", "  ", None),
    "wrapped-comment": ("message", ": PROCESSING", None),
    "error-event": ("error", '{"message": "m"}', {"error": {"message": "m"}}),
    "error-event-with-error": ("error", '{"error": "m"}', {"error": "m"}),
    "error-event-text": ("error", "oh no", {"error": "oh no"}),
    "error-event-empty-object": ("error", "{}", {"error": "{}"}),
    "other-event": ("progress", '{"a": 1}', None),
    "other-event-text": ("progress", "oh no", None),
    "other-event-list": ("progress", "[]", None),
    "other-event-with-choices": ("progress", '{"choices": []}', {"choices": []}),
    "other-event-with-error": ("progress", '{"error": "m"}', {"error": "m"}),
}


@pytest.mark.parametrize(("event", "data", "payload"), FRAMES.values(), ids=FRAMES)
def test_parse_frame(event, data, payload):
    assert parse_frame(event, data) == payload


@pytest.mark.parametrize("data", ["oops", "[1]", '"text"', "null", '{"a":', "[" * 100_000], ids=lambda data: data[:9])
def test_parse_frame_that_is_no_object(data):
    with pytest.raises(ProtocolError) as caught:
        parse_frame("message", data)
    assert caught.value.head == (data if len(data) < 200 else data[:200] + "...")


ERROR_BODIES = {
    "openai": ('{"error": {"message": "m", "type": "t", "param": "p", "code": "c"}}', ("m", "t", "c", "p")),
    "numeric-code": ('{"error": {"message": "m", "code": 400}}', ("m", None, "400", None)),
    "text": ('{"error": "m"}', ("m", None, None, None)),
    "text-and-type": ('{"error": "m", "type": "t"}', ("m", "t", None, None)),
    "error-and-message": ('{"error": {"type": "t"}, "message": "m"}', ("m", "t", None, None)),
    "flat": ('{"object": "error", "message": "m", "type": "t", "code": 40}', ("m", "t", "40", None)),
    "detail": ('{"detail": "m"}', ("m", None, None, None)),
    "detail-list": (
        '{"detail": [{"loc": ["body", "n"], "msg": "too big", "type": "v"}, {"msg": "odd"}]}',
        ("body.n: too big; odd", None, None, None),
    ),
    "detail-of-one": ('{"detail": [{"loc": 5, "msg": "x"}]}', ("5: x", None, None, None)),
    "message": ('{"message": "m"}', ("m", None, None, None)),
    "list": ('[{"error": {"message": "m", "code": 400}}]', ("m", None, "400", None)),
    "plain": ("Bad Gateway\n", ("Bad Gateway", None, None, None)),
    "html": ("<html>\n<h1>502</h1></html>", ("<html> <h1>502</h1></html>", None, None, None)),
    "empty": ("", ("no reason given", None, None, None)),
    "json-text": ('"m"', ("m", None, None, None)),
    "strange": ('{"error": {"x": 1}}', ('{"error": {"x": 1}}', None, None, None)),
    "null": ("null", ("null", None, None, None)),
    "number": ('{"error": 5}', ("5", None, None, None)),
    "long": ("x" * 500, ("x" * 200 + "...", None, None, None)),
}


@pytest.mark.parametrize(("body", "expected"), ERROR_BODIES.values(), ids=ERROR_BODIES)
def test_parse_error_k27(body, expected):
    error = parse_error(body)
    assert (error.message, error.error_type, error.code, error.param) == expected


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"data": [{"id": "a"}, {"id": "b"}]}, ["a", "b"]),
        ({"models": [{"name": "a", "model": "a"}]}, ["a"]),
        ([{"id": "a"}, "b", 3], ["a", "b"]),
        ({"data": []}, []),
    ],
    ids=["openai", "ollama", "bare", "empty"],
)
def test_parse_models(body, names):
    assert parse_models(body) == names


@pytest.mark.parametrize("body", [{}, {"data": None}, "text", 5], ids=str)
def test_parse_models_that_is_no_list(body):
    with pytest.raises(ProtocolError):
        parse_models(body)


REASONS = {
    "stop": "stop eos EOS_TOKEN end_turn STOP COMPLETE",
    "length": "length MAX_TOKENS model_length",
    "tool_calls": "tool_calls tool_use function_call",
    "content_filter": "content_filter SAFETY refusal",
    "error": "error network_error abort",
}


@pytest.mark.parametrize(("reason", "words"), REASONS.items(), ids=REASONS)
def test_normal_reason_k7(reason, words):
    assert {normal_reason(word) for word in words.split()} == {reason}
    assert normal_reason("because") is None


USAGES = {
    "openai": ({"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}, Usage(1, 2, 3)),
    "derived-total": ({"prompt_tokens": 1, "completion_tokens": 2}, Usage(1, 2, 3)),
    "aliases": ({"input_tokens": 1, "output_tokens": 2}, Usage(1, 2, 3)),
    "zero-hides-nothing": ({"prompt_tokens": 0, "input_tokens": 4, "output_tokens": 2}, Usage(4, 2, 6)),
    "cached-zero-is-known": (
        {"prompt_tokens": 1, "total_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}},
        Usage(1, 0, 1, 0),
    ),
    "cached-null-details": ({"prompt_tokens": 1, "total_tokens": 1, "prompt_tokens_details": None}, Usage(1, 0, 1)),
    "anthropic-cache": ({"input_tokens": 1, "cache_read_input_tokens": 9}, Usage(1, 0, 1, 9)),
    "text-and-floats": ({"prompt_tokens": "1", "completion_tokens": 2.0}, Usage(1, 2, 3)),
    "nan": ({"prompt_tokens": float("nan"), "completion_tokens": 2}, Usage(0, 2, 2)),
    "infinity": ({"prompt_tokens": float("inf"), "completion_tokens": 2}, Usage(0, 2, 2)),
    "bool": ({"prompt_tokens": True, "completion_tokens": 2}, Usage(0, 2, 2)),
}


@pytest.mark.parametrize(("raw", "usage"), USAGES.values(), ids=USAGES)
def test_usage_c15(raw, usage):
    accumulator = Accumulator()
    accumulator.add({"choices": [], "usage": raw})
    assert accumulator.reply().usage == usage


# The accumulator by itself


def test_accumulator_needs_no_transport():
    accumulator = Accumulator()
    events = accumulator.add({"choices": [{"delta": {"content": "Hi"}, "finish_reason": "stop"}]})
    events += accumulator.finish()
    assert [event.type for event in events] == ["message_start", "content_delta", "message_stop"]
    assert accumulator.reply().text == "Hi"
    assert accumulator.finish() == []


def test_accumulator_raises_what_the_server_reported():
    accumulator = Accumulator()
    accumulator.add({"choices": [{"delta": {"content": "Hi"}}]})
    accumulator.add({"error": {"message": "bad luck", "code": "c", "type": "t"}})
    with pytest.raises(StreamError, match="bad luck") as caught:
        accumulator.finish(done=True)
    assert (caught.value.code, caught.value.error_type) == ("c", "t")
    assert caught.value.partial is not None
    assert caught.value.partial.text == "Hi"


def test_missing_choice_is_incomplete():
    accumulator = Accumulator(n=2)
    accumulator.add({"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}]})
    with pytest.raises(IncompleteStream):
        accumulator.finish()


def speaking(text: str, finish: str | None = None, index: int = 0) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": {"content": text}, "finish_reason": finish}]}


def test_finish_reason_with_every_piece_proves_no_end():
    """Some servers say stop from the first piece on: only [DONE] ends such an answer, and the last reason holds."""
    accumulator = Accumulator()
    for text, finish in (("You may delete it", "stop"), (" only after", "stop"), (" a", "length")):
        accumulator.add(speaking(text, finish))
    assert not accumulator.complete
    with pytest.raises(IncompleteStream, match="text after its finish reason"):
        accumulator.finish()
    assert accumulated(speaking("a", "stop"), speaking("b", "length"))[1].reply().finish_reason == "length"


def test_choice_that_opens_late_is_waited_for():
    accumulator = Accumulator()
    accumulator.add(speaking("one", "stop"))
    assert accumulator.complete
    accumulator.add(speaking("tw", index=1))
    assert not accumulator.complete
    with pytest.raises(IncompleteStream):
        accumulator.finish()


@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_call_that_is_cut_before_its_arguments_has_none(finish):
    """To run it with the defaults of its function would not be what the model was about to say."""
    calls = [{"index": i, "id": f"c{i}", "function": {"name": "clean", "arguments": ""}} for i in range(2)]
    chunk = {"choices": [{"delta": {"tool_calls": calls}, "finish_reason": finish}]}
    first, second = accumulated(chunk)[1].reply().tool_calls
    assert (first.arguments, first.error) == ({}, None)
    assert (second.arguments, second.error) == (None, "the answer was cut before the arguments")


def test_calls_of_a_whole_message_that_are_all_numbered_alike():
    calls = [{"index": 0, "id": id, "function": {"name": "roll", "arguments": "{}"}} for id in "ab"]
    chunk = {"choices": [{"message": {"tool_calls": calls}, "finish_reason": "tool_calls"}]}
    assert [call.id for call in accumulated(chunk)[1].reply().tool_calls] == ["a", "b"]


def accumulated(*chunks: dict[str, Any], n: int = 1) -> tuple[list[StreamEvent], Accumulator]:
    accumulator = Accumulator(n)
    events = [event for chunk in chunks for event in accumulator.add(chunk)]
    return events + accumulator.finish(done=True), accumulator


def test_answers_fewer_than_asked_for_are_reported():
    events, accumulator = accumulated({"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}, n=2)
    assert [event.type for event in events][-2:] == ["warning", "message_stop"]
    assert accumulator.reply().warnings == ("the server gave 1 of the 2 answers that were asked for",)


def test_choices_without_index_are_told_apart_by_their_place():
    choices = [{"message": {"content": text}, "finish_reason": "stop"} for text in ("one", "two")]
    assert [choice.text for choice in accumulated({"choices": choices}, n=2)[1].reply().choices] == ["one", "two"]


def test_whole_message_after_deltas_may_leave_out_the_thoughts():
    pieces = [{"choices": [{"delta": {"content": text}}]} for text in ("<think>hm</think>", "Hel", "lo")]
    whole = {"choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}]}
    reply = accumulated(*pieces, whole)[1].reply()
    assert (reply.text, reply.reasoning) == ("Hello", "hm")


@pytest.mark.parametrize("follower", [{"reasoning": "hm"}, {"content": [{"type": "thinking", "thinking": "hm"}]}])
def test_text_held_back_for_a_tag_stays_before_what_follows(follower):
    deltas: list[dict[str, Any]] = [{"content": "a <"}, follower, {"content": "b"}]
    events, accumulator = accumulated(*({"choices": [{"delta": delta}]} for delta in deltas))
    assert accumulator.reply().text == "a <b"
    assert [event.delta for event in events if event.type.endswith("_delta")] == ["a ", "<", "hm", "b"]


def test_logprobs_of_completions_have_the_form_of_chats():
    logprobs = {"tokens": ["a", "b"], "token_logprobs": [None, -0.5], "top_logprobs": [None, {"b": -0.5, "c": -1.0}]}
    reply = accumulated({"choices": [{"text": "ab", "logprobs": logprobs, "finish_reason": "stop"}]})[1].reply()
    first, second = reply.choice.logprobs
    assert first == {"token": "a", "logprob": None, "bytes": None, "top_logprobs": []}
    assert (second["token"], second["logprob"]) == ("b", -0.5)
    assert second["top_logprobs"] == [{"token": "b", "logprob": -0.5}, {"token": "c", "logprob": -1.0}]


def test_reply_keeps_members_of_servers():
    accumulator = Accumulator()
    accumulator.add({"id": "1", "timings": {"n": 1}, "choices": [{"delta": {"content": "Hi"}}]})
    accumulator.add({"id": "1", "choices": [{"delta": {}, "finish_reason": "stop", "stop_reason": "##"}]})
    reply = accumulator.reply()
    assert reply.raw == {"id": "1", "timings": {"n": 1}}
    assert reply.choice.stop_reason == "##"


def test_reply_keeps_the_whole_of_an_answer_that_was_no_stream():
    message = {"content": None, "audio": {"transcript": "Hello"}}
    whole = {"id": "1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    assert accumulated(whole)[1].reply().raw == whole


def test_reply_knows_where_reasoning_came_from():
    accumulator = Accumulator()
    accumulator.add({"choices": [{"delta": {"reasoning": "hm"}}]})
    assert accumulator.reply().choice.reasoning_field == "reasoning"


def test_reply_of_a_stream_under_way_has_no_finish():
    accumulator = Accumulator()
    accumulator.add({"choices": [{"delta": {"tool_calls": [{"function": {"name": "f", "arguments": '{"a'}}]}}]})
    reply = accumulator.reply()
    assert reply.finish_reason is None
    assert reply.tool_calls[0].status == "failed"


def test_partial_of_a_cut_answer_has_no_finish_reason():
    accumulator = Accumulator()
    accumulator.add({"choices": [{"delta": {"content": "Hi"}}]})
    with pytest.raises(IncompleteStream) as caught:
        accumulator.finish()
    assert caught.value.partial is not None
    assert (caught.value.partial.text, caught.value.partial.finish_reason) == ("Hi", None)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_does_not_have_are_no_arguments(number):
    """Python reads them, but the server that they go back to does not."""
    accumulator = Accumulator()
    accumulator.add(tool_delta({"index": 0, "function": {"name": "f", "arguments": f'{{"a": {number}}}'}}))
    call = accumulator.reply().tool_calls[0]
    assert (call.arguments, call.member["function"]["arguments"]) == (None, "{}")
    assert f"{number} is no number of JSON" in (call.error or "")


def test_id_of_a_call_is_stable_and_a_late_one_is_taken():
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


STRANGE = [None, 1, "x", [], {}, [None], [1], {"a": 1}, True, -1, 1e308, "\ud800"]


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_strange_payloads_raise_only_our_errors(first):
    for seed in range(first, first + 100):
        check_strange_payloads(random.Random(seed))


def check_strange_payloads(chance: random.Random):

    def strange(depth: int) -> Any:
        names = ["choices", "delta", "message", "content", "index", "finish_reason", "tool_calls", "function"]
        names += ["name", "arguments", "id", "usage", "error", "function_call", "logprobs", "x_groq", "thought"]
        names += ["reasoning", "reasoning_details", "text", "done", "prompt_tokens", "total_tokens", "detail"]
        if depth == 0 or chance.random() < 0.2:
            return chance.choice(STRANGE)
        if chance.random() < 0.3:
            return [strange(depth - 1) for _ in range(chance.randrange(3))]
        return {chance.choice(names): strange(depth - 1) for _ in range(4)}

    accumulator = Accumulator()
    for _ in range(20):
        choice = {"delta": strange(3), "message": strange(3), "finish_reason": strange(1), "index": strange(0)}
        accumulator.add({"choices": [choice], "usage": strange(2), "error": None})
        payload = strange(5)
        if isinstance(payload, dict):
            accumulator.add(payload)
    try:
        accumulator.finish(done=True)
    except LocalChatError:
        assert accumulator.reply() is not None


# <think>


SPLITS = {
    "tag-first": ("auto", "<think>a</think>b", "a", "b"),
    "blank-first": ("auto", " \n<think>\na\n</think>\n\nb", "a\n", "b"),
    "no-tag": ("auto", "b", "", "b"),
    "tag-later": ("auto", "b <think>a</think>", "", "b <think>a</think>"),
    "not-a-tag": ("auto", "<thin b", "", "<thin b"),
    "open-only": ("auto", "<think>a", "a", ""),
    "half-a-tag-at-the-end": ("auto", "b<think", "", "b<think"),
    "half-a-closing-tag-at-the-end": ("auto", "<think>a</thi", "a</thi", ""),
    "second-thought-stays": ("auto", "<think>a</think>b<think>c</think>", "a", "b<think>c</think>"),
    "other-tag": ("auto", "<thought>a</thought>b", "a", "b"),
    "tags-do-not-mix": ("auto", "<thought>a</think>b", "a</think>b", ""),
    "stray-on-its-line": ("auto", "a\n</think>\nb", "a\n", "b"),
    "stray-at-line-end": ("auto", "a.</think>\n\nb", "a.", "b"),
    "stray-first": ("auto", "</think>\nb", "", "b"),
    "closing-in-a-sentence": ("auto", "use `</think>` here", "", "use `</think>` here"),
    "closing-at-the-very-end": ("auto", "ends with </think>", "", "ends with </think>"),
    "prefilled": ("prefilled", "a</think>b", "a", "b"),
    "prefilled-and-opened-again": ("prefilled", "<think>a</think>b", "a", "b"),
    "prefilled-never-closed": ("prefilled", "a", "a", ""),
    "prefilled-half-a-tag": ("prefilled", "<thi", "<thi", ""),
    "off": ("off", "<think>a</think>b", "", "<think>a</think>b"),
    "blank-only": ("auto", "  ", "", "  "),
    "empty": ("auto", "", "", ""),
}


@pytest.mark.parametrize(("mode", "text", "reasoning", "content"), SPLITS.values(), ids=SPLITS)
def test_think_splitter(mode, text, reasoning, content):
    """Whole, by characters, and at every cut in two."""
    for pieces in [[text], list(text)] + [[text[:i], text[i:]] for i in range(len(text))]:
        accumulator = Accumulator(think_tags=mode)
        for piece in pieces:
            accumulator.add({"choices": [{"delta": {"content": piece}}]})
        accumulator.add({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        accumulator.finish()
        assert (accumulator.reply().reasoning, accumulator.reply().text) == (reasoning, content), pieces


def test_think_splitter_holds_back_no_more_than_a_tag():
    splitter = ThinkSplitter()
    sent = "<think>" + "a<b" * 50
    out = "".join(text for character in sent for _, text in splitter.feed(character))
    assert len(sent) - len("<think>") - len(out) <= len("</think>") - 1


def test_think_splitter_has_three_modes():
    with pytest.raises(ValueError, match="think_tags must be one of auto, prefilled, off"):
        Accumulator(think_tags="yes")


@pytest.mark.parametrize(("mode", "content"), [("prefilled", "42"), ("auto", "<think>42")])
def test_answer_that_ends_inside_think_keeps_its_text_and_is_reported(mode, content):
    accumulator = Accumulator(think_tags=mode)
    accumulator.add({"choices": [{"delta": {"content": content}, "finish_reason": "stop"}]})
    warnings = [event.text for event in accumulator.finish() if event.type == "warning"]
    assert warnings == ["the answer ends inside <think>: what may be its text is in the reasoning"]
    assert (accumulator.reply().text, accumulator.reply().reasoning) == ("", "42")


PIECES_OF_A_SMILE = ["Hi \ud83d", "\ude00!", "lone \ud83d"]


@pytest.mark.parametrize("field", ["content", "reasoning", "refusal"])
def test_halves_of_a_character_are_joined_and_lone_ones_replaced(field):
    events, accumulator = accumulated(
        *({"choices": [{"delta": {field: text}}]} for text in PIECES_OF_A_SMILE),
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    )
    told = [event.delta for event in events if event.type.startswith(field)]
    assert told == ["Hi ", "\N{GRINNING FACE}!", "lone ", "\ufffd"]
    choice = accumulator.reply().choices[0]
    assert "".join(told) == {"content": choice.text, "reasoning": choice.reasoning, "refusal": choice.refusal}[field]
    assert accumulator.reply().warnings == ("a half of a character came without the other; it is replaced by U+FFFD",)


def test_halves_of_a_character_in_arguments_are_joined():
    pieces = ['{"q": "', *PIECES_OF_A_SMILE[:2], '"}']
    deltas = [tool_delta({"index": 0, "id": "a", "function": {"name": "f", "arguments": text}}) for text in pieces]
    accumulator = Accumulator()
    for delta in deltas:
        accumulator.add(delta)
        accumulator.reply()  # To look at what there is so far changes nothing.
    assert accumulator.reply().tool_calls[0].arguments == {"q": "Hi \N{GRINNING FACE}!"}


@pytest.mark.parametrize("late", [False, True])
def test_flat_error_is_an_error_wherever_it_comes(late):
    accumulator = Accumulator()
    if late:
        accumulator.add(speaking("Hel"))
    accumulator.add({"object": "error", "message": "out of memory", "code": 500})
    with pytest.raises(StreamError, match="out of memory"):
        accumulator.finish(done=True)


def test_unknown_finish_reason_proves_no_end():
    accumulator = Accumulator()
    accumulator.add(speaking("Hello", "because"))
    assert not accumulator.complete
    with pytest.raises(IncompleteStream, match="with an unknown finish reason and without"):
        accumulator.finish()
    assert accumulator.reply().finish_reason_raw == "because"


def test_many_different_warnings_take_linear_time():
    accumulator, start = Accumulator(), time.perf_counter()
    for number in range(30_000):
        accumulator.add({"choices": [{"delta": {"content": [{"type": f"image-{number}"}]}}]})
    assert len(accumulator.reply().warnings) == 30_000
    assert time.perf_counter() - start < 5
