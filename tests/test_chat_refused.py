"""Refused chat requests: invalid JSON, invalid values of each field, and the field that the error names."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localchat.serving.api.chat import MAX_N, parse_chat
from localchat.serving.core import errors
from localchat.serving.core.fields import parse_body
from localchat.serving.core.params import MAX_STOPS
from localchat.serving.core.request import ParseOptions

from .chat_requests import HI, NULLABLE, TOOL, parse, refused


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        pytest.param({"model": 5}, "model", id="model"),
        pytest.param({"stream": "yes"}, "stream", id="stream"),
        pytest.param({"stream": 1}, "stream", id="an integer is no boolean"),
        pytest.param({"stream_options": []}, "stream_options", id="stream_options"),
        pytest.param({"stream_options": {"include_usage": 1}}, "stream_options.include_usage", id="include_usage"),
        pytest.param({"n": 0}, "n", id="n 0"),
        pytest.param({"n": MAX_N + 1}, "n", id="n too large"),
        pytest.param({"max_tokens": 0}, "max_tokens", id="k41-zero"),
        pytest.param({"max_tokens": -2}, "max_tokens", id="k41-negative"),
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
        pytest.param({"stop_token_ids": [True]}, "stop_token_ids", id="true for an id"),
        pytest.param({"logit_bias": 5}, "logit_bias", id="logit_bias number"),
        pytest.param({"logit_bias": {"": 1}}, "logit_bias.", id="logit_bias empty text"),
        pytest.param({"logit_bias": {"5": True}}, "logit_bias.5", id="logit_bias true"),
        pytest.param({"logit_bias": {"5": "1"}}, "logit_bias.5", id="logit_bias text value"),
        pytest.param({"logit_bias": [5]}, "logit_bias[0]", id="logit_bias no pair"),
        pytest.param({"logit_bias": [[5, 1], [-1, 1]]}, "logit_bias[1]", id="logit_bias negative id"),
        pytest.param({"logit_bias": [[5, 101]]}, "logit_bias[0]", id="logit_bias pair too large"),
        pytest.param({"typical_p": 2}, "typical_p", id="typical_p"),
        pytest.param({"typical": 2}, "typical", id="typical, by its name"),
        pytest.param({"top_n_sigma": -2}, "top_n_sigma", id="top_n_sigma"),
        pytest.param({"xtc_probability": 1.5}, "xtc_probability", id="xtc_probability"),
        pytest.param({"dynatemp_range": -1}, "dynatemp_range", id="dynatemp_range"),
        pytest.param({"repeat_last_n": -2}, "repeat_last_n", id="repeat_last_n"),
        pytest.param({"dry_base": 0.5}, "dry_base", id="dry_base"),
        pytest.param({"dry_sequence_breakers": []}, "dry_sequence_breakers", id="no breakers"),
        pytest.param({"dry_sequence_breakers": "x"}, "dry_sequence_breakers", id="breakers text"),
        pytest.param({"dry_sequence_breakers": ["a\0b"]}, "dry_sequence_breakers", id="breaker with NUL"),
        pytest.param({"mirostat": 3}, "mirostat", id="mirostat"),
        pytest.param({"samplers": ["top_k", "magic"]}, "samplers", id="unknown sampler"),
        pytest.param({"samplers": "kk"}, "samplers", id="sampler twice"),
        pytest.param({"samplers": 5}, "samplers", id="samplers number"),
        pytest.param({"samplers": ["infill"]}, "samplers", id="unsupported sampler"),
        pytest.param({"adaptive_target": 2}, "adaptive_target", id="adaptive_target"),
        pytest.param({"adaptive_decay": 1}, "adaptive_decay", id="adaptive_decay"),
        pytest.param({"post_sampling_probs": 1}, "post_sampling_probs", id="post_sampling_probs"),
        pytest.param({"t_max_predict_ms": "1"}, "t_max_predict_ms", id="t_max_predict_ms"),
        pytest.param({"n_predict": 0}, "n_predict", id="n_predict 0"),
        pytest.param({"n_predict": -2}, "n_predict", id="n_predict -2"),
        pytest.param({"min_tokens": -1}, "min_tokens", id="min_tokens"),
        pytest.param({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", id="truncate_prompt_tokens"),
        pytest.param({"min_tokens": 5, "max_tokens": 4}, "min_tokens", id="min_tokens above max_tokens"),
        pytest.param({"ignore_eos": 1}, "ignore_eos", id="ignore_eos"),
        pytest.param({"use_beam_search": True}, "use_beam_search", id="v50-beam search"),
        pytest.param({"use_beam_search": 0}, "use_beam_search", id="v50-a number for false"),
        pytest.param({"prompt_logprobs": 21}, "prompt_logprobs", id="v44-prompt_logprobs"),
        pytest.param({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", id="v44-prompt_logprobs in a stream"),
        pytest.param({"lora": [{"id": 0, "scale": 1}]}, "lora", id="lora"),
        pytest.param({"modalities": ["audio"]}, "modalities", id="audio"),
        pytest.param({"web_search_options": {}}, "web_search_options", id="web search"),
        pytest.param({"allowed_token_ids": [5]}, "allowed_token_ids", id="vllm's allowed_token_ids"),
        pytest.param({"guided_choice": [""]}, "guided_choice", id="vllm's guided_choice"),
        pytest.param({"structured_outputs": {"json": 5}}, "structured_outputs.json", id="vllm's structured_outputs"),
        pytest.param(
            {"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag", id="structural tag"
        ),
        pytest.param({"guided_regex": "a", "regex": "b"}, "guided_regex", id="two formats"),
        pytest.param({"chat_template": "x"}, "chat_template", id="v10-chat_template is not allowed"),
        pytest.param({"response_prefix": 5}, "response_prefix", id="response_prefix"),
        pytest.param({"echo": "yes"}, "echo", id="echo"),
        pytest.param({"continue_final_message": "all"}, "continue_final_message", id="continue_final_message"),
        pytest.param({"documents": ["x"]}, "documents[0]", id="documents"),
        pytest.param(
            {"chat_template_kwargs": {"enable_thinking": "false"}},
            "chat_template_kwargs.enable_thinking",
            id="template variable: text instead of a boolean",
        ),
        pytest.param({"functions": [{}]}, "functions[0].name", id="function without name"),
        pytest.param({"functions": [{"name": "f"}], "function_call": 5}, "function_call", id="function_call"),
        pytest.param({"reasoning_format": "deepseek-legacy"}, "reasoning_format", id="reasoning_format"),
        pytest.param({"reasoning_budget_tokens": -2}, "reasoning_budget_tokens", id="reasoning budget"),
        pytest.param({"thinking_budget": "5"}, "thinking_budget", id="alias of the reasoning budget"),
        pytest.param(
            {"chat_template_kwargs": {"thinking_budget": 0.5}},
            "chat_template_kwargs.thinking_budget",
            id="half a token",
        ),
        pytest.param({"reasoning_budget_message": 5}, "reasoning_budget_message", id="reasoning_budget_message"),
        pytest.param({"reasoning_control": True}, "reasoning_control", id="reasoning_control"),
        pytest.param({"request_id": 5}, "request_id", id="request_id"),
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
        pytest.param(
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": []}}, "tools": [TOOL]},
            "tool_choice.allowed_tools.mode",
            id="allowed_tools mode",
        ),
        pytest.param(
            {"tool_choice": {"type": "allowed_tools", "tools": []}, "tools": [TOOL]},
            "tool_choice.tools",
            id="allowed_tools without tools",
        ),
        pytest.param(
            {"tool_choice": {"type": "allowed_tools", "tools": [{"name": "other"}]}, "tools": [TOOL]},
            "tool_choice",
            id="allowed_tools not offered",
        ),
        pytest.param(
            {"tool_choice": {"type": "function", "function": {"name": "other"}}, "tools": [TOOL]},
            "tool_choice",
            id="k21-name not offered",
        ),
        pytest.param({"chat_template_kwargs": []}, "chat_template_kwargs", id="template variables"),
        pytest.param({"enable_thinking": "no"}, "enable_thinking", id="enable_thinking"),
        pytest.param({"reasoning_effort": 3}, "reasoning_effort", id="reasoning_effort"),
        pytest.param({"response_format": {}}, "response_format.type", id="response_format without type"),
        pytest.param({"response_format": {"type": "xml"}}, "response_format.type", id="response_format of a type"),
        pytest.param(
            {"response_format": {"type": "json_schema"}}, "response_format.json_schema", id="json_schema without one"
        ),
        pytest.param(
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
            id="json_schema without schema",
        ),
        pytest.param({"json_schema": "x"}, "json_schema", id="json_schema text"),
        pytest.param({"grammar": 5}, "grammar", id="grammar"),
        pytest.param({"choice": ["a", ""]}, "choice", id="choice blank"),
        pytest.param({"regex": "a", "choice": ["a"]}, "choice", id="two formats"),
        pytest.param({"continue_final_message": True}, "continue_final_message", id="no message to continue"),
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
def test_wrong_field_is_named(fields, param):
    """T27, V9."""
    assert refused(**fields).param == param


def test_message_gives_both_numbers():
    message = refused(top_p=1.5).message
    assert "0" in message
    assert "1" in message
    assert "1.5" in message
    assert "'min_tokens' is 5 and must not exceed the length limit, 4" in refused(min_tokens=5, max_tokens=4).message


def test_message_does_not_repeat_a_whole_prompt():
    assert len(refused(temperature="x" * 100_000).message) < 300


def test_k10_strict_names_the_unknown_field():
    assert parse(strict=True, user="u", temperature=0).params.sampling == {"temperature": 0}
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
        parse_body(body)
    assert caught.value.param == "body"


def test_byte_order_mark_is_skipped():
    assert parse_chat(parse_body(b"\xef\xbb\xbf" + json.dumps({"messages": HI}).encode())) == parse()


@pytest.mark.parametrize(
    ("escaped", "text"),
    [(r"\ud83d", "�"), (r"\ud83d\ude00", "😀"), (r"a\udc00b", "a�b"), (r"\\ud83d", r"\ud83d")],
)
def test_half_a_surrogate_pair_is_replaced(escaped, text):
    body = b'{"messages": [{"role": "user", "content": "%b"}]}' % escaped.encode()
    assert parse_chat(parse_body(body)).messages[0]["content"] == text


@settings(max_examples=25)
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_any_json_is_a_request_or_a_bad_request(value):
    for body in ({"messages": value}, value, *({"messages": HI, "tools": [TOOL], name: value} for name in NULLABLE)):
        with contextlib.suppress(errors.BadRequest):
            parse_chat(parse_body(json.dumps(body).encode("utf-8", "surrogatepass")), ParseOptions(allow_template=True))
