"""No field of a response is lost: each is in an event, in the reply with its `raw`, or in a warning that names it."""

import contextlib
import copy
import dataclasses
import json
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from localchat.errors import LocalChatError
from localchat.reply.response import ResponseParser
from tests.support.clients import make_client
from tests.support.fuzz import pieces_of
from tests.support.growth import assert_linear
from tests.support.raw_responses import DONE, chunked, sse, with_length
from tests.support.raw_server import always

Path = tuple[Any, ...]

CALL: dict[str, Any] = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
LOGPROB = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [{"token": "b", "logprob": -1.5}]}
USAGE = {
    "prompt_tokens": 3,
    "completion_tokens": 2,
    "total_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 1},
    "completion_tokens_details": {"reasoning_tokens": 1},
}
MESSAGE: dict[str, Any] = {
    "role": "assistant",
    "reasoning": "Hm.",
    "reasoning_details": [{"type": "reasoning.text", "text": "Hm.", "signature": "s", "index": 0}],
    "content": "Hello",
    "refusal": "no",
    "annotations": [{"type": "url_citation", "url_citation": {"url": "http://a"}}],
    "audio": {"id": "audio_1", "data": "AAAA", "transcript": "Hello", "expires_at": 9},
    "tool_calls": [CALL],
    "extra_content": {"google": {"thought_signature": "t"}},
}
LABELS = {"id": "1", "object": "chat.completion.chunk", "created": 5, "model": "m", "system_fingerprint": "fp"}


def payload(delta: Any, **fields: Any) -> dict[str, Any]:
    return {**LABELS, "choices": [{"index": 0, "delta": delta, **fields}]}


