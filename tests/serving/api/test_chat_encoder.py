"""Encoders of chat: output events become chunks, or one body, with usage, timings and log probabilities."""

import json
from dataclasses import replace

import pytest

from localchat.serving.api.chat import ChatEncoder
from localchat.serving.core.events import ContentDelta, OutputEnd, OutputToken, ReasoningDelta, ResponseHead, Usage
from localchat.serving.core.text import to_json
from tests.support.chat_requests import parse
from tests.support.wire_schemas import call, sampled

HEAD = ResponseHead("chatcmpl-1", 7, "m", ((5, 6),))
START = '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","choices":['
USAGE = Usage(n_prompt=10, n_cached=4, n_completion=3, n_reasoning=1, prompt_s=0.5, completion_s=0.25, queue_s=0.125)
EVENTS = (ReasoningDelta("hm"), ContentDelta('a"é\n'), *call(0, "call_1", "f", '{"a":', "1}"), OutputEnd("tool_calls"))


def chunk(delta, *, i=0, logprobs="null", end='"finish_reason":null', beside=""):
    return f'{START}{{"index":{i},"delta":{delta},"logprobs":{logprobs},{end}}}]{beside}}}'


def encoder_of(*events, **fields):
    """An encoder with the events of choice 0; an event may be a pair with its index."""
    encoder = ChatEncoder(HEAD, parse(**fields), lambda: USAGE)
    for event in events:
        encoder.add(*(event if isinstance(event, tuple) else (0, event)))
    return encoder


def chunks_of(*events, **fields):
    """The chunks of a stream, complete if the events are."""
    encoder = encoder_of(*events, stream=True, **fields)
    if all(choice.end for choice in encoder.choices):
        encoder.finish()
    return encoder.take()


def body_of(*events, **fields):
    encoder = encoder_of(*events, **fields)
    assert encoder.take() == []
    return encoder.body()


def test_chunks_byte_for_byte():
    timings = ',"timings":' + to_json(USAGE.timings())
    assert chunks_of(*EVENTS) == [
        chunk('{"role":"assistant","content":""}'),
        chunk('{"reasoning_content":"hm"}'),
        chunk('{"content":"a\\"é\\n"}'),
        chunk('{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"f","arguments":""}}]}'),
        chunk('{"tool_calls":[{"index":0,"function":{"arguments":"{\\"a\\":"}}]}'),
        chunk('{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}'),
        chunk("{}", end='"finish_reason":"tool_calls","stop_reason":null', beside=timings),
    ]


def test_logprobs_are_on_the_next_chunk_of_their_choice():
    token = sampled(OutputToken(5, "é".encode()[:1], float("-inf"), (OutputToken(6, b"x", -0.5),)))
    top = {"token": "x", "logprob": -0.5, "bytes": [120]}
    entry = {"token": "�", "logprob": -9999.0, "bytes": [0xC3], "top_logprobs": [top]}
    events = (token, (1, ContentDelta("other")), token, OutputEnd("stop", 5))
    fields = {"n": 2, "logprobs": True, "top_logprobs": 1, "return_token_ids": True}
    first, _, *others = (json.loads(text) for text in chunks_of(*events, **fields))
    other, finish = (chunk["choices"][0] for chunk in others)
    assert (first["prompt_token_ids"], "prompt_token_ids" in others[0]) == ([5, 6], False)
    assert (other["index"], other["logprobs"]) == (1, None)
    assert (finish["logprobs"], finish["token_ids"], finish["stop_reason"]) == ({"content": [entry] * 2}, [5, 5], 5)
    body = body_of(*events, **fields)
    assert body["choices"][0]["logprobs"] == finish["logprobs"]
    assert (body["prompt_token_ids"], body["choices"][0]["token_ids"]) == ((5, 6), [5, 5])


def test_whole_body():
    body = body_of(*EVENTS, (1, OutputEnd("length")), n=2)
    assert list(body) == ["id", "object", "created", "model", "choices", "usage", "timings"]
    assert (body["id"], body["object"], body["created"], body["model"]) == ("chatcmpl-1", "chat.completion", 7, "m")
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    message = {"role": "assistant", "reasoning_content": "hm", "content": 'a"é\n', "tool_calls": [call]}
    ends = {"logprobs": None, "finish_reason": "tool_calls", "stop_reason": None}
    assert body["choices"] == [
        {"index": 0, "message": message, **ends},
        {"index": 1, "message": {"role": "assistant", "content": ""}, **ends, "finish_reason": "length"},
    ]


def test_content_is_null_beside_calls_alone():
    assert body_of(*call(0, "call_1", "f"))["choices"][0]["message"]["content"] is None


def test_usage_fields():
    """The timings have the names of llama.cpp."""
    assert USAGE.body() == {
        "prompt_tokens": 10, "prompt_time": 0.5, "prompt_tokens_per_sec": 12.0,
        "completion_tokens": 3, "completion_time": 0.25, "completion_tokens_per_sec": 8.0, "total_tokens": 13,
        "queue_time": 0.125, "total_time": 0.875,
        "prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": {"reasoning_tokens": 1},
    }  # fmt: skip
    assert USAGE.timings() == {
        "cache_n": 4, "prompt_n": 6, "prompt_ms": 500.0, "prompt_per_token_ms": 83.333, "prompt_per_second": 12.0,
        "predicted_n": 3, "predicted_ms": 250.0, "predicted_per_token_ms": 125.0, "predicted_per_second": 8.0,
        "queue_ms": 125.0,
    }  # fmt: skip


def test_timings_count_drafts_of_all_choices():
    with_drafts = replace(USAGE, n_drafted=10, n_draft_accepted=7)
    timings = Usage.total([with_drafts, USAGE, with_drafts], 3).timings()
    assert (timings["draft_n"], timings["draft_n_accepted"]) == (20, 14)


@pytest.mark.parametrize("n_without_token", [0, 2])
def test_speed_of_several_choices_is_that_of_one_for_each(n_without_token: int):
    """The time of the first token of each choice is that of the prompt."""
    total = Usage.total([USAGE, USAGE, USAGE, *[Usage(n_first=0)] * n_without_token], 3)
    assert USAGE.completion_rate is not None
    assert total.completion_rate == 3 * USAGE.completion_rate
