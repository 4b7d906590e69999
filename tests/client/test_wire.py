"""Requests, payloads, and the corpus of dialects: recorded streams of many servers."""

import contextlib
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from localchat.errors import IncompleteStream, LocalChatError, ProtocolError
from localchat.events import StreamEvent, Usage
from localchat.reply.assembly import Accumulator
from localchat.reply.finish_reason import normal_reason
from localchat.reply.frames import parse_frame
from localchat.reply.reported_errors import parse_error
from localchat.reply.response import ResponseParser
from localchat.request.completion import CompletionRequest
from localchat.request.models import parse_models
from localchat.transport.settings import Settings
from tests.support.fuzz import pieces_of, replace_value

DIALECTS = Path(__file__).parents[1] / "data" / "dialects"
NAMES = sorted(path.stem for path in DIALECTS.glob("*.json"))


def play(name: str, pieces: Iterable[bytes]) -> tuple[list[list[Any]], ResponseParser]:
    """The events of a recording in the notation of its .json file."""
    options = recorded(name)[1].get("options", {})
    parser = ResponseParser(
        options.get("content_type", "text/event-stream"), options.get("n", 1), options.get("think_tags", "auto")
    )
    shown: list[list[Any]] = []
    pieces = iter(pieces)
    try:
        while not parser.is_over:
            piece = next(pieces, None)
            for events in parser.feed(piece or b"", is_end=piece is None):
                shown.extend(map(show, events))
            if piece is None:
                break
        for events in parser.finish():
            shown.extend(map(show, events))
    except LocalChatError as error:
        shown.extend(map(show, parser.flush()))
        shown.append(["raises", type(error).__name__])
    return shown, parser


def recorded(name: str) -> tuple[bytes, dict[str, Any]]:
    raw = (DIALECTS / f"{name}.stream").read_bytes()
    return raw, json.loads((DIALECTS / f"{name}.json").read_text(encoding="utf-8"))


# For most types of events the name in the notation, and the fields.
SHOWN: dict[str, tuple[str, ...]] = {
    "message_start": ("start", "id", "model"),
    **{f"{kind}_delta": (kind, "delta") for kind in ("content", "reasoning", "refusal")},
    "tool_call_delta": ("call_delta", "index", "id", "name", "delta"),
    "message_stop": ("stop", "reason", "reason_raw", "inferred"),
    "warning": ("warning", "text"),
    "error": ("error", "message"),
}


def show(event: StreamEvent) -> list[Any]:
    """An event as a list: kind, values, and the index of the choice if it is not the first.

    A call with an error has its text in place of its arguments; an id that the client made is shown as call_*.
    """
    index = [event.choice_index] if event.choice_index else []
    if event.type in SHOWN:
        kind, *names = SHOWN[event.type]
        return [kind, *(getattr(event, name) for name in names), *index]
    if event.type == "tool_call":
        assert (event.arguments is None) == (event.error is not None)
        id = "call_*" if len(event.id) == len("call_") + 24 else event.id
        extra = [event.extra] if event.extra else []
        return ["call", id, event.name, event.arguments_json if event.error else event.arguments, *extra, *index]
    if event.type == "logprobs":
        return ["logprobs", "".join(str(item["token"]) for item in event.items if "token" in item), *index]
    if event.type == "annotations":
        return ["annotations", *event.items, *index]
    usage = event.usage
    counts = [usage.input_tokens, usage.output_tokens, usage.total_tokens]
    return ["usage", *counts, usage.cached_tokens, usage.reasoning_tokens]


@pytest.mark.parametrize("name", NAMES)
def test_dialect(name):
    """The events do not depend on the chunks, and the reply is the sum of the events."""
    raw, expected = recorded(name)
    shown, parser = play(name, [raw])
    assert shown == expected["events"], expected["about"]
    assert play(name, (raw[i : i + 1] for i in range(len(raw))))[0] == expected["events"]
    for seed in range(5):
        assert play(name, pieces_of(raw, random.Random(seed)))[0] == expected["events"], seed
    reply, events = parser.reply(), expected["events"]
    for choice in reply.choices:
        index = [choice.index] if choice.index else []
        for kind, text in (("content", choice.text), ("reasoning", choice.reasoning)):
            assert text == "".join(event[1] for event in events if event[0] == kind and event[2:] == index)
    calls = [event[2] for event in events if event[0] == "call"]
    assert [call.name for call in reply.tool_calls] == calls or events[-1][0] == "raises"


