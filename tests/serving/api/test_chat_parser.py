"""The parser of chat requests: the value of each field, messages for templates, and the field that an error names."""

import contextlib
import json
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localchat.serving.api.chat import parse_chat
from localchat.serving.core import errors
from localchat.serving.core.fields import parse_body
from localchat.serving.core.params import parse_default
from localchat.serving.core.request import ChatRequest, ResponseFormat
from tests.support.chat_requests import ALLOWED, FIELD_NAMES, HI, NAMED, TOOL, parse, values_of


def test_smallest_request_has_only_the_message():
    assert parse() == ChatRequest(model="", messages=({"role": "user", "content": "hi"},))


OFF = {"chat_template_kwargs": {"enable_thinking": False}}
TOOL_CHOICE = {"type": "allowed_tools", "mode": "required", "tools": [{"name": "look"}]}
# The fields of a request, and the values of the parsed request or of its parameters.
FIELDS = [
    ({"stream": True, "stream_options": {"include_usage": True}}, {"stream": True, "include_usage": True}),
    ({"model": "m", "n": 3, "max_tokens": 7.0}, {"model": "m", "n": 3, "max_tokens": 7}),
    ({"max_tokens": 1, "max_completion_tokens": 7}, {"max_tokens": 7}),
    ({"n_predict": 5}, {"max_tokens": 5}),
    ({"max_tokens": -1}, {"max_tokens": None}),
    ({"n_predict": -1, "max_tokens": 3}, {"max_tokens": 3}),
    ({"temperature": 0, "top_k": -1, "seed": -1}, {"sampling": {"temperature": 0, "top_k": 0, "seed": None}}),
    ({"presence_penalty": -2, "repeat_penalty": 1}, {"sampling": {"presence_penalty": -2, "repeat_penalty": 1}}),
    ({"repetition_penalty": 1.2, "repeat_last_n": 7}, {"sampling": {"repeat_penalty": 1.2, "penalty_last_n": 7}}),
    ({"dry_sequence_breakers": ["."]}, {"sampling": {"dry_sequence_breakers": (".",)}}),
    # adaptive_p is no step of the chain: it samples the token.
    ({"samplers": ["typ_p", "adaptive_p"]}, {"sampling": {"samplers": ("typical_p",)}}),
    ({"typical_p": 0.5, "typical": 0.6}, {"sampling": {"typical_p": 0.5}}),
    ({"samplers": []}, {"sampling": {"samplers": ()}}),
    ({"stop": "x", "stop_token_ids": [1, 2]}, {"stop": ("x",), "stop_token_ids": (1, 2)}),
    ({"stop": ["42", "\n"]}, {"stop": ("42", "\n")}),
    ({"logit_bias": {"5": -100, "the": False}}, {"logit_bias": ((5, -100), ("the", -math.inf))}),
    ({"logit_bias": [[5, 1], ["7", -1], ["a b", False]]}, {"logit_bias": ((5, 1), ("7", -1), ("a b", -math.inf))}),
    ({"logit_bias": []}, {"logit_bias": ()}),
    ({"min_tokens": 5, "ignore_eos": True, "n_cmpl": 2}, {"min_tokens": 5, "ignore_eos": True, "n": 2}),
    ({"truncate_prompt_tokens": 7}, {"truncate_prompt_tokens": 7}),
    ({"truncate_prompt_tokens": -1}, {"truncate_prompt_tokens": 0}),
    ({"n_probs": 0}, {"top_logprobs": None}),
    ({"n_probs": 2}, {"top_logprobs": 2}),
    ({"logprobs": True, "n_probs": 2}, {"top_logprobs": 2}),
    ({"logprobs": True, "top_logprobs": 1, "n_probs": 2}, {"top_logprobs": 1}),
    ({"logprobs": True}, {"top_logprobs": 0}),
    ({"logprobs": True, "top_logprobs": 5}, {"top_logprobs": 5}),
    ({"logprobs": False, "top_logprobs": 0}, {"top_logprobs": None}),
    ({"stream_options": {"continuous_usage_stats": True}}, {"continuous_usage_stats": False}),
    ({"documents": [{"text": "a"}]}, {"chat_template_kwargs": {"documents": [{"text": "a"}]}}),
    ({"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False, "reasoning_effort": "none"}}),
    ({"template_vars": {"a": 1, "b": 1}, "chat_template_kwargs": {"b": 2}}, {"chat_template_kwargs": {"a": 1, "b": 2}}),
    ({"enable_thinking": False, "chat_template_kwargs": {"enable_thinking": True}}, OFF),
    ({"reasoning_format": "none"}, {"reasoning_format": "none"}),
    ({"reasoning_format": None}, {"reasoning_format": "auto"}),
    ({"t_max_predict_ms": 0}, {"t_max_predict_ms": None}),
    ({"t_max_predict_ms": 1500}, {"t_max_predict_ms": 1500}),
    ({"return_tokens": True, "post_sampling_probs": False}, {"return_token_ids": True, "post_sampling_probs": False}),
    ({"use_beam_search": False, "user": "u", "whatever": 1}, {"n": 1}),
    ({"functions": [{"name": "look"}]}, {"tool_choice": "auto"}),
    ({"functions": [{"name": "look"}], "function_call": "none"}, {"tool_choice": "none"}),
    ({"functions": [{"name": "f"}], "function_call": {"name": "f"}}, {"allowed_tools": ("f",)}),
    ({"tools": [TOOL], "parallel_tool_calls": False}, {"tools": (TOOL,), "parallel_tool_calls": False}),
    ({"tools": [TOOL]}, {"tool_choice": "auto"}),
    ({"tools": [TOOL], "tool_choice": "none"}, {"tool_choice": "none"}),
    ({"tools": [], "tool_choice": "auto"}, {"tool_choice": "none"}),
    ({"tools": [TOOL], "tool_choice": "required"}, {"tool_choice": "required"}),
    ({"tools": [TOOL], "tool_choice": NAMED}, {"tool_choice": "required", "allowed_tools": ("look",)}),
    ({"tools": [TOOL], "tool_choice": ALLOWED}, {"tool_choice": "auto", "allowed_tools": ("look",)}),
    ({"tools": [TOOL], "tool_choice": TOOL_CHOICE}, {"tool_choice": "required"}),
    ({"reasoning_budget_tokens": 0}, {"reasoning_budget": 0}),
    ({"thinking_budget_tokens": 5}, {"reasoning_budget": 5}),
    ({"thinking_token_budget": 5}, {"reasoning_budget": 5}),
    ({"thinking_budget": 5, "reasoning_budget": 6}, {"reasoning_budget": 6}),
    ({"chat_template_kwargs": {"thinking_budget": 7}}, {"reasoning_budget": 7}),
    ({"template_vars": {"thinking_budget": 7}}, {"reasoning_budget": 7}),
    (
        {"template_vars": {"thinking_budget": 8}, "chat_template_kwargs": {"thinking_budget": 7}},
        {"reasoning_budget": 7},
    ),
    ({"reasoning_budget_message": "Well."}, {"reasoning_budget_message": "Well."}),
]


@pytest.mark.parametrize(("fields", "values"), FIELDS)
def test_field_is_read(fields, values):
    request = parse(**fields)
    assert values_of(request, values) == values


NESTED = {"type": "json_schema", "json_schema": {"schema": {"type": "null"}}}
# The fields of a request; the kind and the value of its response format, and the field that errors name.
FORMATS = [
    ({"response_format": {"type": "text"}}, None),
    ({"grammar": "", "regex": "", "choice": []}, None),
    ({"response_format": {"type": "json_object"}}, ("json_object", None, "response_format")),
    ({"response_format": {"type": "json_object", "schema": {}}}, ("json_schema", {}, "response_format.schema")),
    ({"response_format": NESTED}, ("json_schema", {"type": "null"}, "response_format.json_schema.schema")),
    ({"response_format": {"type": "json_schema", "schema": {}}}, ("json_schema", {}, "response_format.schema")),
    ({"json_schema": {}}, ("json_schema", {}, "json_schema")),
    ({"grammar": "g"}, ("grammar", "g", "grammar")),
    ({"regex": "a+"}, ("regex", "a+", "regex")),
    ({"choice": ["a", "b"]}, ("choice", ("a", "b"), "choice")),
    ({"guided_json": True}, ("json_schema", True, "guided_json")),
    ({"guided_regex": "a"}, ("regex", "a", "guided_regex")),
    ({"structured_outputs": {"json": {}}}, ("json_schema", {}, "structured_outputs.json")),
    ({"structured_outputs": {"json_object": True}}, ("json_object", None, "structured_outputs.json_object")),
]


@pytest.mark.parametrize(("fields", "expected"), FORMATS)
def test_response_format_is_read(fields, expected):
    assert parse(**fields).response_format == (ResponseFormat(*expected) if expected else None)


@pytest.mark.parametrize("name", FIELD_NAMES)
def test_null_is_absent(name):
    assert parse(**{name: None}) == parse()


FUNCTION = {"name": "f", "arguments": "{}"}
CALL = {"type": "function", "function": FUNCTION}
# A message, and the fields that differ in the message for the template.
MESSAGES = [
    ({"role": "system", "content": ""}, {}),
    ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, {"content": "ab"}),
    ({"role": "user", "content": []}, {"content": ""}),
    ({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, {"content": "no"}),
    ({"role": "assistant", "content": None, "refusal": "no"}, {"content": "no", "refusal": None}),
    ({"role": "assistant", "content": "", "refusal": "no"}, {"content": "no", "refusal": None}),
    ({"role": "assistant", "content": "yes", "refusal": False}, {"refusal": None}),
    ({"role": "assistant", "content": None, "name": None}, {}),
    ({"role": "assistant", "content": "x", "reasoning_content": "r", "weight": 5}, {"weight": None}),
    ({"role": "assistant", "content": "x", "reasoning": "r"}, {"reasoning": None, "reasoning_content": "r"}),
    ({"role": "assistant", "content": "x", "reasoning": {"text": "r"}}, {"reasoning": None}),
    ({"role": "assistant", "content": None, "function_call": FUNCTION}, {"function_call": None, "tool_calls": [CALL]}),
    ({"role": "function", "name": "f", "content": "5"}, {"role": "tool"}),
    ({"role": "assistant", "tool_calls": [{"id": "c", "function": FUNCTION}]}, {"tool_calls": [{"id": "c", **CALL}]}),
    ({"role": "assistant", "tool_calls": [{"type": "function", "function": {**FUNCTION, "arguments": {"a": 1}}}]}, {}),
    ({"role": "assistant", "content": "", "tool_calls": []}, {"tool_calls": None}),
    ({"role": "tool", "content": "42", "tool_call_id": "c", "name": "f"}, {}),
]


@pytest.mark.parametrize(("message", "changed"), MESSAGES)
def test_message_is_normalised(message, changed):
    expected = {name: value for name, value in {**message, **changed}.items() if value is not None}
    assert parse(messages=[message]).messages == (expected,)


def test_default_on_the_command_line_is_read_as_a_request_is():
    assert parse_default("typical=0") == {"typical_p": 0}
    assert parse_default('samplers=["top_k"]') == {"samplers": ("top_k",)}
    for text in ("max_tokens=5", "temperature", "temperature=hot", "top_k=1e999", "top_k=" + "[" * 100000):
        with pytest.raises(errors.BadRequest) as caught:
            parse_default(text)
        assert caught.value.param == text.partition("=")[0]


# --- refused requests ---


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"top_p": 1.5}, "a number from 0 to 1, got 1.5"),
        # OpenAI's API refuses malformed schemas, too. JSON Schema of 2010 had `required: true` and `"type": "any"`.
        ({"json_schema": {"required": True}}, "names (write it beside 'properties', not inside them), got true"),
        ({"json_schema": {"type": "any"}}, 'or a list of these: leave it out to allow all, got "any"'),
        ({"json_schema": {"multipleOf": 0}}, "a number above 0, got 0"),
    ],
)
def test_error_says_what_to_write(fields, words):
    with pytest.raises(errors.BadRequest, match=re.escape(words)):
        parse(**fields)


