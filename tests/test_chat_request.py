"""The parser of chat requests: the value of each field, and the conversion of messages for templates."""

import math

import pytest

from localchat.serving.api.chat import ChatRequest
from localchat.serving.core import errors
from localchat.serving.core.params import parse_default
from localchat.serving.core.request import ResponseFormat

from .chat_requests import ALLOWED, NAMED, NULLABLE, TOOL, parse, parse_messages


def test_smallest_request_has_only_the_message():
    assert parse() == ChatRequest(model="", messages=({"role": "user", "content": "hi"},))


SCHEMA = {"type": "null"}
# The fields of a request, and the values of the parsed request or of its parameters.
FIELDS = [
    ({"stream": True, "stream_options": {"include_usage": True}}, {"stream": True, "include_usage": True}),
    ({"model": "m", "n": 3, "max_tokens": 7.0}, {"model": "m", "n": 3, "max_tokens": 7}),
    ({"max_tokens": 1, "max_completion_tokens": 7}, {"max_tokens": 7}),
    ({"n_predict": 5}, {"max_tokens": 5}),
    ({"n_predict": -1}, {"max_tokens": None}),
    ({"n_predict": -1, "max_tokens": 3}, {"max_tokens": 3}),
    ({"temperature": 0, "top_k": -1, "seed": -1}, {"sampling": {"temperature": 0, "top_k": 0, "seed": None}}),
    ({"presence_penalty": -2, "repeat_penalty": 1}, {"sampling": {"presence_penalty": -2, "repeat_penalty": 1}}),
    ({"repetition_penalty": 1.2}, {"sampling": {"repeat_penalty": 1.2}}),
    ({"typical_p": 0.5, "typical": 0.6}, {"sampling": {"typical_p": 0.5}}),
    ({"samplers": []}, {"sampling": {"samplers": ()}}),
    ({"stop": "x", "stop_token_ids": [1, 2]}, {"stop": ("x",), "stop_token_ids": (1, 2)}),
    ({"stop": ["42", "\n"]}, {"stop": ("42", "\n")}),
    ({"logit_bias": {"5": -100, "the": False}}, {"logit_bias": ((5, -100), ("the", -math.inf))}),
    ({"logit_bias": [[5, 1], ["7", -1], ["a b", False]]}, {"logit_bias": ((5, 1), ("7", -1), ("a b", -math.inf))}),
    ({"logit_bias": []}, {"logit_bias": ()}),
    ({"min_tokens": 5, "ignore_eos": True, "n_cmpl": 2}, {"min_tokens": 5, "ignore_eos": True, "n": 2}),
    ({"prompt_logprobs": 0, "truncate_prompt_tokens": 7}, {"prompt_logprobs": 0, "n_prompt_kept": 7}),
    ({"truncate_prompt_tokens": -1}, {"n_prompt_kept": 0}),
    ({"n_probs": 0}, {"top_logprobs": None}),
    ({"logprobs": True}, {"top_logprobs": 0}),
    ({"logprobs": True, "top_logprobs": 5}, {"top_logprobs": 5}),
    ({"logprobs": False, "top_logprobs": 0}, {"top_logprobs": None}),
    ({"stream_options": {"continuous_usage_stats": True}}, {"continuous_usage": False}),
    ({"documents": [{"text": "a"}]}, {"template_vars": {"documents": [{"text": "a"}]}}),
    ({"reasoning_effort": "none"}, {"template_vars": {"enable_thinking": False, "reasoning_effort": "none"}}),
    ({"template_vars": {"a": 1, "b": 1}, "chat_template_kwargs": {"b": 2}}, {"template_vars": {"a": 1, "b": 2}}),
    (
        {"enable_thinking": False, "chat_template_kwargs": {"enable_thinking": True}},
        {"template_vars": {"enable_thinking": False}},
    ),
    ({"reasoning_format": "none"}, {"splits_reasoning": False}),
    ({"reasoning_format": "deepseek"}, {"splits_reasoning": True}),
    ({"t_max_predict_ms": 0}, {"max_completion_s": None}),
    ({"return_tokens": True, "post_sampling_probs": False}, {"return_token_ids": True, "post_sampling_probs": False}),
    ({"lora": [], "use_beam_search": False, "user": "u", "whatever": 1}, {"n": 1}),
    ({"functions": [{"name": "look"}]}, {"tool_choice": "auto"}),
    ({"functions": [{"name": "look"}], "function_call": "none"}, {"tool_choice": "none"}),
    ({"functions": [{"name": "f"}], "function_call": {"name": "f"}}, {"allowed": ("f",)}),
    ({"tools": [TOOL], "parallel_tool_calls": False}, {"tools": (TOOL,), "parallel_tool_calls": False}),
    ({"tools": [TOOL]}, {"tool_choice": "auto"}),
    ({"tools": [TOOL], "tool_choice": "none"}, {"tool_choice": "none"}),
    ({"tools": [], "tool_choice": "auto"}, {"tool_choice": "none"}),
    ({"tools": [TOOL], "tool_choice": "required"}, {"tool_choice": "required"}),
    ({"tools": [TOOL], "tool_choice": NAMED}, {"tool_choice": "required", "allowed": ("look",)}),
    ({"tools": [TOOL], "tool_choice": ALLOWED}, {"tool_choice": "auto", "allowed": ("look",)}),
    (
        {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"name": "look"}]}},
        {"tool_choice": "required"},
    ),
    ({"reasoning_budget_tokens": 0}, {"reasoning_budget": 0}),
    ({"thinking_budget_tokens": 5}, {"reasoning_budget": 5}),
    ({"thinking_token_budget": 5}, {"reasoning_budget": 5}),
    ({"thinking_budget": 5, "reasoning_budget": 6}, {"reasoning_budget": 6}),
    ({"chat_template_kwargs": {"thinking_budget": 7}}, {"reasoning_budget": 7}),
    ({"reasoning_budget_message": "Well."}, {"reasoning_budget_message": "Well."}),
]


