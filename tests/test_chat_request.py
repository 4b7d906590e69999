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
        pytest.param({"model": "m"}, "model", "m", id="model"),
        pytest.param({"stream": True}, "stream", True, id="stream"),
        pytest.param({"stream_options": {"include_usage": True}}, "include_usage", True, id="k13-include_usage"),
        pytest.param({"n": 3}, "n", 3, id="n"),
        pytest.param({"max_tokens": 7}, "max_tokens", 7, id="max_tokens"),
        pytest.param({"max_tokens": 7.0}, "max_tokens", 7, id="whole float"),
        pytest.param({"max_completion_tokens": 7}, "max_tokens", 7, id="k41-alias"),
        pytest.param(
            {"max_tokens": 1, "max_completion_tokens": 7}, "max_tokens", 7, id="k41-newer name takes precedence"
        ),
        pytest.param({"temperature": 0}, "sampling", {"temperature": 0}, id="g3-explicit zero"),
        pytest.param({"top_k": 0, "top_p": 0, "min_p": 0}, "sampling", {"top_k": 0, "top_p": 0, "min_p": 0}, id="g3"),
        pytest.param({"top_k": -1}, "sampling", {"top_k": 0}, id="top_k -1 is off"),
        pytest.param({"seed": 0}, "sampling", {"seed": 0}, id="seed 0"),
        pytest.param({"seed": -1}, "sampling", {"seed": None}, id="seed -1 is any"),
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
        pytest.param({"logit_bias": {"the": False}}, "logit_bias", (("the", -math.inf),), id="logit_bias text"),
        pytest.param(
            {"logit_bias": [[5, 1], ["7", -1], ["a b", False]]},
            "logit_bias",
            ((5, 1), ("7", -1), ("a b", -math.inf)),
            id="logit_bias pairs",
        ),
        pytest.param({"logit_bias": []}, "logit_bias", (), id="no logit_bias"),
        pytest.param({"n_predict": 5}, "max_tokens", 5, id="n_predict"),
        pytest.param({"n_predict": -1}, "max_tokens", None, id="n_predict without limit"),
        pytest.param({"n_predict": -1, "max_tokens": 3}, "max_tokens", 3, id="max_tokens before n_predict"),
        pytest.param({"min_tokens": 5}, "min_tokens", 5, id="min_tokens"),
        pytest.param({"prompt_logprobs": 0}, "prompt_logprobs", 0, id="v44-prompt_logprobs"),
        pytest.param({"truncate_prompt_tokens": 7}, "n_prompt_kept", 7, id="v9-truncate_prompt_tokens"),
        pytest.param({"truncate_prompt_tokens": -1}, "n_prompt_kept", 0, id="v9-the context size"),
        pytest.param({"ignore_eos": True}, "ignore_eos", True, id="ignore_eos"),
        pytest.param({"n_cmpl": 2}, "n", 2, id="n_cmpl"),
        pytest.param({"n_probs": 2}, "top_logprobs", 2, id="n_probs"),
        pytest.param({"n_probs": 0}, "top_logprobs", None, id="n_probs 0"),
        pytest.param(
            {"typical_p": 0.5, "typical": 0.6},
            "sampling",
            {"typical_p": 0.5},
            id="the name takes precedence over its alias",
        ),
        pytest.param({"samplers": []}, "sampling", {"samplers": ()}, id="no samplers"),
        pytest.param(
            {"stream_options": {"continuous_usage_stats": True}}, "continuous_usage", False, id="v18-needs usage"
        ),
        pytest.param(
            {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
            "continuous_usage",
            True,
            id="v18-continuous",
        ),
        pytest.param({"functions": [{"name": "look"}]}, "tool_choice", "auto", id="t47-functions"),
        pytest.param(
            {"functions": [{"name": "look"}], "function_call": "none"}, "tool_choice", "none", id="t47-function_call"
        ),
        pytest.param(
            {"documents": [{"text": "a"}]}, "template_vars", {"documents": [{"text": "a"}]}, id="v10-documents"
        ),
        pytest.param(
            {"reasoning_effort": "none"},
            "template_vars",
            {"enable_thinking": False, "reasoning_effort": "none"},
            id="effort none",
        ),
        pytest.param({"reasoning_format": "none"}, "splits_reasoning", False, id="reasoning_format"),
        pytest.param({"reasoning_format": "deepseek"}, "splits_reasoning", True, id="reasoning_format apart"),
        pytest.param({"t_max_predict_ms": -1}, "max_completion_s", None, id="no limit of time"),
        pytest.param({"t_max_predict_ms": 0}, "max_completion_s", None, id="no limit of time either"),
        pytest.param({"post_sampling_probs": False}, "post_sampling_probs", False, id="no post_sampling_probs"),
        pytest.param({"return_tokens": True}, "return_token_ids", True, id="return_tokens"),
        pytest.param({"lora": [], "use_beam_search": False}, "n", 1, id="v50-features that are off"),
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
            id="separate fields take precedence",
        ),
        pytest.param({"tools": [TOOL], "tool_choice": "required"}, "tool_choice", "required", id="t36-required"),
        pytest.param({"tools": [TOOL], "tool_choice": NAMED}, "tool_choice", "required", id="t36-named"),
        pytest.param({"tools": [TOOL], "tool_choice": NAMED}, "allowed", ("look",), id="t38-named"),
        pytest.param({"functions": [{"name": "f"}], "function_call": {"name": "f"}}, "allowed", ("f",), id="t47-named"),
        pytest.param({"tools": [TOOL], "tool_choice": ALLOWED}, "tool_choice", "auto", id="allowed_tools mode"),
        pytest.param({"tools": [TOOL], "tool_choice": ALLOWED}, "allowed", ("look",), id="allowed_tools names"),
        pytest.param(
            {
                "tools": [TOOL],
                "tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [{"name": "look"}]},
            },
            "tool_choice",
            "required",
            id="allowed_tools of the other interface",
        ),
        pytest.param({"response_format": {"type": "text"}}, "response_format", None, id="response_format text"),
        pytest.param({"grammar": "", "regex": "", "choice": []}, "response_format", None, id="empty formats"),
        pytest.param(
            {"response_format": {"type": "json_object"}},
            "response_format",
            ResponseFormat("json_object", None, "response_format"),
            id="json_object",
        ),
        pytest.param(
            {"response_format": {"type": "json_object", "schema": {}}},
            "response_format",
            ResponseFormat("json_schema", {}, "response_format.schema"),
            id="json_object with a schema",
        ),
        pytest.param(
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "null"}}}},
            "response_format",
            ResponseFormat("json_schema", {"type": "null"}, "response_format.json_schema.schema"),
            id="json_schema",
        ),
        pytest.param(
            {"response_format": {"type": "json_schema", "schema": {}}},
            "response_format",
            ResponseFormat("json_schema", {}, "response_format.schema"),
            id="json_schema without a wrapper",
        ),
        pytest.param(
            {"json_schema": {}},
            "response_format",
            ResponseFormat("json_schema", {}, "json_schema"),
            id="json_schema field",
        ),
        pytest.param({"grammar": "g"}, "response_format", ResponseFormat("grammar", "g", "grammar"), id="grammar"),
        pytest.param({"regex": "a+"}, "response_format", ResponseFormat("regex", "a+", "regex"), id="regex"),
        pytest.param(
            {"choice": ["a", "b"]}, "response_format", ResponseFormat("choice", ("a", "b"), "choice"), id="choice"
        ),
        pytest.param(
            {"guided_json": True},
            "response_format",
            ResponseFormat("json_schema", True, "guided_json"),
            id="guided_json",
        ),
        pytest.param(
            {"guided_regex": "a"}, "response_format", ResponseFormat("regex", "a", "guided_regex"), id="guided_regex"
        ),
        pytest.param(
            {"structured_outputs": {"json": {}}},
            "response_format",
            ResponseFormat("json_schema", {}, "structured_outputs.json"),
            id="structured_outputs",
        ),
        pytest.param(
            {"structured_outputs": {"json_object": True}},
            "response_format",
            ResponseFormat("json_object", None, "structured_outputs.json_object"),
            id="structured_outputs, any object",
        ),
        pytest.param({"reasoning_budget_tokens": 0}, "reasoning_budget", 0, id="reasoning budget"),
        pytest.param({"thinking_budget_tokens": 5}, "reasoning_budget", 5, id="its alias"),
        pytest.param({"thinking_token_budget": 5}, "reasoning_budget", 5, id="vLLM's name of it"),
        pytest.param({"thinking_budget": 5, "reasoning_budget": 6}, "reasoning_budget", 6, id="the first of two"),
        pytest.param(
            {"chat_template_kwargs": {"thinking_budget": 7}}, "reasoning_budget", 7, id="as a template variable"
        ),
        pytest.param(
            {"reasoning_budget_message": "Well."}, "reasoning_budget_message", "Well.", id="reasoning_budget_message"
        ),
        pytest.param({"user": "u", "metadata": {}, "whatever": 1}, "n", 1, id="k10-unknown fields"),
    ],
)
def test_field_is_read(fields, attribute, value):
    """T25, T48, V9, G4, G8."""
    request = parse(**fields)
    assert getattr(request if hasattr(request, attribute) else request.params, attribute) == value


