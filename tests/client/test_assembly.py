"""Assembly of a reply from payloads: choices, reasoning in tags, logprobs, split characters, defects of servers."""

import base64
import copy
import json
from typing import Any

import pytest

from localchat.errors import IncompleteStream, ProtocolError, StreamError
from localchat.events import Audio, Reply, StreamEvent
from localchat.reply.assembly import Accumulator
from localchat.reply.frames import parse_frame
from localchat.reply.payloads import as_integer
from localchat.reply.reported_errors import parse_error
from localchat.reply.text import ThinkSplitter
from tests.support.scripted import chunk


def whole(**message: Any) -> dict[str, Any]:
    """A complete response, or the complete message after the deltas."""
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


def accumulated(*chunks: dict[str, Any], n: int = 1) -> tuple[list[StreamEvent], Reply]:
    """The events and the reply, which a program may read at any time."""
    accumulator = Accumulator(n)
    events: list[StreamEvent] = []
    for one in chunks:
        events += accumulator.add(one)
        accumulator.reply()
    return events + accumulator.finish(has_end_mark=True), accumulator.reply()


def reply_of(*chunks: dict[str, Any]) -> Reply:
    return accumulated(*chunks)[1]


SECOND = {"choices": [{"index": 1, "delta": {"content": "tw"}}]}
# Chunks, the error without the end mark, and the finish reason with it.
UNFINISHED = {
    # Some servers send a finish reason in every delta: only [DONE] ends the response, with the last reason.
    "finish reason in every delta": (
        [chunk("stop", content="You may delete it"), chunk("stop", content=" only"), chunk("length", content=" a")],
        "the finish reason 'length' is unknown or not at the end",
        "length",
    ),
    "choice that begins late": ([chunk("stop", content="one"), SECOND], "not at the end", "stop"),
    "unknown reason": ([chunk("because", content="Hi")], "the finish reason 'because' is unknown", "because"),
}


@pytest.mark.parametrize(("chunks", "words", "finish"), UNFINISHED.values(), ids=UNFINISHED)
def test_response_that_may_continue_needs_the_end_mark(chunks, words, finish):
    accumulator = Accumulator()
    for payload in chunks:
        accumulator.add(payload)
    assert not accumulator.has_known_reasons
    with pytest.raises(IncompleteStream, match=words):
        accumulator.finish()
    assert reply_of(*chunks).finish_reason_raw == finish


# Responses with which other clients failed, by public reports: two usages, and the tokens of input and output.
USAGES: list[tuple[dict[str, Any], dict[str, Any], tuple[int, int]]] = [
    ({"prompt_tokens": 11}, {"prompt_tokens": 11, "completion_tokens": 1}, (11, 1)),
    ({"prompt_tokens": None, "completion_tokens": None}, {"prompt_tokens": 5, "completion_tokens": None}, (5, 0)),
    ({"prompt_tokens": 0}, {"prompt_tokens": 0, "cost": 2}, (0, 0)),
    ({"prompt_tokens": 1.5}, {"prompt_tokens": "3", "completion_tokens": 2.0}, (3, 2)),
]


@pytest.mark.parametrize(("first", "last", "tokens"), USAGES)
def test_usage_is_the_last_one_and_may_lack_counts(first, last, tokens):
    last_chunk = {**chunk("stop", content="a"), "usage": {**last, "total_tokens": None}}
    reply = reply_of({"choices": [], "usage": {**first, "total_tokens": None}}, last_chunk)
    assert (reply.text, reply.usage.input_tokens, reply.usage.output_tokens) == ("a", *tokens)
    assert reply.usage.raw == {**last, "total_tokens": None}


@pytest.mark.parametrize(
    ("value", "number"),
    [(1, 1), (1.0, 1), ("1", 1), (" -1 ", -1), *((x, None) for x in (1.9, "1.5", "1_0", "", "9" * 5000, True, None))],
)
def test_number_of_a_server_is_an_integer_in_any_notation(value: Any, number: Any):
    assert as_integer(value) == number


