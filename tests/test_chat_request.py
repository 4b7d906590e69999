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


@pytest.mark.parametrize(
    ("fields", "attribute", "value"),
    [
        ({"model": "m"}, "model", "m"),
        ({"stream": True}, "stream", True),
        ({"stream_options": {"include_usage": True}}, "include_usage", True),
        ({"n": 3}, "n", 3),
        ({"max_tokens": 7}, "max_tokens", 7),
        ({"max_tokens": 7.0}, "max_tokens", 7),
        ({"max_completion_tokens": 7}, "max_tokens", 7),
        ({"max_tokens": 1, "max_completion_tokens": 7}, "max_tokens", 7),
        ({"temperature": 0}, "sampling", {"temperature": 0}),
        ({"top_k": 0, "top_p": 0, "min_p": 0}, "sampling", {"top_k": 0, "top_p": 0, "min_p": 0}),
        ({"top_k": -1}, "sampling", {"top_k": 0}),
        ({"seed": 0}, "sampling", {"seed": 0}),
        ({"seed": -1}, "sampling", {"seed": None}),
        ({"repetition_penalty": 1.2}, "sampling", {"repeat_penalty": 1.2}),
        (
            {"presence_penalty": -2, "frequency_penalty": 2, "repeat_penalty": 1},
            "sampling",
            {"presence_penalty": -2, "frequency_penalty": 2, "repeat_penalty": 1},
        ),
        ({"stop": "x"}, "stop", ("x",)),
        ({"stop": ["x", "\n"]}, "stop", ("x", "\n")),
        ({"stop": ["42"]}, "stop", ("42",)),
        ({"stop_token_ids": [1, 2]}, "stop_token_ids", (1, 2)),
        ({"logit_bias": {"5": -100, "6": 1.5}}, "logit_bias", ((5, -100), (6, 1.5))),
        ({"logit_bias": {"the": False}}, "logit_bias", (("the", -math.inf),)),
        ({"logit_bias": [[5, 1], ["7", -1], ["a b", False]]}, "logit_bias", ((5, 1), ("7", -1), ("a b", -math.inf))),
        ({"logit_bias": []}, "logit_bias", ()),
        ({"n_predict": 5}, "max_tokens", 5),
        ({"n_predict": -1}, "max_tokens", None),
        ({"n_predict": -1, "max_tokens": 3}, "max_tokens", 3),
        ({"min_tokens": 5}, "min_tokens", 5),
        ({"prompt_logprobs": 0}, "prompt_logprobs", 0),
        ({"truncate_prompt_tokens": 7}, "n_prompt_kept", 7),
        ({"truncate_prompt_tokens": -1}, "n_prompt_kept", 0),
        ({"ignore_eos": True}, "ignore_eos", True),
        ({"n_cmpl": 2}, "n", 2),
        ({"n_probs": 2}, "top_logprobs", 2),
        ({"n_probs": 0}, "top_logprobs", None),
        ({"typical_p": 0.5, "typical": 0.6}, "sampling", {"typical_p": 0.5}),
        ({"samplers": []}, "sampling", {"samplers": ()}),
        ({"stream_options": {"continuous_usage_stats": True}}, "continuous_usage", False),
        ({"stream_options": {"include_usage": True, "continuous_usage_stats": True}}, "continuous_usage", True),
        ({"functions": [{"name": "look"}]}, "tool_choice", "auto"),
        ({"functions": [{"name": "look"}], "function_call": "none"}, "tool_choice", "none"),
        ({"documents": [{"text": "a"}]}, "template_vars", {"documents": [{"text": "a"}]}),
        ({"reasoning_effort": "none"}, "template_vars", {"enable_thinking": False, "reasoning_effort": "none"}),
        ({"reasoning_format": "none"}, "splits_reasoning", False),
        ({"reasoning_format": "deepseek"}, "splits_reasoning", True),
        ({"t_max_predict_ms": -1}, "max_completion_s", None),
        ({"t_max_predict_ms": 0}, "max_completion_s", None),
        ({"post_sampling_probs": False}, "post_sampling_probs", False),
        ({"return_tokens": True}, "return_token_ids", True),
        ({"lora": [], "use_beam_search": False}, "n", 1),
        ({"logprobs": True}, "top_logprobs", 0),
        ({"logprobs": True, "top_logprobs": 5}, "top_logprobs", 5),
        ({"logprobs": False, "top_logprobs": 0}, "top_logprobs", None),
        ({"tools": [TOOL]}, "tools", (TOOL,)),
        ({"tools": [TOOL]}, "tool_choice", "auto"),
        ({"tools": [TOOL], "tool_choice": "none"}, "tool_choice", "none"),
        ({"tools": [], "tool_choice": "auto"}, "tool_choice", "none"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls", False),
        ({"template_vars": {"a": 1, "b": 1}, "chat_template_kwargs": {"b": 2}}, "template_vars", {"a": 1, "b": 2}),
        (
            {"enable_thinking": False, "reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": True}},
            "template_vars",
            {"enable_thinking": False, "reasoning_effort": "low"},
        ),
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice", "required"),
        ({"tools": [TOOL], "tool_choice": NAMED}, "tool_choice", "required"),
        ({"tools": [TOOL], "tool_choice": NAMED}, "allowed", ("look",)),
        ({"functions": [{"name": "f"}], "function_call": {"name": "f"}}, "allowed", ("f",)),
        ({"tools": [TOOL], "tool_choice": ALLOWED}, "tool_choice", "auto"),
        ({"tools": [TOOL], "tool_choice": ALLOWED}, "allowed", ("look",)),
        (
            {
                "tools": [TOOL],
                "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"name": "look"}]},
            },
            "tool_choice",
            "required",
        ),
        ({"response_format": {"type": "text"}}, "response_format", None),
        ({"grammar": "", "regex": "", "choice": []}, "response_format", None),
        (
            {"response_format": {"type": "json_object"}},
            "response_format",
            ResponseFormat("json_object", None, "response_format"),
        ),
        (
            {"response_format": {"type": "json_object", "schema": {}}},
            "response_format",
            ResponseFormat("json_schema", {}, "response_format.schema"),
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "null"}}}},
            "response_format",
            ResponseFormat("json_schema", {"type": "null"}, "response_format.json_schema.schema"),
        ),
        pytest.param(
            {"response_format": {"type": "json_schema", "schema": {}}},
            "response_format",
            ResponseFormat("json_schema", {}, "response_format.schema"),
            id="json_schema without a wrapper",
        ),
        ({"json_schema": {}}, "response_format", ResponseFormat("json_schema", {}, "json_schema")),
        ({"grammar": "g"}, "response_format", ResponseFormat("grammar", "g", "grammar")),
        ({"regex": "a+"}, "response_format", ResponseFormat("regex", "a+", "regex")),
        ({"choice": ["a", "b"]}, "response_format", ResponseFormat("choice", ("a", "b"), "choice")),
        ({"guided_json": True}, "response_format", ResponseFormat("json_schema", True, "guided_json")),
        ({"guided_regex": "a"}, "response_format", ResponseFormat("regex", "a", "guided_regex")),
        (
            {"structured_outputs": {"json": {}}},
            "response_format",
            ResponseFormat("json_schema", {}, "structured_outputs.json"),
        ),
        (
            {"structured_outputs": {"json_object": True}},
            "response_format",
            ResponseFormat("json_object", None, "structured_outputs.json_object"),
        ),
        ({"reasoning_budget_tokens": 0}, "reasoning_budget", 0),
        ({"thinking_budget_tokens": 5}, "reasoning_budget", 5),
        ({"thinking_token_budget": 5}, "reasoning_budget", 5),
        ({"thinking_budget": 5, "reasoning_budget": 6}, "reasoning_budget", 6),
        ({"chat_template_kwargs": {"thinking_budget": 7}}, "reasoning_budget", 7),
        ({"reasoning_budget_message": "Well."}, "reasoning_budget_message", "Well."),
        ({"user": "u", "metadata": {}, "whatever": 1}, "n", 1),
    ],
)
def test_field_is_read(fields, attribute, value):
    """K11, K21, K42, T25, T48, V9, V50, G3, G4, G8."""
    request = parse(**fields)
    assert getattr(request if hasattr(request, attribute) else request.params, attribute) == value