@pytest.mark.parametrize(("fields", "values"), FIELDS)
def test_field_is_read(fields, values):
    """K11, K21, K42, T25, T48, V9, V50, G3, G4, G8."""
    request = parse(**fields)
    found = {name: getattr(request if hasattr(request, name) else request.params, name) for name in values}
    assert found == values


# The fields of a request; the kind and the value of its response format, and the field that errors name.
FORMATS = [
    ({"response_format": {"type": "text"}}, None),
    ({"grammar": "", "regex": "", "choice": []}, None),
    ({"response_format": {"type": "json_object"}}, ("json_object", None, "response_format")),
    ({"response_format": {"type": "json_object", "schema": {}}}, ("json_schema", {}, "response_format.schema")),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        ("json_schema", SCHEMA, "response_format.json_schema.schema"),
    ),
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


@pytest.mark.parametrize("name", NULLABLE)
def test_null_is_absent(name):
    """K41."""
    assert parse(**{name: None}) == parse()


FUNCTION = {"name": "f", "arguments": "{}"}
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
    (
        {"role": "assistant", "content": None, "function_call": FUNCTION},
        {"function_call": None, "tool_calls": [{"type": "function", "function": FUNCTION}]},
    ),
    ({"role": "function", "name": "f", "content": "5"}, {"role": "tool"}),
    (
        {"role": "assistant", "tool_calls": [{"id": "c", "function": FUNCTION}]},
        {"tool_calls": [{"id": "c", "type": "function", "function": FUNCTION}]},
    ),
    ({"role": "assistant", "tool_calls": [{"type": "function", "function": {**FUNCTION, "arguments": {"a": 1}}}]}, {}),
    ({"role": "assistant", "content": "", "tool_calls": []}, {"tool_calls": None}),
    ({"role": "tool", "content": "42", "tool_call_id": "c", "name": "f"}, {}),
]


@pytest.mark.parametrize(("message", "changed"), MESSAGES)
def test_message_is_normalised(message, changed):
    """K25, K30, T28."""
    expected = {name: value for name, value in {**message, **changed}.items() if value is not None}
    assert parse_messages(message) == (expected,)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("temperature=0", {"temperature": 0}),
        ("typical=0.5", {"typical_p": 0.5}),
        ('samplers=["top_k"]', {"samplers": ("top_k",)}),
        ('dry_sequence_breakers=["."]', {"dry_sequence_breakers": (".",)}),
        ("max_tokens=5", None),
        ("temperature", None),
        ("temperature=hot", None),
        ("top_p=2", None),
        ("top_k=1e999", None),
        ("top_k=" + "[" * 100000, None),
    ],
)
def test_k9_default_on_the_command_line_is_read_as_a_request_is(text, expected):
    if expected is not None:
        assert parse_default(text) == expected
    else:
        with pytest.raises(errors.BadRequest) as caught:
            parse_default(text)
        assert caught.value.param == text.partition("=")[0]