def test_strict_names_the_unknown_field():
    assert parse(strict=True, user="u", temperature=0).params.sampling == {"temperature": 0}
    with pytest.raises(errors.BadRequest) as caught:
        parse(strict=True, whatever=1)
    assert caught.value.param == "whatever"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b'{"messages": [', id="cut"),
        pytest.param(b'{"a": 1} {"b": 2}', id="data after it"),
        pytest.param(b"[]", id="list"),
        pytest.param(b'{"temperature": NaN}', id="NaN"),
        pytest.param(b'{"temperature": 1e999}', id="float beyond a double"),
        pytest.param(b'{"temperature": ' + b"9" * 400 + b"}", id="integer beyond a double"),
        pytest.param(b'{"a": "\xff"}', id="not UTF-8"),
        pytest.param('{"a": 1}'.encode("utf-16"), id="UTF-16"),
        pytest.param(b"[" * 100_000, id="deep"),
    ],
)
def test_body_that_is_no_object_is_refused(body):
    with pytest.raises(errors.BadRequest) as caught:
        parse_body(body)
    assert caught.value.param == "body"


@pytest.mark.parametrize(
    ("escaped", "text"), [(r"\ud83d", "�"), (r"\ud83d\ude00", "😀"), (r"a\udc00b", "a�b"), (r"\\ud83d", r"\ud83d")]
)
def test_half_a_surrogate_pair_is_replaced_and_a_byte_order_mark_skipped(escaped, text):
    body = b'\xef\xbb\xbf{"messages": [{"role": "user", "content": "%b"}]}' % escaped.encode()
    assert parse_chat(parse_body(body)).messages[0]["content"] == text


@settings(max_examples=25)
@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_any_json_is_a_request_or_a_bad_request(value):
    for body in ({"messages": value}, value, *({"messages": HI, "tools": [TOOL], name: value} for name in FIELD_NAMES)):
        with contextlib.suppress(errors.BadRequest):
            parse_chat(parse_body(json.dumps(body).encode("utf-8", "surrogatepass")), allow_template=True)