# A stream and a complete response with every field that the client reads.
STREAM: list[dict[str, Any]] = [
    payload({"role": "assistant", "content": None}, finish_reason=None),
    *(payload({name: value}, logprobs=None) for name, value in MESSAGE.items() if name not in ("role", "reasoning")),
    payload({"content": [{"type": "text", "text": " and"}, {"type": "thinking", "thinking": [{"text": "Hm"}]}]}),
    payload({"content": "!"}, logprobs={"content": [LOGPROB]}),
    payload({}, finish_reason="tool_calls", stop_reason="##"),
    {**LABELS, "choices": [], "usage": USAGE, "timings": {"predicted_n": 2}},
]
RESPONSE = [{**LABELS, "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "tool_calls"}], "usage": USAGE}]
# A complete message after its deltas, and Ollama's format.
SUMMARY = [payload({"content": "Hello"}), {"choices": [{"message": MESSAGE, "finish_reason": "stop"}]}]
OLLAMA: list[dict[str, Any]] = [
    {"model": "m", "message": {"role": "assistant", "content": "Hi"}, "done": False},
    {"model": "m", "message": {"content": ""}, "done": True, "done_reason": "stop", "eval_count": 2},
]
RESPONSES = {"stream": STREAM, "response": RESPONSE, "message after deltas": SUMMARY, "Ollama": OLLAMA}

MARK = "a-value-that-is-looked-for"
UNKNOWN: list[Any] = [MARK, {"x": MARK}, [MARK], [{"x": MARK}]]


def objects(value: Any, path: Path = ()) -> Iterator[Path]:
    """The paths of all objects."""
    if isinstance(value, dict):
        yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from objects(item, (*path, key))


def changed(payloads: Any, path: Path, value: Any) -> Any:
    """The payloads with another value at the path."""
    payloads = copy.deepcopy(payloads)
    # A field outside of `choices` has one value in all payloads.
    for number in range(len(payloads)) if len(path) == 2 else [path[0]]:
        place = payloads[number]
        for key in path[1:-1]:
            place = place[key]
        place[path[-1]] = value
    return payloads


def body_of(payloads: list[Any]) -> bytes:
    return json.dumps(payloads[0]).encode() if len(payloads) == 1 else b"".join([*map(sse, payloads), DONE])


def text_of(value: Any) -> str:
    """All values of a reply or an event, with `raw`."""
    if dataclasses.is_dataclass(value):
        return " ".join(text_of(getattr(value, field.name)) for field in dataclasses.fields(value))
    return repr(value) if not isinstance(value, tuple) else " ".join(map(text_of, value))


def received(body: bytes, seed: int) -> tuple[list[Any], str]:
    """The events of a body, in random pieces, and all that the caller gets besides the payloads of events."""
    parser, events = ResponseParser(), []
    try:
        for piece in pieces_of(body, random.Random(seed)):
            events += [event for group in parser.feed(piece) for event in group]
        events += [event for group in parser.feed(b"", is_end=True) for event in group]
        events += [event for group in parser.finish() for event in group]
    except LocalChatError as error:
        return events, f"{error} {vars(error)} {text_of(parser.reply())}"
    return events, " ".join(text_of(dataclasses.replace(event, raw=None)) for event in events) + text_of(parser.reply())


@pytest.mark.parametrize("name", RESPONSES)
@pytest.mark.parametrize("value", [b"NaN", b"-1e999", b"[" * 900 + b"]" * 900], ids=["NaN", "infinity", "deep"])
def test_message_of_a_reply_can_be_sent_whatever_the_server_sent(name: str, value: bytes):
    for path in [path for path in objects(RESPONSES[name]) if path]:
        body = body_of(changed(RESPONSES[name], (*path, "new"), MARK)).replace(f'"{MARK}"'.encode(), value)
        parser = ResponseParser()
        with contextlib.suppress(LocalChatError):
            list(parser.feed(body, is_end=True))
            list(parser.finish())
        reply = parser.reply()
        if '"new": null' in json.dumps(reply.message, allow_nan=False):
            assert any("null is sent" in warning for warning in reply.warnings)


@pytest.mark.parametrize("name", RESPONSES)
def test_unknown_field_reaches_the_caller_from_every_object(name):
    payloads = RESPONSES[name]
    paths = [path for path in objects(payloads) if path]
    lost = []
    for number, path in enumerate(paths):
        for value in UNKNOWN:
            events, text = received(body_of(changed(payloads, (*path, "unknown_field"), value)), number)
            if MARK not in text or events[-1].type != "message_stop":
                lost.append((path, value))
    assert lost == []


# Fields at places where few servers have them, or that are read only without other fields.
RARE = ("usage", "error", "errors", "function_call", "index", "id", "type", "name", "thought", "message", "x_groq")
RARE_VALUES = [*UNKNOWN, {"status_code": 0, "x": MARK}, {"prompt_tokens": 0, "x": MARK}, {"content": None, "x": MARK}]


@pytest.mark.parametrize("name", RESPONSES)
def test_field_at_a_rare_place_reaches_the_caller(name):
    payloads = RESPONSES[name]
    lost = []
    for number, path in enumerate(path for path in objects(payloads) if path):
        place = payloads
        for key in path:
            place = place[key]
        for field in (field for field in RARE if field not in place):
            for value in RARE_VALUES:
                events, text = received(body_of(changed(payloads, (*path, field), value)), number)
                is_in_error = any(event.type == "error" and MARK in repr(event.raw) for event in events)
                if MARK not in text and not is_in_error:
                    lost.append((*path, field, value))
    assert lost == []


@pytest.mark.parametrize("name", RESPONSES)
def test_known_field_with_a_value_of_another_type_reaches_the_caller(name):
    payloads = RESPONSES[name]
    lost = []
    for number, path in enumerate(objects(payloads)):
        place = payloads
        for key in path:
            place = place[key]
        for field in place if path else ():
            for value in UNKNOWN:
                text = received(body_of(changed(payloads, (*path, field), value)), number)[1]
                if MARK not in text:
                    lost.append((*path, field, value))
    assert lost == []


def test_unknown_fields_reach_the_caller_of_both_clients(client_class):
    """In the reply of `chat`, whose caller sees no events."""
    for payloads in (STREAM, RESPONSE):
        marked = copy.deepcopy(payloads)
        paths = [path for path in objects(payloads) if path]
        for number, path in enumerate(paths):
            marked = changed(marked, (*path, f"unknown_{number}"), f"<{number}>")
        body = body_of(marked)
        raw = with_length(body) if len(payloads) == 1 else chunked(body)
        with always(raw) as server, make_client(server, client_class) as client:
            text = text_of(client.chat("hi"))
        assert [path for number, path in enumerate(paths) if f"<{number}>" not in text] == []


PIECES: dict[str, tuple[list[Any], Any]] = {
    "texts are concatenated": (["a", "a", "b"], "aab"),
    "lists, too": ([[1], [1, {"a": 2}]], [1, 1, {"a": 2}]),
    "objects are merged": (
        [{"a": "x", "n": None}, {"a": "y", "b": {"c": 1}}, {"n": 3}],
        {"a": "xy", "b": {"c": 1}, "n": 3},
    ),
    "of labels and numbers the last counts": ([{"id": "1", "n": 1}, {"id": "1", "n": 2}], {"id": "1", "n": 2}),
    "null is no value": (["a", None, "b"], "ab"),
    "values of different types": (["a", 1], ["a", 1]),
}


@pytest.mark.parametrize(("values", "joined"), PIECES.values(), ids=PIECES)
def test_unknown_field_of_deltas_is_joined_from_its_pieces(values, joined):
    body = b"".join(sse(payload({"content": "a", "other": value})) for value in values)
    parser = ResponseParser()
    for _ in parser.feed(body):
        pass
    assert parser.reply().raw["choices"] == [{"index": 0, "message": {"other": joined}}]


def test_message_has_the_whole_value_of_an_unknown_field_of_its_deltas():
    """Both if they are equal, and if they are not."""
    for whole in ("ab", "other"):
        message = {"choices": [{"message": {"content": "a", "other": whole, "none": None}, "finish_reason": "stop"}]}
        parser = ResponseParser()
        for _ in parser.feed(b"".join(map(sse, [payload({"other": "a"}), payload({"other": "b"}), message]))):
            pass
        assert parser.reply().raw["choices"] == [{"index": 0, "message": {"other": whole}}]


def test_fields_outside_of_deltas_have_their_last_value_that_is_not_null():
    """A list of a choice, such as the ids of its tokens, is that of all payloads."""
    parser = ResponseParser()
    chunks = [
        {"id": "", "model": "", "choices": [], "prompt_filter_results": [1]},
        {**payload({"content": "a"}, token_ids=[1], state="x"), "cost": 1, "time": 1},
        {**payload({"content": "b"}, token_ids=[1, 2], state="y"), "cost": None, "time": 2},
    ]
    for _ in parser.feed(b"".join(map(sse, chunks))):
        pass
    reply = parser.reply()
    assert (reply.id, reply.model, reply.text) == ("1", "m", "ab")
    assert (reply.raw["cost"], reply.raw["time"]) == (1, 2)
    assert (reply.raw["cost"], reply.raw["prompt_filter_results"], reply.raw["id"]) == (1, [1], "1")
    assert reply.raw["choices"] == [{"index": 0, "token_ids": [1, 1, 2], "state": "y"}]


def test_time_for_kept_fields_is_linear():
    def seconds(n: int) -> float:
        pieces = [
            payload({"reasoning_details": [{"type": "t", "text": "x" * 20}], "other": "y" * 20}) for _ in range(n)
        ]
        body, parser = b"".join(map(sse, pieces)), ResponseParser()
        start = time.process_time()
        for _ in parser.feed(body):
            pass
        assert len(parser.reply().raw["choices"][0]["message"]["other"]) == 20 * n
        return time.process_time() - start

    assert_linear(seconds, 100, 20, 0.001)