def test_log_probabilities_may_be_infinite():
    infinite = chunk("stop", content="a")
    infinite["choices"][0]["logprobs"] = {"content": [{"logprob": float("-inf")}]}
    assert reply_of(parse_frame("message", json.dumps(infinite))).text == "a"


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_later_finish_reason_counts_if_it_says_a_cut(reason):
    for first, last in (("stop", reason), (reason, "stop"), ("tool_calls", reason)):
        assert reply_of(chunk(first, content="a"), chunk(last)).finish_reason == reason


@pytest.mark.parametrize("reason", ["error", "abort"])
@pytest.mark.parametrize(
    "chunks",
    [
        [chunk("stop", content="a")],
        [chunk("stop", content="a"), chunk("stop", content="b")],
        [chunk("stop", content="a"), chunk(content="b")],
        [chunk("stop", content="a"), SECOND],
    ],
    ids=["at the end", "reason in every delta", "output after the reason", "choice that begins late"],
)
def test_finish_reason_of_an_error_is_an_error_wherever_it_comes(chunks: Any, reason: str):
    with pytest.raises(StreamError, match=reason):
        accumulated(*chunks, chunk(reason))


def test_annotations_after_the_finish_reason_are_no_output():
    accumulator = Accumulator()
    for payload in (chunk(content="a"), chunk("stop"), chunk(annotations=[{"url": "b"}])):
        accumulator.add(payload)
    accumulator.finish()
    assert accumulator.reply().choice.annotations == ({"url": "b"},)


def test_choices_that_are_missing_or_have_no_index():
    """They are numbered by their position."""
    choices = [{"message": {"content": text}, "finish_reason": "stop"} for text in ("one", "two")]
    assert [choice.text for choice in accumulated({"choices": choices}, n=2)[1].choices] == ["one", "two"]
    events, reply = accumulated({"choices": choices[:1]}, n=2)
    assert [event.type for event in events][-2:] == ["warning", "message_stop"]
    assert reply.warnings == ("the server sent 1 of the 2 requested choices",)


def test_pieces_in_messages_may_begin_like_the_text_before_them():
    pieces = [{"choices": [{"index": 0, "message": {"content": text}}]} for text in ("I", " think", " I", " can")]
    assert reply_of(*pieces, chunk("stop")).text == "I think I can"


def test_message_after_deltas_may_leave_out_the_reasoning_and_have_a_longer_refusal():
    refusal = [{"type": "refusal", "refusal": "I can"}]
    deltas = [chunk(content=content) for content in ("<think>hm</think>", "Hel", "lo", refusal)]
    reply = reply_of(*deltas, whole(content="Hello", refusal="I cannot"))
    assert (reply.text, reply.reasoning, reply.refusal) == ("Hello", "hm", "I cannot")


def test_blank_message_is_kept():
    assert reply_of(whole(content=" \n")).text == " \n"


