"""The wire's chat request and answer: JSON to values, values to JSON, and every way in which JSON can be wrong."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localchat.api import errors
from localchat.api.chat import MAX_N, MAX_STOPS, ChatRequest, parse_chat
from localchat.api.fields import parse_body
from localchat.api.models import model_body, models_body
from localchat.api.reply import ReplyHead, StreamReply, Usage, WholeReply, finish_reason, logprob_entry

HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def parse(strict=False, **members):
    return parse_chat(json.dumps({"messages": HI, **members}).encode(), strict=strict)


def parse_messages(*messages):
    return parse(messages=list(messages)).messages


def refused(**members):
    with pytest.raises(errors.BadRequest) as caught:
        parse(**members)
    assert caught.value.status == 400
    return caught.value


# --- the request ---


def test_smallest_request_says_nothing_but_the_message():
    assert parse() == ChatRequest(model="", messages=({"role": "user", "content": "hi"},))


@pytest.mark.parametrize(
    ("members", "attribute", "value"),
    [
        pytest.param({"model": "m"}, "model", "m", id="model"),
        pytest.param({"stream": True}, "stream", True, id="stream"),
        pytest.param({"stream_options": {"include_usage": True}}, "include_usage", True, id="k13-include_usage"),
        pytest.param({"n": 3}, "n", 3, id="n"),
        pytest.param({"max_tokens": 7}, "max_tokens", 7, id="max_tokens"),
        pytest.param({"max_tokens": 7.0}, "max_tokens", 7, id="whole float"),
        pytest.param({"max_completion_tokens": 7}, "max_tokens", 7, id="k41-alias"),
        pytest.param({"max_tokens": 1, "max_completion_tokens": 7}, "max_tokens", 7, id="k41-newer name wins"),
        pytest.param({"temperature": 0}, "sampling", {"temperature": 0}, id="g3-explicit zero"),
        pytest.param({"top_k": 0, "top_p": 0, "min_p": 0}, "sampling", {"top_k": 0, "top_p": 0, "min_p": 0}, id="g3"),
        pytest.param({"top_k": -1}, "sampling", {"top_k": 0}, id="top_k -1 is off"),
        pytest.param({"seed": 0}, "sampling", {"seed": 0}, id="seed 0"),
        pytest.param({"seed": -1}, "sampling", {}, id="seed -1 is any"),
        pytest.param({"repetition_penalty": 1.2}, "sampling", {"repeat_penalty": 1.2}, id="k42"),
        pytest.param(
            {"presence_penalty": -2, "frequency_penalty": 2, "repeat_penalty": 1},
            "sampling",
            {"presence_penalty": -2, "frequency_penalty": 2, "repeat_penalty": 1},
            id="penalties",
        ),
        pytest.param({"stop": "x"}, "stop", ("x",), id="k11-text"),
        pytest.param({"stop": ["x", "\n"]}, "stop", ("x", "\n"), id="k11-list"),
        pytest.param({"stop": ["42"]}, "stop", ("42",), id="k11-numeric string is text"),
        pytest.param({"stop_token_ids": [1, 2]}, "stop_token_ids", (1, 2), id="k11-ids"),
        pytest.param({"logit_bias": {"5": -100, "6": 1.5}}, "logit_bias", ((5, -100), (6, 1.5)), id="logit_bias"),
        pytest.param({"logprobs": True}, "top_logprobs", 0, id="k26-logprobs alone"),
        pytest.param({"logprobs": True, "top_logprobs": 5}, "top_logprobs", 5, id="k26-top"),
        pytest.param({"logprobs": False, "top_logprobs": 0}, "top_logprobs", None, id="k26-off"),
        pytest.param({"tools": [TOOL]}, "tools", (TOOL,), id="tools"),
        pytest.param({"tools": [TOOL]}, "tool_choice", "auto", id="k21-auto by default"),
        pytest.param({"tools": [TOOL], "tool_choice": "none"}, "tool_choice", "none", id="k22-none"),
        pytest.param({"tools": [], "tool_choice": "auto"}, "tool_choice", "none", id="k21-auto without tools"),
        pytest.param({"parallel_tool_calls": False}, "parallel_tool_calls", False, id="parallel_tool_calls"),
        pytest.param(
            {"template_vars": {"a": 1, "b": 1}, "chat_template_kwargs": {"b": 2}},
            "template_vars",
            {"a": 1, "b": 2},
            id="k30-both names",
        ),
        pytest.param(
            {"enable_thinking": False, "reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": True}},
            "template_vars",
            {"enable_thinking": False, "reasoning_effort": "low"},
            id="own members win",
        ),
        pytest.param({"response_format": {"type": "text"}}, "n", 1, id="response_format that asks for nothing"),
        pytest.param({"user": "u", "metadata": {}, "whatever": 1}, "n", 1, id="k10-unknown members"),
    ],
)
def test_member_is_read(members, attribute, value):
    assert getattr(parse(**members), attribute) == value


# fmt: off
NULLABLE = (
    "model", "stream", "stream_options", "n", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k",
    "min_p", "seed", "stop", "presence_penalty", "frequency_penalty", "repeat_penalty", "repetition_penalty",
    "stop_token_ids", "logit_bias", "logprobs", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls",
    "template_vars", "chat_template_kwargs", "enable_thinking", "reasoning_effort", "response_format", "grammar",
    "echo", "documents", "user",
)
# fmt: on


@pytest.mark.parametrize("name", NULLABLE)
def test_null_is_absent(name):
    assert parse(**{name: None}) == parse()


@pytest.mark.parametrize(
    ("members", "param"),
    [
        pytest.param({"model": 5}, "model", id="model"),
        pytest.param({"stream": "yes"}, "stream", id="stream"),
        pytest.param({"stream": 1}, "stream", id="an integer is no boolean"),
        pytest.param({"stream_options": []}, "stream_options", id="stream_options"),
        pytest.param({"stream_options": {"include_usage": 1}}, "stream_options.include_usage", id="include_usage"),
        pytest.param({"n": 0}, "n", id="n 0"),
        pytest.param({"n": MAX_N + 1}, "n", id="n too large"),
        pytest.param({"max_tokens": 0}, "max_tokens", id="k41-zero"),
        pytest.param({"max_tokens": -1}, "max_tokens", id="k41-negative"),
        pytest.param({"max_tokens": 1.5}, "max_tokens", id="half a token"),
        pytest.param({"max_tokens": True}, "max_tokens", id="a boolean is no integer"),
        pytest.param({"max_completion_tokens": "9"}, "max_completion_tokens", id="text is no integer"),
        pytest.param({"temperature": -0.1}, "temperature", id="temperature below 0"),
        pytest.param({"temperature": "hot"}, "temperature", id="temperature text"),
        pytest.param({"temperature": False}, "temperature", id="a boolean is no number"),
        pytest.param({"top_p": 1.1}, "top_p", id="top_p"),
        pytest.param({"top_k": -2}, "top_k", id="top_k"),
        pytest.param({"top_k": 2**31}, "top_k", id="top_k beyond 32 bits"),
        pytest.param({"min_p": 2}, "min_p", id="min_p"),
        pytest.param({"presence_penalty": 3}, "presence_penalty", id="presence_penalty"),
        pytest.param({"frequency_penalty": -3}, "frequency_penalty", id="frequency_penalty"),
        pytest.param({"repeat_penalty": 0}, "repeat_penalty", id="repeat_penalty"),
        pytest.param({"repetition_penalty": "1"}, "repetition_penalty", id="the alias is named"),
        pytest.param({"seed": 2**64}, "seed", id="seed"),
        pytest.param({"stop": ""}, "stop", id="k11-blank"),
        pytest.param({"stop": ["a", ""]}, "stop", id="k11-blank in a list"),
        pytest.param({"stop": ["a", 5]}, "stop", id="k11-number"),
        pytest.param({"stop": {"a": 1}}, "stop", id="k11-object"),
        pytest.param({"stop": ["a"] * (MAX_STOPS + 1)}, "stop", id="too many stops"),
        pytest.param({"stop_token_ids": ["5"]}, "stop_token_ids", id="ids as text"),
        pytest.param({"stop_token_ids": [-1]}, "stop_token_ids", id="negative id"),
        pytest.param({"stop_token_ids": 5}, "stop_token_ids", id="one id"),
        pytest.param({"logit_bias": []}, "logit_bias", id="logit_bias list"),
        pytest.param({"logit_bias": {"the": 1}}, "logit_bias", id="logit_bias text"),
        pytest.param({"logit_bias": {"9" * 5000: 1}}, "logit_bias", id="logit_bias id of 5000 digits"),
        pytest.param({"logit_bias": {"5": 101}}, "logit_bias.5", id="logit_bias value"),
        pytest.param({"logprobs": 5}, "logprobs", id="logprobs"),
        pytest.param({"top_logprobs": 2}, "top_logprobs", id="top_logprobs alone"),
        pytest.param({"logprobs": True, "top_logprobs": 21}, "top_logprobs", id="too many top_logprobs"),
        pytest.param({"tools": {}}, "tools", id="tools"),
        pytest.param({"tools": [5]}, "tools[0]", id="tool"),
        pytest.param({"tools": [TOOL, {"type": "web"}]}, "tools[1].type", id="tool type"),
        pytest.param({"tools": [{"type": "function"}]}, "tools[0].function", id="tool without function"),
        pytest.param({"tools": [{"function": {"name": ""}}]}, "tools[0].function.name", id="tool without name"),
        pytest.param(
            {"tools": [{"function": {"name": "f", "parameters": []}}]},
            "tools[0].function.parameters",
            id="tool parameters",
        ),
        pytest.param({"tool_choice": "maybe"}, "tool_choice", id="k21-unknown mode"),
        pytest.param({"tool_choice": 5}, "tool_choice", id="k21-number"),
        pytest.param({"tool_choice": {"type": "function"}}, "tool_choice", id="k21-object without name"),
        pytest.param({"tool_choice": "required"}, "tool_choice", id="k21-required without tools"),
        pytest.param({"tool_choice": "required", "tools": [TOOL]}, "tool_choice", id="required comes later"),
        pytest.param(
            {"tool_choice": {"type": "function", "function": {"name": "other"}}, "tools": [TOOL]},
            "tool_choice",
            id="k21-name not offered",
        ),
        pytest.param({"chat_template_kwargs": []}, "chat_template_kwargs", id="template variables"),
        pytest.param({"enable_thinking": "no"}, "enable_thinking", id="enable_thinking"),
        pytest.param({"reasoning_effort": 3}, "reasoning_effort", id="reasoning_effort"),
        pytest.param({"response_format": {"type": "json_object"}}, "response_format", id="not yet: json"),
        pytest.param({"continue_final_message": True}, "continue_final_message", id="not yet: prefill"),
        pytest.param({"messages": None}, "messages", id="messages null"),
        pytest.param({"messages": []}, "messages", id="g6-no messages"),
        pytest.param({"messages": "hi"}, "messages", id="messages text"),
        pytest.param({"messages": ["hi"]}, "messages[0]", id="message text"),
        pytest.param({"messages": [{"content": "x"}]}, "messages[0].role", id="g6-no role"),
        pytest.param({"messages": [{"role": "", "content": "x"}]}, "messages[0].role", id="g6-blank role"),
        pytest.param({"messages": [*HI, {"role": "bot", "content": "x"}]}, "messages[1].role", id="unknown role"),
        pytest.param({"messages": [{"role": "user"}]}, "messages[0].content", id="no content"),
        pytest.param({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", id="content number"),
        pytest.param({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]", id="part is text"),
        pytest.param(
            {"messages": [{"role": "user", "content": [{"text": "x"}]}]},
            "messages[0].content[0].type",
            id="part without type",
        ),
        pytest.param(
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
            id="part without text",
        ),
        pytest.param(
            {"messages": [*HI, {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}]},
            "messages[1].content[0]",
            id="k25-image",
        ),
        pytest.param(
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]},
            "messages[0].tool_calls[0].function.name",
            id="call without name",
        ),
        pytest.param(
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}]},
            "messages[0].tool_calls[0].function.arguments",
            id="call arguments",
        ),
        pytest.param(
            {"messages": [{"role": "tool", "content": "x", "tool_call_id": 5}]},
            "messages[0].tool_call_id",
            id="tool_call_id",
        ),
    ],
)
def test_wrong_member_is_named(members, param):
    assert refused(**members).param == param


def test_message_gives_both_numbers():
    message = refused(top_p=1.5).message
    assert "0" in message
    assert "1" in message
    assert "1.5" in message


def test_message_does_not_repeat_a_whole_prompt():
    assert len(refused(temperature="x" * 100_000).message) < 300


def test_k10_strict_names_the_unknown_member():
    assert parse(strict=True, user="u", temperature=0).sampling == {"temperature": 0}
    with pytest.raises(errors.BadRequest) as caught:
        parse(strict=True, whatever=1)
    assert caught.value.param == "whatever"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"hello", id="text"),
        pytest.param(b'{"messages": [', id="cut"),
        pytest.param(b'{"a": 1} {"b": 2}', id="g5-data after it"),
        pytest.param(b"[]", id="list"),
        pytest.param(b"null", id="null"),
        pytest.param(b'{"temperature": NaN}', id="NaN"),
        pytest.param(b'{"temperature": -Infinity}', id="Infinity"),
        pytest.param(b'{"temperature": 1e999}', id="float beyond a double"),
        pytest.param(b'{"temperature": ' + b"9" * 400 + b"}", id="integer beyond a double"),
        pytest.param(b'{"a": "\xff"}', id="not UTF-8"),
        pytest.param('{"a": 1}'.encode("utf-16"), id="UTF-16"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b'{"a":' * 100_000, id="deep objects"),
    ],
)
def test_g5_body_that_is_no_object_is_refused(body):
    with pytest.raises(errors.BadRequest) as caught:
        parse_chat(body)
    assert caught.value.param == "body"


def test_byte_order_mark_is_skipped():
    assert parse_chat(b"\xef\xbb\xbf" + json.dumps({"messages": HI}).encode()) == parse()


@pytest.mark.parametrize(
    ("escaped", "text"),
    [(r"\ud83d", "�"), (r"\ud83d\ude00", "😀"), (r"a\udc00b", "a�b"), (r"\\ud83d", r"\ud83d")],
)
def test_half_a_surrogate_pair_is_replaced(escaped, text):
    body = b'{"messages": [{"role": "user", "content": "%b"}]}' % escaped.encode()
    assert parse_chat(body).messages[0]["content"] == text


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_any_json_is_a_request_or_a_bad_request(value):
    for body in ({"messages": value}, {"messages": HI, "tools": value, "stop": value, "logit_bias": value}, value):
        with contextlib.suppress(errors.BadRequest):
            parse_chat(json.dumps(body).encode("utf-8", "surrogatepass"))


# --- messages ---


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        pytest.param({"role": "system", "content": ""}, {"role": "system", "content": ""}, id="empty content"),
        pytest.param(
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "ab"},
            id="k25-parts joined with nothing between",
        ),
        pytest.param(
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "assistant", "content": "no"},
            id="refusal part",
        ),
        pytest.param(
            {"role": "assistant", "content": None, "name": None}, {"role": "assistant"}, id="t28-nulls removed"
        ),
        pytest.param(
            {"role": "assistant", "content": "x", "reasoning_content": "r", "audio": 5},
            {"role": "assistant", "content": "x", "reasoning_content": "r"},
            id="reasoning",
        ),
        pytest.param(
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
            {
                "role": "assistant",
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
            id="call",
        ),
        pytest.param(
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
            {
                "role": "assistant",
                "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
            },
            id="arguments as an object",
        ),
        pytest.param(
            {"role": "assistant", "content": "", "tool_calls": []}, {"role": "assistant", "content": ""}, id="no calls"
        ),
        pytest.param(
            {"role": "tool", "content": "42", "tool_call_id": "c", "name": "f"},
            {"role": "tool", "content": "42", "tool_call_id": "c", "name": "f"},
            id="tool result",
        ),
    ],
)
def test_message_is_normalised(message, expected):
    assert parse_messages(message) == (expected,)


# --- the answer ---

HEAD = ReplyHead(id="chatcmpl-1", created=7, model="m")
START = '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","choices":['
USAGE = Usage(n_prompt=10, n_cached=4, n_completion=3, n_reasoning=1, prompt_s=0.5, completion_s=0.25)


def chunk(delta, *, i=0, logprobs="null", end='"finish_reason":null', usage=""):
    return f'{START}{{"index":{i},"delta":{delta},"logprobs":{logprobs},{end}}}]{usage}}}'


def tell_all(reply):
    reply.reasoning(0, "hm")
    reply.content(0, 'a"é\n')
    reply.tool_head(0, 0, "call_1", "f")
    reply.tool_arguments(0, 0, '{"a":')
    reply.tool_arguments(0, 0, "1}")
    reply.finish(0, "tool_calls", None)


def test_chunks_byte_for_byte():
    """Appendix A's last line; K3, K12, K16, K38."""
    reply = StreamReply(HEAD, 1, include_usage=False)
    reply.roles()
    tell_all(reply)
    reply.usage(USAGE)
    assert reply.take() == [
        chunk('{"role":"assistant","content":""}'),
        chunk('{"reasoning_content":"hm"}'),
        chunk('{"content":"a\\"é\\n"}'),
        chunk('{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"f","arguments":""}}]}'),
        chunk('{"tool_calls":[{"index":0,"function":{"arguments":"{\\"a\\":"}}]}'),
        chunk('{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}'),
        chunk("{}", end='"finish_reason":"tool_calls","stop_reason":null'),
    ]
    assert reply.take() == []