@pytest.mark.parametrize("name", NAMES)
def test_dialect_that_is_cut_gives_a_prefix_and_an_error(name):
    """The events of a cut stream are a prefix of all events, then an error, unless only [DONE] is missing."""
    raw, expected = recorded(name)
    full = play(name, [raw])[1].reply()
    for end in random.Random(name).sample(range(len(raw)), min(20, len(raw))):
        shown, parser = play(name, [raw[:end]])
        if shown and shown[-1][0] == "stop":
            assert parser.reply().text == full.text
            continue
        assert shown[-1][0] == "raises", end
        without_warnings = [event for event in shown[:-1] if event[0] != "warning"]
        kind, text = without_warnings[-1][:2] if without_warnings else ("", "")
        if kind in ("content", "reasoning") and any(tag.startswith(text) for tag in ("<think>", "</think>")):
            del without_warnings[-1]  # The beginning of a tag is text in a response that ends there.
        expected_events = [event for event in expected["events"] if event[0] != "warning"]
        assert without_warnings == expected_events[: len(without_warnings)], end


VALUES = [None, True, 0, -1, 1e400, "", " ", "x", [], {}, [None], {"a": 1}, "<think>", "</think>", '{"a":']


def change_bytes(raw: bytes, chance: random.Random) -> bytes:
    changed = bytearray(raw)
    for _ in range(chance.randrange(1, 4) if raw else 0):
        changed[chance.randrange(len(changed))] = chance.choice([0, 10, 13, 34, 58, 92, 123, 125, 255])
    return bytes(changed)


def change_events(raw: bytes, chance: random.Random) -> bytes:
    """Delete or repeat an event, insert one of another recording, or change the order."""
    events = raw.split(b"\n\n")
    for _ in range(chance.randrange(1, 4)):
        place, others = chance.randrange(len(events)), recorded(chance.choice(NAMES))[0].split(b"\n\n")
        events[place:place] = chance.choice([[], [chance.choice(events)], [chance.choice(others)]])
        if chance.random() < 0.3 and len(events) > 1:
            del events[place]
        if chance.random() < 0.3:
            chance.shuffle(events)
    return b"\n\n".join(events)


def change_values(raw: bytes, chance: random.Random) -> bytes:
    lines = raw.split(b"\n")
    for _ in range(chance.randrange(1, 3)):
        place = chance.randrange(len(lines))
        head, brace, rest = lines[place].partition(b"{")
        with contextlib.suppress(ValueError):
            payload = json.loads(brace + rest)
            replace_value(payload, chance, VALUES)
            lines[place] = head + json.dumps(payload).encode()
    return b"\n".join(lines)


def test_damaged_recordings_end_with_a_stop_or_an_error():
    """Only errors of the client are raised, and the events do not depend on the chunks."""
    changes = [change_bytes, change_events, change_values, lambda raw, chance: raw[: chance.randrange(len(raw) + 1)]]
    for seed in range(500):
        chance = random.Random(seed)
        name = chance.choice(NAMES)
        raw = recorded(name)[0]
        for change in chance.sample(changes, chance.randrange(1, 3)):
            raw = change(raw, chance)
        shown, parser = play(name, [raw])
        assert shown[-1][0] in ("stop", "raises"), (seed, name, shown)
        assert sum(kind == "raises" for kind, *_ in shown) <= 1
        parser.reply()
        for pieces in (pieces_of(raw, chance), [raw[i : i + 1] for i in range(len(raw))]):
            assert play(name, pieces)[0] == shown, (seed, name, raw)


def build_request(prompt: Any, **given: Any) -> dict[str, Any]:
    request = CompletionRequest(Settings(api_key=""), prompt, given, "stream")
    return request.body(None)


def test_tools_from_a_generator_are_in_every_request():
    tools = [{"type": "function"}]
    request = CompletionRequest(Settings(api_key=""), "hi", {"tools": iter(tools)}, "stream")
    assert [request.body(None)["tools"] for _ in range(2)] == [tools] * 2


def test_request_from_messages_does_not_change_them():
    """A function as a tool is not JSON, and only `run` calls it."""
    messages = [{"role": "user", "content": "hi"}]
    body = build_request(messages, model="m", system="s")
    assert body["messages"] == [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]
    assert messages == [{"role": "user", "content": "hi"}]
    with pytest.raises(TypeError, match=r"functions as tools go to run\(\)"):
        build_request("hi", tools=[{"type": "function"}, print])


OPTIONS = {
    "unknown-passes": ({"min_p": 0.1, "grammar": "root ::= x"}, {"min_p": 0.1, "grammar": "root ::= x"}),
    "none-is-not-set": ({"seed": None, "temperature": 0}, {"temperature": 0}),
    "no-tools-c5": ({"tools": [], "tool_choice": "auto"}, {}),
    "required-without-tools-is-sent": ({"tool_choice": "required"}, {"tool_choice": "required"}),
    "extra-body-leaves-out": ({"extra_body": {"stream_options": None, "stream": True}}, {"stream": True}),
    "extra-body-is-the-body": ({"extra_body": {"min_p": 0.1, "seed": None}, "top_k": 5}, {"top_k": 5, "min_p": 0.1}),
}


