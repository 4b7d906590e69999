"""Assembly of a reply from payloads: choices, reasoning in tags, logprobs, split characters, defects of servers."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from localchat.errors import IncompleteStream, StreamError
from localchat.events import StreamEvent, Usage
from localchat.reply.assembly import Accumulator
from localchat.reply.frames import parse_frame
from localchat.reply.payloads import parse_error
from localchat.reply.text import ThinkSplitter


def text_chunk(text: str, finish: str | None = None, index: int = 0) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": {"content": text}, "finish_reason": finish}]}


def accumulated(*chunks: dict[str, Any], n: int = 1) -> tuple[list[StreamEvent], Accumulator]:
    accumulator = Accumulator(n)
    events = [event for chunk in chunks for event in accumulator.add(chunk)]
    return events + accumulator.finish(done=True), accumulator


# Chunks, the error without the end mark, and the finish reason with it.
UNFINISHED = {
    # Some servers send a finish reason in every delta: only [DONE] ends the response, with the last reason.
    "finish reason in every delta": (
        [text_chunk("You may delete it", "stop"), text_chunk(" only after", "stop"), text_chunk(" a", "length")],
        "the finish reason 'length' is unknown or not at the end",
        "length",
    ),
    "choice that begins late": ([text_chunk("one", "stop"), text_chunk("tw", index=1)], "not at the end", "stop"),
    "unknown reason": ([text_chunk("Hello", "because")], "the finish reason 'because' is unknown", "because"),
}


@pytest.mark.parametrize(("chunks", "words", "finish"), UNFINISHED.values(), ids=UNFINISHED)
def test_response_that_may_continue_needs_the_end_mark(chunks, words, finish):
    accumulator = Accumulator()
    for chunk in chunks:
        accumulator.add(chunk)
    assert not accumulator.complete
    with pytest.raises(IncompleteStream, match=words):
        accumulator.finish()
    assert accumulated(*chunks)[1].reply().finish_reason_raw == finish


def used(delta: dict[str, Any], finish: str | None, **counts: int | None) -> dict[str, Any]:
    """A chunk with a usage."""
    usage = {f"{name}_tokens": count for name, count in counts.items()}
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}] if delta or finish else []
    return {"choices": choices, "usage": {**usage, "total_tokens": None}}


INFINITE = text_chunk("a", "stop")
INFINITE["choices"][0]["logprobs"] = {"content": [{"logprob": float("-inf")}]}
# Responses with which other clients failed, by public reports, and the tokens of input and output.
REPORTED: dict[str, tuple[list[dict[str, Any]], tuple[int, int]]] = {
    "usage without output tokens at first": (
        [used({}, None, prompt=11), text_chunk("a"), used({}, "stop", prompt=11, completion=1)],
        (11, 1),
    ),
    "counts that are null": (
        [used({"content": "a"}, "stop", prompt=None, completion=None), used({}, None, prompt=5, completion=None)],
        (5, 0),
    ),
    "infinite log probabilities": ([parse_frame("message", json.dumps(INFINITE))], (0, 0)),
}


@pytest.mark.parametrize(("chunks", "tokens"), REPORTED.values(), ids=REPORTED)
def test_reply_is_complete(chunks, tokens):
    reply = accumulated(*chunks)[1].reply()
    usage = reply.usage or Usage()
    assert (reply.text, reply.finish_reason) == ("a", "stop")
    assert (usage.input_tokens, usage.output_tokens) == tokens


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_later_finish_reason_counts_if_it_says_a_cut(reason):
    for first, last in (("stop", reason), (reason, "stop"), ("tool_calls", reason)):
        assert accumulated(text_chunk("a", first), text_chunk("", last))[1].reply().finish_reason == reason
    with pytest.raises(StreamError):
        accumulated(text_chunk("a", "stop"), text_chunk("", "error"))


def test_choices_that_are_missing_or_have_no_index():
    """They are numbered by their position."""
    choices = [{"message": {"content": text}, "finish_reason": "stop"} for text in ("one", "two")]
    assert [choice.text for choice in accumulated({"choices": choices}, n=2)[1].reply().choices] == ["one", "two"]
    events, accumulator = accumulated({"choices": choices[:1]}, n=2)
    assert [event.type for event in events][-2:] == ["warning", "message_stop"]
    assert accumulator.reply().warnings == ("the server sent 1 of the 2 requested choices",)


def test_message_after_deltas_may_leave_out_the_reasoning_and_have_a_longer_refusal():
    refusal = {"content": [{"type": "refusal", "refusal": "I can"}]}
    deltas: list[dict[str, Any]] = [{"content": "<think>hm</think>"}, {"content": "Hel"}, {"content": "lo"}, refusal]
    whole = {"choices": [{"message": {"content": "Hello", "refusal": "I cannot"}, "finish_reason": "stop"}]}
    reply = accumulated(*({"choices": [{"delta": delta}]} for delta in deltas), whole)[1].reply()
    assert (reply.text, reply.reasoning, reply.refusal) == ("Hello", "hm", "I cannot")


def test_message_after_deltas_may_have_its_content_in_parts():
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    whole = [thinking, {"type": "text", "text": "a"}, {"type": "text", "text": "bc"}]
    deltas: list[Any] = [[thinking], "a", [{"type": "text", "text": "b"}]]
    chunks: list[Any] = [{"choices": [{"delta": {"content": content}}]} for content in deltas]
    for n in (0, 3):
        reply = accumulated(*chunks[:n], {"choices": [{"message": {"content": whole}}]})[1].reply()
        assert (reply.text, reply.reasoning) == ("abc", "Hm.")
        assert reply.message["content"] == [thinking, {"type": "text", "text": "abc"}]


def test_message_beside_each_delta_repeats_its_fields():
    fields: list[dict[str, Any]] = [{"content": "a", "reasoning": "x", "refusal": "n"}] * 2 + [{"content": "b"}]
    reply = accumulated(*({"choices": [{"delta": one, "message": one}]} for one in fields))[1].reply()
    assert (reply.text, reply.reasoning, reply.refusal) == ("aab", "xx", "nn")


@pytest.mark.parametrize("follower", [{"reasoning": "hm"}, {"content": [{"type": "thinking", "thinking": "hm"}]}])
def test_held_text_is_emitted_before_later_deltas(follower):
    deltas: list[dict[str, Any]] = [{"content": "<thi"}, follower, {"content": "b"}]
    events, accumulator = accumulated(*({"choices": [{"delta": delta}]} for delta in deltas))
    assert accumulator.reply().text == "<thib"
    assert [event.delta for event in events if event.type.endswith("_delta")] == ["<thi", "hm", "b"]


def test_logprobs_of_completions_have_the_format_of_chats():
    logprobs = {"tokens": ["a", "b"], "token_logprobs": [None, -0.5], "top_logprobs": [None, {"b": -0.5}]}
    reply = accumulated({"choices": [{"text": "ab", "logprobs": logprobs, "finish_reason": "stop"}]})[1].reply()
    first, second = reply.choice.logprobs
    assert first == {"token": "a", "logprob": None, "bytes": None, "top_logprobs": []}
    assert second == {"token": "b", "logprob": -0.5, "bytes": None, "top_logprobs": [{"token": "b", "logprob": -0.5}]}


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


SIGNED = {"type": "reasoning.text", "index": 0, "format": "anthropic-claude-v1"}
BLOCK = {"type": "thinking", "signature": "s"}
HIDDEN: Any = [{"type": kind, "data": data} for kind in ("reasoning.encrypted", "redacted_thinking") for data in "xy"]
# The deltas of a message, and the fields that the next request has to contain.
KEPT: dict[str, tuple[list[Any], Any]] = {
    "signed pieces": (
        [[{**SIGNED, "text": "H"}], [{**SIGNED, "text": "m"}], [{**SIGNED, "text": "", "signature": "s"}], HIDDEN[:2]],
        [{**SIGNED, "text": "Hm", "signature": "s"}, *HIDDEN[:2]],
    ),
    "other index or id": ([[{**SIGNED, "index": i, "id": i, "text": "a"}] for i in (1, 2)], None),
    "blocks": (
        [[{**BLOCK, "thinking": "H", "signature": ""}], [{**BLOCK, "thinking": "m"}], [{**BLOCK, "thinking": "a"}]],
        [{**BLOCK, "thinking": "Hm"}, {**BLOCK, "thinking": "a"}],
    ),
    "redacted": ([HIDDEN[2:], [{**BLOCK, "thinking": "a"}]], None),
}


@pytest.mark.parametrize("name", ["reasoning_details", "thinking_blocks"])
@pytest.mark.parametrize(("pieces", "items"), KEPT.values(), ids=KEPT)
def test_signed_reasoning_is_in_the_message_as_a_whole_response_has_it(pieces, items, name):
    items = [item for piece in pieces for item in piece] if items is None else items
    sent = [{"choices": [{"delta": {"reasoning": "Hm.", name: piece}}]} for piece in pieces]
    whole = {"choices": [{"message": {"content": "a", "reasoning": "Hm.", name: items}, "finish_reason": "stop"}]}
    before = copy.deepcopy(sent)
    for chunks, n in ((sent, len(sent)), ([whole], 1), ([*sent[:1], whole], 1)):
        message = accumulated(*chunks)[1].reply().message
        assert (message[name], message["reasoning"]) == (items, "Hm." * n)
    assert sent == before


@pytest.mark.parametrize("name", ["reasoning_details", "thinking_blocks"])
def test_text_of_signed_reasoning_is_the_reasoning_if_there_is_no_other(name):
    items = [{"type": "thinking", "thinking": "Hm", "signature": "s"}]
    chunks: list[Any] = [{"choices": [{kind: {"content": "a", name: items}}]} for kind in ("delta", "message")]
    for given in (chunks, chunks[:1], chunks[1:]):
        reply = accumulated(*given)[1].reply()
        assert (reply.reasoning, reply.message) == ("Hm", {"role": "assistant", "content": "a", name: items})


def test_other_fields_that_servers_require_back_are_in_the_message():
    thinking: Any = [[{"type": "thinking", "thinking": [{"type": "text", "text": text}]}] for text in ("H", "m")]
    chunks = [
        {"choices": [{"delta": {"content": content}}]} for content in (*thinking, "4", [{"type": "text", "text": "2"}])
    ]
    reply = accumulated(*chunks)[1].reply()
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}, {"type": "text", "text": "42"}]
    assert (reply.text, reply.reasoning, reply.message["content"]) == ("42", "Hm", parts)
    signed = [{"google": {"thought": True}}, {"google": {"thought_signature": "s"}}]
    reply = accumulated(*({"choices": [{"delta": {"extra_content": part}}]} for part in signed))[1].reply()
    assert reply.message["extra_content"] == {"google": {"thought": True, "thought_signature": "s"}}


@pytest.mark.parametrize(("content", "sent"), [(None, None), ("", ""), ("a", "a")])
def test_null_content_beside_calls_stays_null(content, sent):
    call = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
    for kind in ("delta", "message"):
        chunks = [{"choices": [{kind: {"content": content, "tool_calls": [call]}, "finish_reason": "tool_calls"}]}]
        assert accumulated(*chunks)[1].reply().message["content"] == sent
        assert accumulated({"choices": [{kind: {"content": None}}]})[1].reply().message["content"] == ""


def test_annotations_are_events_and_in_the_reply_once():
    notes = [{"type": "url_citation", "url_citation": {"url": f"http://{name}"}} for name in "ab"]
    chunks: list[Any] = [
        {"choices": [{"delta": {"content": "a", "annotations": given}}]} for given in (notes[:1], None, notes)
    ]
    whole = {"choices": [{"message": {"content": "a", "annotations": notes}, "finish_reason": "stop"}]}
    events, accumulator = accumulated(*chunks, whole)
    assert [event.items for event in events if event.type == "annotations"] == [(notes[0],), (notes[1],)]
    reply = accumulator.reply()
    assert reply.choice.annotations == tuple(notes)
    assert "annotations" not in reply.message


# Characters beyond 16 bits that are cut into halves, the deltas, and the number of warnings.
HALVES: dict[str, tuple[list[str], list[str], int]] = {
    "two deltas": (["x\ud83d", "\ude00y"], ["x", "\U0001f600y"], 0),
    "an empty delta between": (["\ud83d", "", "\ude00"], ["\U0001f600"], 0),
    "first half alone": (["\ud83d", "x"], ["\ufffdx"], 1),
    "first half twice": (["\ud83d", "\ud83d", "\ude00"], ["\ufffd", "\U0001f600"], 1),
    "second half alone": (["\ude00"], ["\ufffd"], 1),
    "first half at the end": (["a\ud83d"], ["a", "\ufffd"], 1),
    "first half before a whole one": (["\ud83d", "\U0001f600"], ["\ufffd\U0001f600"], 1),
}


@pytest.mark.parametrize("field", ["content", "reasoning", "refusal"])
@pytest.mark.parametrize(("pieces", "texts", "n_warnings"), HALVES.values(), ids=HALVES)
def test_halves_of_characters_are_joined_and_lone_ones_replaced(pieces, texts, n_warnings, field):
    events, accumulator = accumulated(
        *({"choices": [{"delta": {field: text}}]} for text in pieces), text_chunk("", "stop")
    )
    reply = accumulator.reply()
    assert [event.delta for event in events if event.type.startswith(field)] == texts
    assert {"content": reply.text, "reasoning": reply.reasoning, "refusal": reply.refusal}[field] == "".join(texts)
    assert len(reply.warnings) == n_warnings


def tool_delta(**call: Any) -> dict[str, Any]:
    return {"choices": [{"delta": {"tool_calls": [{"index": 0, **call}]}}]}


def test_pieces_of_arguments_are_joined_under_an_id_that_stays_until_the_server_sends_one():
    accumulator, made = Accumulator(), set()
    for text in ('{"q": "', "Hi \ud83d", "\ude00!", '"}'):
        accumulator.add(tool_delta(function={"name": "f", "arguments": text}))
        made.add(accumulator.reply().tool_calls[0].id)
    assert len(made) == 1
    accumulator.add(tool_delta(id="late"))
    (call,) = accumulator.reply().tool_calls
    assert (call.id, call.arguments) == ("late", {"q": "Hi \N{GRINNING FACE}!"})


@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_call_that_is_cut_before_its_arguments_has_an_error(finish):
    """Without the error, the function would be called with its defaults."""
    calls = [{"index": i, "id": f"c{i}", "function": {"name": "clean", "arguments": ""}} for i in range(2)]
    chunk = {"choices": [{"delta": {"tool_calls": calls}, "finish_reason": finish}]}
    first, second = accumulated(chunk)[1].reply().tool_calls
    assert (first.arguments, first.error) == ({}, None)
    assert (second.arguments, second.error) == (None, "the response was cut before the arguments")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_nan_and_infinity_are_not_valid_in_arguments(number):
    """json.loads accepts them, but a server refuses them in the next request."""
    delta = tool_delta(function={"name": "f", "arguments": f'{{"a": {number}}}'})
    (call,) = accumulated(delta)[1].reply().tool_calls
    assert (call.arguments, call.member["function"]["arguments"]) == (None, "{}")
    assert f"{number} is not a number of JSON" in (call.error or "")


def test_deep_nesting_is_read_or_refused():
    deep: Any = "x"
    for _ in range(900):
        deep = [deep]
    accumulated({"choices": [{"delta": {"content": [deep], "tool_calls": [{"name": "f", "arguments": deep}]}}]})
    assert parse_error([deep]).message


UNKNOWN_PAYLOADS: dict[str, tuple[dict[str, Any], str]] = {
    "code and message": ({"code": 50505, "message": "no luck"}, "no luck"),
    "message and type": ({"message": "no luck", "type": "server_error"}, "no luck"),
    "code beside an id": ({"id": "req-1", "code": 500}, '"code": 500'),
    "reason": ({"reason": "no luck"}, "no part of a chat completion.*no luck"),
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
    "error without a value": {"choices": [], "error": {"message": None, "code": 0}},
    "blank message and detail": {"choices": [], "message": "", "detail": ""},
    "code of a success": {"code": 0, "message": "Success", "choices": []},
    "only null detail (C20)": {"detail": None},
    "ping": {"type": "ping"},
    "progress": {"prompt_progress": {"total": 9}},
    "usage": {"usage": None},
}


@pytest.mark.parametrize("payload", KNOWN_PAYLOADS.values(), ids=KNOWN_PAYLOADS)
def test_c2_known_payload_without_choices_is_no_error(payload):
    accumulated(text_chunk("Hello", "stop"), payload)
    events, accumulator = accumulated(text_chunk("Hel"), payload, text_chunk("lo", "stop"))
    assert accumulator.reply().text == "Hello"
    assert [event.type for event in events] == ["message_start", "content_delta", "content_delta", "message_stop"]


# Reasoning in tags at the start of the content. Text is never lost (C4).

UNCLOSED = "the reasoning is never closed by </think>: all of the content is text"
STRAY = "the text has a </think> without <think>: is it a case for think_tags='prefilled'?"

# Mode, content, and the reasoning, text and warnings of the reply.
SPLITS: dict[str, tuple[str, str, str, str, list[str]]] = {
    "tag-first": ("auto", " \n<think>\na\n</think>\n\nb<think>c</think>", "a\n", "b<think>c</think>", []),
    "open-only": ("auto", "<think>\na", "", "<think>\na", [UNCLOSED]),
    "half-a-closing-tag-at-the-end": ("auto", "<think>a</thi", "", "<think>a</thi", [UNCLOSED]),
    "tags-do-not-mix": ("auto", "<thought>a</think>b", "", "<thought>a</think>b", [UNCLOSED, STRAY]),
    "indented": ("auto", "<think>a</think>\n \n    b\n", "a", "    b\n", []),
    "stray-in-code": ("auto", "```\na\n</think>\n```", "", "```\na\n</think>\n```", [STRAY]),
    "prefilled-and-opened-again": ("prefilled", "<think>a</think>b", "a", "b", []),
    "prefilled-never-closed": ("prefilled", " a", "", " a", [UNCLOSED]),
    "blank-only": ("auto", "  ", "", "  ", []),
}


def split(mode: str, pieces: list[str], finish: str = "stop") -> tuple[str, str, list[str]]:
    accumulator = Accumulator(think_tags=mode)
    for chunk in (*map(text_chunk, pieces), text_chunk("", finish)):
        accumulator.add(chunk)
    accumulator.finish()
    reply = accumulator.reply()
    return reply.reasoning, reply.text, list(reply.warnings)


@pytest.mark.parametrize(("mode", "text", "reasoning", "content", "warnings"), SPLITS.values(), ids=SPLITS)
def test_c4_think_splitter(mode, text, reasoning, content, warnings):
    """Whole, by characters, and at every cut in two."""
    for pieces in [[text], list(text)] + [[text[:i], text[i:]] for i in range(len(text))]:
        assert split(mode, pieces) == (reasoning, content, warnings), pieces


@pytest.mark.parametrize(("mode", "content"), [("prefilled", "42"), ("auto", "<think>42")])
def test_reasoning_that_is_cut_by_a_limit_stays_reasoning(mode, content):
    warning = "the text ends inside <think>: the reasoning may contain the answer"
    assert split(mode, [content], "length") == ("42", "", [warning])


def test_think_splitter_holds_back_no_more_than_a_tag():
    splitter = ThinkSplitter()
    sent = "<think>" + "a<b" * 50
    out = "".join(text for character in sent for _, text in splitter.feed(character))
    assert len(sent) - len("<think>") - len(out) <= len("</think>") - 1