def test_k13_usage_is_null_until_the_closing_chunk():
    reply = StreamReply(HEAD, 1, include_usage=True)
    reply.roles()
    reply.finish(0, "stop", "END")
    reply.usage(USAGE)
    role, finish, usage = reply.take()
    assert role == chunk('{"role":"assistant","content":""}', usage=',"usage":null')
    assert finish == chunk("{}", end='"finish_reason":"stop","stop_reason":"END"', usage=',"usage":null')
    assert json.loads(usage) == {**json.loads(role), "choices": [], "usage": USAGE.body()}


def test_k2_k36_one_role_chunk_per_choice_and_right_indexes():
    reply = StreamReply(HEAD, 2, include_usage=False)
    reply.roles()
    reply.content(1, "b")
    assert reply.take() == [
        chunk('{"role":"assistant","content":""}'),
        chunk('{"role":"assistant","content":""}', i=1),
        chunk('{"content":"b"}', i=1),
    ]


def test_k26_logprobs_ride_on_the_next_chunk_of_their_choice():
    reply = StreamReply(HEAD, 2, include_usage=False)
    entry = logprob_entry("é".encode()[:1], float("-inf"), [(b"x", -0.5)])
    assert entry == {
        "token": "�",
        "logprob": -9999.0,
        "bytes": [0xC3],
        "top_logprobs": [{"token": "x", "logprob": -0.5, "bytes": [120]}],
    }
    reply.logprobs(0, [entry])
    reply.content(1, "other")
    reply.logprobs(0, [entry])
    reply.finish(0, "stop", 5)
    other, finish = (json.loads(text)["choices"][0] for text in reply.take())
    assert other["logprobs"] is None
    assert finish == {
        "index": 0,
        "delta": {},
        "logprobs": {"content": [entry, entry]},
        "finish_reason": "stop",
        "stop_reason": 5,
    }