def test_finish_reason_of_a_choice_with_calls_is_that_of_calls_at_any_time():
    accumulator = Accumulator()
    accumulator.add(chunk(tool_calls=[{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]))
    accumulator.add(chunk("stop"))
    assert accumulator.reply().finish_reason == "tool_calls"


def test_function_call_of_a_message_repeats_that_of_the_deltas():
    call = {"name": "f", "arguments": '{"a": 1}'}
    for chunks in ([chunk(function_call=call)], [chunk(function_call=call), whole(function_call=call)]):
        assert [made.name for made in reply_of(*chunks).tool_calls] == ["f"]


def text_part(text: str) -> Any:
    return {"type": "text", "text": text}


def thinking_part(text: str) -> Any:
    return {"type": "thinking", "thinking": [text_part(text)]}


def test_content_in_parts_is_joined_and_sent_back_in_parts():
    """Also if a message after the deltas repeats them and goes on."""
    deltas = [chunk(content=one) for one in ([thinking_part("H")], [thinking_part("m.")], "a", [text_part("b")])]
    message = whole(content=[thinking_part("Hm."), text_part("a"), text_part("bc")])
    for chunks, text in ((deltas, "ab"), ([*deltas, message], "abc"), ([message], "abc")):
        reply = reply_of(*chunks)
        assert (reply.text, reply.reasoning) == (text, "Hm.")
        assert reply.message["content"] == [thinking_part("Hm."), text_part(text)]
        assert ("choices" in reply.raw) == (chunks == [message])  # Nothing of the parts is left out.


@pytest.mark.parametrize(("mode", "text"), [("auto", "<think>x</think>y"), ("prefilled", "x</think>y")])
def test_tags_are_found_in_parts_too(mode: str, text: str):
    accumulator = Accumulator(think_tags=mode)
    accumulator.add(chunk("stop", content=[text_part(text)]))
    accumulator.finish()
    assert (accumulator.reply().reasoning, accumulator.reply().text) == ("x", "y")


def test_message_beside_each_delta_repeats_its_fields():
    fields: list[dict[str, Any]] = [{"content": "a", "reasoning": "x", "refusal": "n"}] * 2 + [{"content": "b"}]
    reply = reply_of(*({"choices": [{"delta": one, "message": one}]} for one in fields))
    assert (reply.text, reply.reasoning, reply.refusal) == ("aab", "xx", "nn")


@pytest.mark.parametrize("follower", [{"reasoning": "hm"}, {"content": [{"type": "thinking", "thinking": "hm"}]}])
def test_held_text_is_emitted_before_later_deltas(follower):
    events, reply = accumulated(chunk(content="<thi"), chunk(**follower), chunk(content="b"))
    assert reply.text == "<thib"
    assert [event.delta for event in events if event.type.endswith("_delta")] == ["<thi", "hm", "b"]


def test_logprobs_of_completions_have_the_format_of_chats():
    logprobs = {"tokens": ["a", "b"], "token_logprobs": [None, -0.5], "top_logprobs": [None, {"b": -0.5}]}
    reply = reply_of({"choices": [{"text": "ab", "logprobs": logprobs, "finish_reason": "stop"}]})
    first, second = reply.choice.logprobs
    assert first == {"token": "a", "logprob": None, "bytes": None, "top_logprobs": []}
    assert second == {"token": "b", "logprob": -0.5, "bytes": None, "top_logprobs": [{"token": "b", "logprob": -0.5}]}


def test_alternatives_in_lists_are_as_the_server_sent_them():
    alternatives = [{"token": "b", "logprob": -0.5}]
    reply = reply_of({"choices": [{"text": "b", "logprobs": {"tokens": ["b"], "top_logprobs": [alternatives]}}]})
    assert reply.choice.logprobs[0]["top_logprobs"] == alternatives


def test_reply_keeps_extra_fields():
    accumulator = Accumulator()
    accumulator.add({"id": "1", "timings": {"n": 1}, "choices": [{"delta": {"content": "Hi"}}]})
    accumulator.add({"id": "1", "choices": [{"delta": {}, "finish_reason": "stop", "stop_reason": "##"}]})
    reply = accumulator.reply()
    assert reply.raw == {"id": "1", "timings": {"n": 1}}
    assert reply.choice.stop_reason == "##"
    response = whole(content=None, audio={"transcript": "Hello"})
    assert reply_of(response).raw == response


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
    sent = [chunk(**{"reasoning": "Hm.", name: piece}) for piece in pieces]
    response = whole(**{"content": "a", "reasoning": "Hm.", name: items})
    before = copy.deepcopy(sent)
    for chunks, n in ((sent, len(sent)), ([response], 1), ([*sent[:1], response], 1)):
        message = reply_of(*chunks).message
        assert (message[name], message["reasoning"]) == (items, "Hm." * n)
    assert sent == before


@pytest.mark.parametrize("name", ["reasoning_details", "thinking_blocks"])
def test_text_of_signed_reasoning_is_the_reasoning_if_there_is_no_other(name):
    fields = {"content": "a", name: [{"type": "thinking", "thinking": "Hm", "signature": "s"}]}
    for chunks in ([chunk(**fields), whole(**fields)], [chunk(**fields)], [whole(**fields)]):
        reply = reply_of(*chunks)
        assert (reply.reasoning, reply.message) == ("Hm", {"role": "assistant", **fields})


def test_pieces_of_extra_content_are_joined_in_the_message():
    signed = [{"google": {"thought": True}}, {"google": {"thought_signature": "s"}}]
    reply = reply_of(*(chunk(extra_content=part) for part in signed))
    assert reply.message["extra_content"] == {"google": {"thought": True, "thought_signature": "s"}}


@pytest.mark.parametrize("content", [None, "", "a"])
def test_null_content_beside_calls_stays_null(content):
    call = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
    for make in (chunk, whole):
        assert reply_of(make(content=content, tool_calls=[call])).message["content"] == content
        assert reply_of(make(content=None)).message["content"] == ""


def test_annotations_are_events_and_in_the_reply_once():
    notes = [{"type": "url_citation", "url_citation": {"url": f"http://{name}"}} for name in "ab"]
    deltas = [chunk(content="a", annotations=given) for given in (notes[:1], None, notes)]
    events, reply = accumulated(*deltas, whole(content="a", annotations=notes))
    assert [event.items for event in events if event.type == "annotations"] == [(notes[0],), (notes[1],)]
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
    events, reply = accumulated(*(chunk(**{field: text}) for text in pieces), chunk("stop"))
    assert [event.delta for event in events if event.type.startswith(field)] == texts
    assert {"content": reply.text, "reasoning": reply.reasoning, "refusal": reply.refusal}[field] == "".join(texts)
    assert len(reply.warnings) == n_warnings


SOUND = bytes(range(200))
ENCODED = base64.b64encode(SOUND).decode()
# The fields `audio` of the deltas of a response.
SOUNDS: dict[str, list[Any]] = {
    "cut anywhere": [{"data": piece} for piece in (ENCODED[:1], ENCODED[1:7], ENCODED[7:])],
    "each piece with its padding": [{"data": base64.b64encode(SOUND[i : i + 7]).decode()} for i in range(0, 200, 7)],
    "no padding": [{"data": ENCODED.rstrip("=")}],
    "line ends": [{"data": ENCODED[:40] + "\n" + ENCODED[40:]}],
}


@pytest.mark.parametrize("pieces", SOUNDS.values(), ids=SOUNDS)
def test_sound_is_in_events_and_in_the_reply(pieces):
    """With its id, which stands for it in the next request. A message after the deltas repeats it."""
    fields = [{"id": "audio_1"}, {"transcript": "Hel"}, *pieces, {"transcript": "lo"}, {"expires_at": 9}]
    deltas = [*(chunk(content=None, audio=one) for one in fields), chunk("stop")]
    response = whole(audio={"id": "audio_1", "data": ENCODED, "transcript": "Hello", "expires_at": 9})
    for chunks in (deltas, [response], [*deltas, response]):
        events, reply = accumulated(*chunks)
        sounds = [event for event in events if event.type == "audio_delta"]
        assert b"".join(event.data for event in sounds) == SOUND
        assert "".join(event.transcript for event in sounds) == "Hello"
        assert reply.audio == Audio("audio_1", SOUND, "Hello", 9)
        assert reply.message["audio"] == {"id": "audio_1"}
        assert reply.as_dict()["choices"][0]["audio"]["data"] == ENCODED
        assert (reply.text, reply.warnings) == ("", ())


def test_sound_that_is_not_base64_is_kept_with_a_warning():
    reply = reply_of(chunk("stop", content="a", audio={"data": "\u00fc!!!", "id": "1"}))
    assert reply.audio == Audio("1")
    assert reply.raw["choices"][0]["message"]["audio"] == {"data": "\u00fc!!!"}
    assert reply.warnings == ("the sound is not base64 and was left out",)


def test_sound_of_a_message_repeats_that_of_the_deltas_if_the_reply_was_read():
    """An empty sound must not look like one that was received."""
    sound = {"id": "1", "data": ENCODED}
    for chunks in ([chunk(audio={"id": "1"}), whole(audio=sound)], [chunk(audio=sound), whole(audio=sound)]):
        assert reply_of(*chunks).audio == Audio("1", SOUND)


@pytest.mark.parametrize("data", ["QUJDQ=", "QUJD!!"])
def test_sound_with_a_wrong_end_is_kept_without_it(data: str):
    reply = reply_of(chunk("stop", audio={"id": "1", "data": data}))
    assert reply.audio == Audio("1", b"ABC")
    assert reply.warnings == ("the sound is not base64 and was left out",)


def test_message_that_differs_from_its_deltas_is_kept_with_a_warning():
    """The caller has printed the deltas already."""
    for name, deltas, message in (
        ("content", ["Hello  ", "world"], "Hello world"),
        ("reasoning", ["Hm", "."], "Well."),
        ("refusal", ["no"], "never"),
    ):
        events, reply = accumulated(*(chunk(**{name: text}) for text in deltas), whole(**{name: message}))
        pieces = [event.delta for event in events if event.type.endswith("_delta")]
        text = {"content": reply.text, "reasoning": reply.reasoning, "refusal": reply.refusal}[name]
        assert pieces == deltas
        assert text == "".join(deltas)
        assert reply.raw["choices"] == [{"index": 0, "message": {name: message}}]
        assert len(reply.warnings) == 1


def test_messages_without_deltas_are_pieces_or_repeat_the_text():
    assert reply_of(whole(content="Hel"), whole(content="lo")).text == "Hello"
    assert reply_of(whole(content="Hel"), whole(content="Hello")).text == "Hello"


@pytest.mark.parametrize(("indexes", "texts"), [([0, 1], "ab"), ([1, 0], "ba"), ([1, 2], "ba"), ([5, 6], "ab")])
def test_choices_are_numbered_from_0_whatever_the_server_sends(indexes, texts):
    sent = [
        {"choices": [{"index": index, "delta": {"content": text}, "finish_reason": "stop"}]}
        for index, text in zip(indexes, "ab")
    ]
    events, reply = accumulated(*sent, n=2)
    assert [choice.index for choice in reply.choices] == [0, 1]
    assert "".join(choice.text for choice in reply.choices) == texts
    deltas = {event.choice_index: event.delta for event in events if event.type == "content_delta"}
    assert deltas == dict(enumerate(texts))


@pytest.mark.parametrize("index", [1, 7, "3"])
def test_only_choice_is_the_first_one_whatever_its_index(index):
    events, reply = accumulated({"choices": [{"index": index, "delta": {"content": "a"}, "finish_reason": "stop"}]})
    assert {event.choice_index for event in events} == {reply.choice.index} == {0}


def test_text_of_a_payload_is_masked_only_if_the_payload_reports_an_error():
    """`detail` beside choices may belong to an error, and is null in others. The text beside an error is not masked."""

    def mask(payload: Any) -> Any:
        return json.loads(json.dumps(payload).replace("local", "***"))

    accumulator = Accumulator(mask=mask)
    accumulator.add({**chunk(content="a local file"), "detail": None})
    accumulator.add({**chunk("error: key local", content=" local"), "detail": "wrong key local"})
    assert accumulator.error is not None
    assert accumulator.error.raw["detail"] == accumulator.reply().raw["detail"] == "wrong key ***"
    assert (accumulator.reply().text, accumulator.reply().choice.finish_reason_raw) == (
        "a local file local",
        "error: key ***",
    )


def test_reading_the_reply_changes_nothing():
    """Its warnings come with the events of the end, once each."""
    chunks = [
        chunk(content="<think>a", tool_calls=[{"id": "1", "function": {"name": "f", "arguments": '{"a": "\t"}'}}]),
        chunk("because", tool_calls=[{"index": 1, "id": "1", "function": {"name": "g", "arguments": "{}"}}]),
    ]
    plain, read = Accumulator(), Accumulator()
    events: dict[Any, list[StreamEvent]] = {plain: [], read: []}
    for accumulator, received in events.items():
        for payload in chunks:
            received += accumulator.add(payload)
            for _ in range(2 if accumulator is read else 0):
                assert accumulator.reply() == accumulator.reply()
        received += accumulator.finish(has_end_mark=True)
    shown = [[(event.type, getattr(event, "text", "")) for event in received] for received in events.values()]
    assert shown[0] == shown[1]
    assert plain.reply().warnings == read.reply().warnings != ()


@pytest.mark.parametrize("reason", ["tool_calls", "function_call", "tool_use"])
def test_finish_reason_of_calls_without_a_call_is_an_error(reason):
    """A run would take the response for the final one."""
    with pytest.raises(ProtocolError, match="sent no call") as caught:
        accumulated(chunk(content="Let me look."), chunk(reason))
    assert caught.value.partial.text == "Let me look."


def test_tags_are_text_if_the_server_separates_the_reasoning():
    assert reply_of(chunk(reasoning="Hm."), chunk("stop", content="<think>a</think>b")).text == "<think>a</think>b"


def test_log_probabilities_of_which_a_list_is_missing_are_kept():
    reply = reply_of({"choices": [{"text": "ab", "logprobs": {"tokens": ["a", "b"]}, "finish_reason": "stop"}]})
    assert [item["token"] for item in reply.choice.logprobs] == ["a", "b"]


def test_raw_of_a_stream_of_a_text_has_the_fields_of_all_payloads():
    """Each chunk of /completions looks like a complete response."""
    chunks = [
        {"choices": [{"text": "a"}], "first": 1},
        {"choices": [{"text": "b", "finish_reason": "stop"}], "last": 2},
    ]
    assert reply_of(*chunks).raw == {"first": 1, "last": 2}


def test_deep_nesting_is_read_or_refused():
    deep: Any = "x"
    for _ in range(900):
        deep = [deep]
    accumulated(chunk(content=[deep], tool_calls=[{"name": "f", "arguments": deep}]))
    assert parse_error([deep]).message


UNKNOWN_PAYLOADS: dict[str, tuple[dict[str, Any], str]] = {
    "code and message": ({"code": 50505, "message": "no luck"}, "no luck"),
    "message and type": ({"message": "no luck", "type": "server_error"}, "no luck"),
    "code beside an id": ({"id": "req-1", "code": 500}, '"code": 500'),
    "reason": ({"reason": "no luck"}, "no part of a chat completion.*no luck"),
    "nothing known": ({"foo": 1}, 'no part of a chat completion: {"foo": 1}'),
    # Names of errors of services, each beside an id.
    "Baidu": ({"id": "1", "error_code": 336003, "error_msg": "no luck"}, "no luck"),
    "MiniMax": ({"id": "1", "choices": None, "base_resp": {"status_code": 1004, "status_msg": "no luck"}}, "no luck"),
    "list of errors": ({"id": "1", "errors": [{"message": "no luck"}]}, "no luck"),
    "list of texts": ({"id": "1", "choices": [], "errors": ["no", "luck"]}, "no; luck"),
    "type": ({"id": "1", "type": "error", "reason": "no luck"}, "no luck"),
    "status": ({"id": "1", "model": "m", "status": "failed"}, "failed"),
    "camel case": ({"id": "1", "errorCode": 7, "errorMessage": "no luck"}, "no luck"),
    "exception": ({"id": "1", "exception": "no luck"}, "no luck"),
    "unknown beside an id": ({"id": "1", "created": 5, "trouble": "no luck"}, "no part of a chat completion.*no luck"),
    "beside text": ({**chunk(content="lo"), "error_msg": "no luck"}, "no luck"),
}


@pytest.mark.parametrize(("payload", "words"), UNKNOWN_PAYLOADS.values(), ids=UNKNOWN_PAYLOADS)
def test_unknown_payload_after_text_is_an_error(payload, words):
    accumulator = Accumulator()
    accumulator.add(chunk(content="Hel"))
    assert [event.type for event in accumulator.add(payload)][-1] == "error"
    with pytest.raises(StreamError, match=words) as caught:
        accumulator.finish(has_end_mark=True)
    assert caught.value.partial.text.startswith("Hel")


KNOWN_PAYLOADS: dict[str, dict[str, Any]] = {
    "empty": {},
    "error without a value": {"choices": [], "error": {"message": None, "code": 0}},
    "blank message and detail": {"choices": [], "message": "", "detail": ""},
    "code of a success": {"code": 0, "message": "Success", "choices": []},
    "only null detail": {"detail": None},
    "ping": {"type": "ping"},
    "progress": {"prompt_progress": {"total": 9}},
    "usage": {"usage": None},
    "code of a success as text": {"id": "1", "choices": [], "code": "200", "message": "Success"},
    "status of a success": {"id": "1", "choices": [], "base_resp": {"status_code": 0, "status_msg": "success"}},
    "errors without one": {"id": "1", "choices": [], "errors": [], "error_code": 0, "error_msg": "", "status": "ok"},
    "labels": {"id": "1", "object": "chat.completion.chunk", "created": 5, "model": "m"},
    "cost of a chunk": {"object": "chat.completion.chunk", "cost": 1},
    "measures of errors": {"id": "1", "choices": [], "error_rate": 0.5, "errors_count": 2, "error_code": 0.0},
}


@pytest.mark.parametrize("payload", KNOWN_PAYLOADS.values(), ids=KNOWN_PAYLOADS)
def test_known_payload_without_choices_is_no_error(payload):
    accumulated(chunk("stop", content="Hello"), payload)
    events, reply = accumulated(chunk(content="Hel"), payload, chunk("stop", content="lo"))
    assert reply.text == "Hello"
    assert [event.type for event in events] == ["message_start", "content_delta", "content_delta", "message_stop"]


UNCLOSED = "the reasoning is never closed by </think>: all of the content is text"
STRAY = "the text has a </think> without <think>: is it a case for think_tags='prefilled'?"
LIMIT = "the text ends inside <think>: the reasoning may contain the answer"
# Reasoning in tags at the start of the content: mode, content, finish reason, and the reasoning, text and warnings of
# the reply. Text is never lost.
SPLITS: dict[str, tuple[str, str, str, str, str, list[str]]] = {
    "tag-first": ("auto", " \n<think>\na\n</think>\n\nb<think>c</think>", "stop", "a\n", "b<think>c</think>", []),
    "open-only": ("auto", "<think>\na", "stop", "", "<think>\na", [UNCLOSED]),
    "half-a-closing-tag-at-the-end": ("auto", "<think>a</thi", "stop", "", "<think>a</thi", [UNCLOSED]),
    "tags-do-not-mix": ("auto", "<thought>a</think>b", "stop", "", "<thought>a</think>b", [UNCLOSED, STRAY]),
    "indented": ("auto", "<think>a</think>\n \n    b\n", "stop", "a", "    b\n", []),
    "stray-in-code": ("auto", "```\na\n</think>\n```", "stop", "", "```\na\n</think>\n```", [STRAY]),
    "prefilled-and-opened-again": ("prefilled", "<think>a</think>b", "stop", "a", "b", []),
    "prefilled-after-many-blanks": ("prefilled", " " * 300 + "a</think>b", "stop", "a", "b", []),
    "prefilled-never-closed": ("prefilled", " a", "stop", "", " a", [UNCLOSED]),
    "prefilled-cut-by-a-limit": ("prefilled", "42", "length", "42", "", [LIMIT]),
    "cut-by-a-limit": ("auto", "<think>42", "length", "42", "", [LIMIT]),
    "blank-only": ("auto", "  ", "stop", "", "  ", []),
    "blanks-around-a-tag-never-closed": ("auto", "\n <think>\n \n", "stop", "", "\n <think>\n \n", [UNCLOSED]),
    "blanks-before-a-tag-never-closed": ("auto", " \n<think> a", "stop", "", " \n<think> a", [UNCLOSED]),
}


@pytest.mark.parametrize(("mode", "text", "finish", "reasoning", "content", "warnings"), SPLITS.values(), ids=SPLITS)
def test_reasoning_in_tags_at_the_start_of_the_content(mode, text, finish, reasoning, content, warnings):
    """Whole, by characters, and at every cut in two."""
    for pieces in [[text], list(text)] + [[text[:i], text[i:]] for i in range(len(text))]:
        accumulator = Accumulator(think_tags=mode)
        for payload in (*(chunk(content=piece) for piece in pieces), chunk(finish)):
            accumulator.add(payload)
        accumulator.finish()
        reply = accumulator.reply()
        assert (reply.reasoning, reply.text, list(reply.warnings)) == (reasoning, content, warnings), pieces


def test_think_splitter_holds_back_no_more_than_a_tag():
    splitter = ThinkSplitter()
    sent = "<think>" + "a<b" * 50
    out = "".join(text for character in sent for _, text in splitter.feed(character))
    assert len(sent) - len("<think>") - len(out) <= len("</think>") - 1