# fmt: off


@pytest.mark.parametrize("name", NULLABLE)
def test_null_is_absent(name):
    """K41."""
    assert parse(**{name: None}) == parse()


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        pytest.param({"role": "system", "content": ""}, {"role": "system", "content": ""}, id="empty content"),
        pytest.param(
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "ab"},
            id="k25-parts joined without a separator",
        ),
        pytest.param({"role": "user", "content": []}, {"role": "user", "content": ""}, id="no parts"),
        pytest.param(
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "assistant", "content": "no"},
            id="refusal part",
        ),
        pytest.param(
            {"role": "assistant", "content": None, "refusal": "no"},
            {"role": "assistant", "content": "no"},
            id="refusal in place of content",
        ),
        pytest.param(
            {"role": "assistant", "content": "", "refusal": "no"},
            {"role": "assistant", "content": "no"},
            id="refusal and empty content",
        ),
        pytest.param(
            {"role": "assistant", "content": "yes", "refusal": None},
            {"role": "assistant", "content": "yes"},
            id="no refusal",
        ),
        pytest.param(
            {"role": "assistant", "content": "yes", "refusal": False},
            {"role": "assistant", "content": "yes"},
            id="refusal beside content is ignored",
        ),
        pytest.param(
            {"role": "assistant", "content": None, "name": None}, {"role": "assistant"}, id="t28-nulls removed"
        ),
        pytest.param(
            {"role": "assistant", "content": "x", "reasoning_content": "r", "weight": 5},
            {"role": "assistant", "content": "x", "reasoning_content": "r"},
            id="reasoning",
        ),
        pytest.param(
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
            {
                "role": "assistant",
                "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
            id="k30-call in the older format",
        ),
        pytest.param(
            {"role": "function", "name": "f", "content": "5"},
            {"role": "tool", "name": "f", "content": "5"},
            id="k30-result in the older format",
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
        pytest.param("top_k=" + "[" * 100_000, None, id="top_k=[[["),
    ],
)
def test_k9_default_on_the_command_line_is_read_as_a_request_is(text, expected):
    if expected is not None:
        assert parse_default(text) == expected
    else:
        with pytest.raises(errors.BadRequest) as caught:
            parse_default(text)
        assert caught.value.param == text.partition("=")[0]