def test_k5_error_chunk_has_the_error_body():
    reply = StreamReply(HEAD, 1, include_usage=True)
    reply.error(errors.InferenceError("it broke"))
    assert [json.loads(text) for text in reply.take()] == [
        {"error": {"message": "it broke", "type": "inference_error", "param": None, "code": "inference_error"}}
    ]


def test_whole_reply():
    """G30, V42, V43, K20."""
    reply = WholeReply(HEAD, 2)
    tell_all(reply)
    reply.finish(1, "length", None)
    body = reply.body(USAGE)
    assert list(body) == ["id", "object", "created", "model", "choices", "usage"]
    assert (body["id"], body["object"], body["created"], body["model"]) == ("chatcmpl-1", "chat.completion", 7, "m")
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    assert body["choices"] == [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "reasoning_content": "hm",
                "content": 'a"é\n',
                "tool_calls": [call],
            },
            "logprobs": None,
            "finish_reason": "tool_calls",
            "stop_reason": None,
        },
        {
            "index": 1,
            "message": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": None,
        },
    ]


def test_k20_content_is_null_beside_calls_alone():
    reply = WholeReply(HEAD, 1)
    reply.tool_head(0, 0, "call_1", "f")
    assert reply.body(USAGE)["choices"][0]["message"]["content"] is None