@pytest.mark.parametrize("name", NULLABLE)
def test_null_is_absent(name):
    """K41."""
    assert parse(**{name: None}) == parse()


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "system", "content": ""}, {"role": "system", "content": ""}),
        pytest.param(
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "ab"},
            id="k25-parts joined without a separator",
        ),
        ({"role": "user", "content": []}, {"role": "user", "content": ""}),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "assistant", "content": "no"},
        ),
        ({"role": "assistant", "content": None, "refusal": "no"}, {"role": "assistant", "content": "no"}),
        ({"role": "assistant", "content": "", "refusal": "no"}, {"role": "assistant", "content": "no"}),
        ({"role": "assistant", "content": "yes", "refusal": None}, {"role": "assistant", "content": "yes"}),
        ({"role": "assistant", "content": "yes", "refusal": False}, {"role": "assistant", "content": "yes"}),
        ({"role": "assistant", "content": None, "name": None}, {"role": "assistant"}),
        pytest.param(
            {"role": "assistant", "content": "x", "reasoning_content": "r", "weight": 5},
            {"role": "assistant", "content": "x", "reasoning_content": "r"},
            id="reasoning",
        ),
        (
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        ),
        ({"role": "function", "name": "f", "content": "5"}, {"role": "tool", "name": "f", "content": "5"}),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
            {
                "role": "assistant",
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
            {
                "role": "assistant",
                "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
            },
        ),
        ({"role": "assistant", "content": "", "tool_calls": []}, {"role": "assistant", "content": ""}),
        (
            {"role": "tool", "content": "42", "tool_call_id": "c", "name": "f"},
            {"role": "tool", "content": "42", "tool_call_id": "c", "name": "f"},
        ),
    ],
)
def test_message_is_normalised(message, expected):
    """K25, K30, T28."""
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