@pytest.mark.parametrize(("options", "fields"), OPTIONS.values(), ids=OPTIONS)
def test_request_options(options, fields):
    body = build_request("hi", **{**options, "extra_body": {"stream": False, **options.get("extra_body", {})}})
    assert body == {"messages": body["messages"], "stream": False, **fields}


def test_usage_is_requested_unless_stream_options_are_given():
    for given, sent in ((None, {"include_usage": True}), ({}, None), ({"a": 1}, {"a": 1})):
        assert build_request("hi", stream_options=given).get("stream_options") == sent


@pytest.mark.parametrize("data", ["oh no", "{}", ""])
def test_error_event_may_be_any_text(data):
    assert parse_frame("error", data) == {"error": data or "no reason given"}


@pytest.mark.parametrize("before", ["", "\ufeff", "\n", "\ufeff\n", "\n\ufeff"], ids=ascii)
def test_body_may_begin_with_a_byte_order_mark_and_blank_lines(before: str):
    parser = ResponseParser("application/json")
    body = before + json.dumps({"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]})
    assert [event.type for events in parser.feed(body.encode(), is_end=True) for event in events]
    assert parser.reply().text == "Hi"


@pytest.mark.parametrize("n_bytes", [1, 7, 1000])
def test_error_shows_the_beginning_of_the_body_whatever_the_first_read_had(n_bytes: int):
    body = b'data: {"id": "1", "object": "chat.completion.chunk"'
    parser = ResponseParser()
    for start in range(0, len(body), n_bytes):
        assert not list(parser.feed(body[start : start + n_bytes]))
    assert not list(parser.feed(b"", is_end=True))
    with pytest.raises(IncompleteStream, match=f"it begins: {body.decode()}"):
        list(parser.finish())


@pytest.mark.parametrize("body", [b"<html>" + b"<p>Log in.</p>" * n for n in (1, 500)], ids=["short", "long"])
def test_error_of_an_unknown_format_does_not_depend_on_the_chunks(body: bytes):
    def feed(n_bytes: int) -> None:
        parser = ResponseParser("text/html")
        for start in range(0, len(body), n_bytes):
            list(parser.feed(body[start : start + n_bytes]))
        list(parser.feed(b"", is_end=True))

    errors = set()
    for n_bytes in (1, 7, 150, 10_000):
        with pytest.raises(ProtocolError, match="HTML: is the base URL right") as caught:
            feed(n_bytes)
        errors.add((str(caught.value), caught.value.head))
    assert len(errors) == 1


@pytest.mark.parametrize("data", ["oops", "[1]", '{"a": 1} {"b": 2}', "[" * 100_000], ids=lambda data: data[:9])
def test_parse_frame_that_is_not_an_object(data):
    with pytest.raises(ProtocolError) as caught:
        parse_frame("message", data)
    assert caught.value.head == (data if len(data) < 200 else data[:200] + "...")


ERROR_BODIES = {
    "openai": ('{"error": {"message": "m", "type": "t", "param": "p", "code": "c"}}', ("m", "t", "c", "p")),
    "numeric-code": ('{"error": {"message": "m", "code": 400}}', ("m", None, "400", None)),
    "text": ('{"error": "m"}', ("m", None, None, None)),
    "flat": ('{"object": "error", "message": "m", "type": "t", "code": 40}', ("m", "t", "40", None)),
    "detail": ('{"detail": "m"}', ("m", None, None, None)),
    "detail-list": (
        '{"detail": [{"loc": ["body", "n"], "msg": "too big", "type": "v"}, {"msg": "odd"}]}',
        ("body.n: too big; odd", None, None, None),
    ),
    "list": ('[{"error": {"message": "m", "code": 400}}]', ("m", None, "400", None)),
    "several": ('{"errors": [{"code": 1, "message": "m"}, {"message": "n"}]}', ("m; n", None, None, None)),
    "detail in the message (Mistral)": (
        '{"object": "error", "message": {"detail": [{"loc": ["body", "n"], "msg": "too big"}]}, "type": "t"}',
        ("body.n: too big", "t", None, None),
    ),
    "error in the detail": ('{"detail": {"error": "m"}}', ("m", None, None, None)),
    "reason beside a short text": (
        '{"statusCode": 400, "error": "Bad Request", "message": "no n"}',
        ("Bad Request: no n", None, "400", None),
    ),
    "reason beside true": ('{"error": true, "message": "m"}', ("m", None, None, None)),
    "text and message alike": ('{"error": "m", "message": "m"}', ("m", None, None, None)),
    "error of the provider (OpenRouter)": (
        '{"error": {"message": "Provider returned error", "code": 429, "metadata": {"raw": "too many"}}}',
        ("Provider returned error: too many", None, "429", None),
    ),
    "problem": ('{"type": "t", "title": "Not Found", "status": 404}', ("Not Found", "t", None, None)),
    "plain": ("Bad Gateway\n", ("Bad Gateway", None, None, None)),
    "html": ("<html>\n<h1>502</h1></html>", ("<html> <h1>502</h1></html>", None, None, None)),
    "empty": ("", ("no reason given", None, None, None)),
    "empty JSON": ('""', ("no reason given", None, None, None)),
    "null": ("null", ("no reason given", None, None, None)),
    "list of no messages": ('{"error": {"message": [], "msg": "m"}}', ("m", None, None, None)),
    "strange": ('{"error": {"x": 1}}', ('{"error": {"x": 1}}', None, None, None)),
    "long": ("x" * 500, ("x" * 200 + "...", None, None, None)),
}


@pytest.mark.parametrize(("body", "expected"), ERROR_BODIES.values(), ids=ERROR_BODIES)
def test_error_is_parsed_from_a_body_of_any_format(body, expected):
    error = parse_error(body)
    assert (error.message, error.error_type, error.code, error.param) == expected


def test_parse_models():
    """The lists of Ollama, a bare one, and one without models."""
    bodies: list[Any] = [{"models": [{"name": "a", "model": "a"}]}, [{"id": "a"}, "b", 3], {"data": None}]
    assert [parse_models(body) for body in bodies] == [["a"], ["a", "b"], []]
    for wrong in ({}, {"data": 5}, "text", 5):
        with pytest.raises(ProtocolError):
            parse_models(wrong)


REASONS = {
    "stop": "stop eos EOS_TOKEN end_turn STOP COMPLETE stop_token end_of_turn <|eot_id|> end FINISH_REASON_STOP",
    "length": "length MAX_TOKENS maxTokens FinishReason.MAX_TOKENS max_output_tokens model_length token_limit "
    "time_limit model_context_window_exceeded context_length_exceeded incomplete not_finished truncated pause_turn",
    "tool_calls": "tool_calls tool_use function_call",
    "content_filter": "content_filter content_filtered SAFETY IMAGE_SAFETY refusal RECITATION sensitive blocklist "
    "SPII prohibited_content guardrail_intervened ERROR_TOXIC",
    "error": "error FINISH_REASON_ERROR network_error abort insufficient_system_resource MALFORMED_FUNCTION_CALL "
    "timeout ERROR_LIMIT",
}


@pytest.mark.parametrize(("reason", "words"), REASONS.items(), ids=REASONS)
def test_finish_reason_has_the_name_of_the_client(reason, words):
    assert {normal_reason(word) for word in words.split()} == {reason}
    assert [normal_reason(word) for word in ("because", "stopwatch", "the_end", "id", "")] == [None] * 5


def test_only_a_text_that_is_too_long_is_cut_in_messages():
    """Of a body that is no error of a known form 200 characters are shown, on one line."""
    assert parse_error(f"{'x' * 100}\n{'y' * 99}").message == f"{'x' * 100} {'y' * 99}"
    assert parse_error("x" * 201).message == "x" * 200 + "..."


USAGES = {
    "derived-total": ({"prompt_tokens": 1, "completion_tokens": 2}, Usage(1, 2, 3)),
    "aliases": ({"input_tokens": 1, "output_tokens": 2}, Usage(1, 2, 3)),
    "zero-hides-nothing": ({"prompt_tokens": 0, "input_tokens": 4, "output_tokens": 2}, Usage(4, 2, 6)),
    "cached-zero-is-known": ({"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}, Usage(1, 0, 1, 0)),
    "cached-null-details": ({"prompt_tokens": 1, "total_tokens": 1, "prompt_tokens_details": None}, Usage(1, 0, 1)),
    "anthropic-cache": ({"input_tokens": 1, "cache_read_input_tokens": 9}, Usage(1, 0, 1, 9)),
    "text-and-floats": ({"prompt_tokens": "1", "completion_tokens": 2.0}, Usage(1, 2, 3)),
    "infinity": ({"prompt_tokens": float("inf"), "completion_tokens": 2}, Usage(0, 2, 2)),
    "bool": ({"prompt_tokens": True, "completion_tokens": 2}, Usage(0, 2, 2)),
}


@pytest.mark.parametrize(("raw", "usage"), USAGES.values(), ids=USAGES)
def test_usage_of_any_server(raw, usage):
    accumulator = Accumulator()
    accumulator.add({"choices": [], "usage": raw})
    assert accumulator.reply().usage == usage