def test_k15_usage_members():
    assert USAGE.body() == {
        "prompt_tokens": 10,
        "prompt_time": 0.5,
        "prompt_tokens_per_sec": 12.0,
        "completion_tokens": 3,
        "completion_time": 0.25,
        "completion_tokens_per_sec": 8.0,
        "total_tokens": 13,
        "total_time": 0.75,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }


def test_rates_of_nothing_are_null():
    body = Usage(n_prompt=5, n_cached=5, n_completion=1, prompt_s=0.0, completion_s=0.0).body()
    assert body["prompt_tokens_per_sec"] is None
    assert body["completion_tokens_per_sec"] is None


def test_k14_usage_over_choices_counts_the_prompt_once():
    total = Usage.total([USAGE, USAGE])
    assert (total.n_prompt, total.n_cached, total.n_completion, total.n_reasoning) == (10, 4, 6, 2)


@pytest.mark.parametrize(
    ("reason", "has_calls", "is_cut", "expected"),
    [
        ("stop", False, False, "stop"),
        ("length", False, False, "length"),
        ("stop", True, False, "tool_calls"),
        ("length", True, False, "tool_calls"),
        ("length", True, True, "length"),
    ],
)
def test_k6_finish_reason(reason, has_calls, is_cut, expected):
    assert finish_reason(reason, has_calls=has_calls, is_cut=is_cut) == expected


# --- errors and models ---


@pytest.mark.parametrize(
    ("error", "status", "type", "code", "param", "headers"),
    [
        pytest.param(errors.BadRequest("m", "p"), 400, "invalid_request_error", None, "p", {}, id="b-bad request"),
        pytest.param(
            errors.ContextLengthExceeded("m", "messages"),
            400,
            "invalid_request_error",
            "context_length_exceeded",
            "messages",
            {},
            id="k28-context",
        ),
        pytest.param(
            errors.Unauthorized("m"),
            401,
            "invalid_request_error",
            "invalid_api_key",
            None,
            {"WWW-Authenticate": "Bearer"},
            id="key",
        ),
        pytest.param(errors.UnknownPath("m"), 404, "invalid_request_error", "unknown_path", None, {}, id="path"),
        pytest.param(errors.ModelNotFound("m", "model"), 404, "model_not_found", None, "model", {}, id="b-model"),
        pytest.param(
            errors.MethodNotAllowed("m", ["GET", "HEAD"]),
            405,
            "invalid_request_error",
            "method_not_allowed",
            None,
            {"Allow": "GET, HEAD"},
            id="method",
        ),
        pytest.param(
            errors.QueueFull("m"), 429, "rate_limit_error", "queue_full", None, {"Retry-After": "2"}, id="k40"
        ),
        pytest.param(errors.InferenceError("m"), 500, "inference_error", None, None, {}, id="b-engine"),
        pytest.param(errors.ModelLoading("m"), 503, "model_loading", None, None, {"Retry-After": "10"}, id="g11"),
    ],
)
def test_k27_errors(error, status, type, code, param, headers):
    assert error.status == status
    assert error.headers() == headers
    assert error.body() == {"error": {"message": "m", "type": type, "param": param, "code": code or type}}


def test_models_body():
    model = model_body("m", 7, {"n_ctx": 9})
    assert model == {"id": "m", "object": "model", "created": 7, "owned_by": "localchat", "meta": {"n_ctx": 9}}
    assert models_body([model]) == {"object": "list", "data": [model]}


def test_unknown_lists_what_nobody_read():
    members = parse_body(b'{"a": 1, "b": 2}')
    members.integer("a")
    assert members.unknown() == ["b"]
