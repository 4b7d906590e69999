"""The wire's chat request and answer: JSON to values, values to JSON, and every way in which JSON can be wrong."""

import contextlib
import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localchat.protocol import errors
from localchat.protocol.chat import MAX_N, ChatRequest, parse_chat
from localchat.protocol.chat_response import ChatBody, ChatStream
from localchat.protocol.events import (
    ContentDelta,
    OutputEnd,
    OutputToken,
    PromptProgress,
    ReasoningDelta,
    SampledTokens,
    TokenLogprob,
    ToolCallArguments,
    ToolCallStart,
)
from localchat.protocol.fields import parse_body
from localchat.protocol.interface import ResponseHead
from localchat.protocol.json_text import to_json
from localchat.protocol.models import model_body, models_body
from localchat.protocol.params import MAX_STOPS, parse_default
from localchat.protocol.request import DEFAULT_OPTIONS, ParseOptions
from localchat.protocol.response_format import ResponseFormat
from localchat.protocol.usage import Usage

HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "look"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}


def parse(options=DEFAULT_OPTIONS, **members):
    return parse_chat(json.dumps({"messages": HI, **members}).encode(), options)


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
        pytest.param({"truncate_prompt_tokens": -1}, "n_prompt_kept", 0, id="v9-as many as the model holds"),
        pytest.param({"ignore_eos": True}, "ignore_eos", True, id="ignore_eos"),
        pytest.param({"n_cmpl": 2}, "n", 2, id="n_cmpl"),
        pytest.param({"n_probs": 2}, "top_logprobs", 2, id="n_probs"),
        pytest.param({"n_probs": 0}, "top_logprobs", None, id="n_probs 0"),
        pytest.param(
            {"typical_p": 0.5, "typical": 0.6}, "sampling", {"typical_p": 0.5}, id="the name wins over its alias"
        ),
        pytest.param({"samplers": "kt"}, "sampling", {"samplers": ("top_k", "temperature")}, id="samplers as letters"),
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
        pytest.param({"sse_ping_interval": -1}, "ping_s", 0, id="no pings"),
        pytest.param({"sse_ping_interval": 5}, "ping_s", 5, id="pings"),
        pytest.param({"sse_ping_interval": 1e-9}, "ping_s", 0.01, id="pings all the time"),
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
            id="no effort is no thinking",
        ),
        pytest.param({"reasoning_format": "none"}, "splits_reasoning", False, id="reasoning_format"),
        pytest.param({"reasoning_format": "deepseek"}, "splits_reasoning", True, id="reasoning_format apart"),
        pytest.param({"reasoning_format": "deepseek-legacy"}, "splits_reasoning", True, id="reasoning_format legacy"),
        pytest.param({"reasoning_format": "deepseek-legacy"}, "keeps_reasoning", True, id="and in the content"),
        pytest.param({"t_max_predict_ms": -1}, "max_completion_s", None, id="no limit of time"),
        pytest.param({"t_max_predict_ms": 0}, "max_completion_s", None, id="no limit of time either"),
        pytest.param({"post_sampling_probs": False}, "post_sampling_probs", False, id="no post_sampling_probs"),
        pytest.param({"return_tokens": True}, "return_token_ids", True, id="return_tokens"),
        pytest.param({"lora": [], "use_beam_search": False}, "n", 1, id="v50-asks for nothing"),
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
        pytest.param(
            {"response_format": {"type": "text"}}, "response_format", None, id="response_format that asks for nothing"
        ),
        pytest.param(
            {"grammar": "", "regex": "", "choice": []}, "response_format", None, id="forms that ask for nothing"
        ),
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
            id="json_schema beside its type",
        ),
        pytest.param(
            {"json_schema": {}},
            "response_format",
            ResponseFormat("json_schema", {}, "json_schema"),
            id="json_schema member",
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
        pytest.param({"chat_template_kwargs": {"thinking_budget": 7}}, "reasoning_budget", 7, id="to the template"),
        pytest.param({"reasoning_budget_message": "Well."}, "reasoning_budget_message", "Well.", id="last words"),
        pytest.param({"user": "u", "metadata": {}, "whatever": 1}, "n", 1, id="k10-unknown members"),
    ],
)
def test_member_is_read(members, attribute, value):
    """T25, T48, V9, G4, G8."""
    request = parse(**members)
    assert getattr(request if hasattr(request, attribute) else request.params, attribute) == value


# fmt: off
NULLABLE = (
    "model", "stream", "stream_options", "n", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k",
    "min_p", "seed", "stop", "presence_penalty", "frequency_penalty", "repeat_penalty", "repetition_penalty",
    "stop_token_ids", "logit_bias", "logprobs", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls",
    "template_vars", "chat_template_kwargs", "enable_thinking", "reasoning_effort", "response_format", "grammar",
    "echo", "documents", "user", "typical_p", "typical", "samplers", "dry_sequence_breakers", "min_tokens",
    "ignore_eos", "n_predict", "functions", "function_call", "chat_template", "response_prefix",
    "continue_final_message", "add_generation_prompt", "reasoning_format", "return_progress", "return_token_ids",
    "sse_ping_interval", "n_cmpl", "n_probs", "use_beam_search", "request_id", "timings_per_token",
    "reasoning_budget_tokens", "thinking_budget_tokens", "reasoning_budget", "reasoning_budget_message",
)
# fmt: on


@pytest.mark.parametrize("name", NULLABLE)
def test_null_is_absent(name):
    """K41."""
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
        pytest.param({"logit_bias": 5}, "logit_bias", id="logit_bias number"),
        pytest.param({"logit_bias": {"": 1}}, "logit_bias", id="logit_bias empty text"),
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
        pytest.param({"samplers": "k?"}, "samplers", id="unknown letter"),
        pytest.param({"samplers": "kk"}, "samplers", id="sampler twice"),
        pytest.param({"samplers": 5}, "samplers", id="samplers number"),
        pytest.param({"samplers": ["infill"]}, "samplers", id="sampler that is not offered"),
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
        pytest.param({"prompt_logprobs": 21}, "prompt_logprobs", id="v44-prompt_logprobs"),
        pytest.param({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", id="v44-prompt_logprobs in a stream"),
        pytest.param({"lora": [{"id": 0, "scale": 1}]}, "lora", id="lora"),
        pytest.param({"modalities": ["audio"]}, "modalities", id="audio"),
        pytest.param({"web_search_options": {}}, "web_search_options", id="web search"),
        pytest.param(
            {"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, "messages[0].audio", id="audio said before"
        ),
        pytest.param({"allowed_token_ids": [5]}, "allowed_token_ids", id="vllm's allowed_token_ids"),
        pytest.param({"guided_choice": [""]}, "guided_choice", id="vllm's guided_choice"),
        pytest.param({"structured_outputs": {"json": 5}}, "structured_outputs.json", id="vllm's structured_outputs"),
        pytest.param(
            {"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag", id="structural tag"
        ),
        pytest.param({"guided_regex": "a", "regex": "b"}, "guided_regex", id="two forms"),
        pytest.param({"chat_template": "x"}, "chat_template", id="v10-chat_template is off"),
        pytest.param({"response_prefix": 5}, "response_prefix", id="response_prefix"),
        pytest.param({"echo": "yes"}, "echo", id="echo"),
        pytest.param({"continue_final_message": "all"}, "continue_final_message", id="continue_final_message"),
        pytest.param({"documents": ["x"]}, "documents[0]", id="documents"),
        pytest.param(
            {"chat_template_kwargs": {"enable_thinking": "false"}},
            "chat_template_kwargs.enable_thinking",
            id="text is no boolean for a template",
        ),
        pytest.param({"functions": [{}]}, "functions[0].name", id="function without name"),
        pytest.param({"functions": [{"name": "f"}], "function_call": 5}, "function_call", id="function_call"),
        pytest.param({"reasoning_format": "xml"}, "reasoning_format", id="reasoning_format"),
        pytest.param({"reasoning_budget_tokens": -2}, "reasoning_budget_tokens", id="reasoning budget"),
        pytest.param({"thinking_budget": "5"}, "thinking_budget", id="the alias is named, of a budget"),
        pytest.param(
            {"chat_template_kwargs": {"thinking_budget": 0.5}},
            "chat_template_kwargs.thinking_budget",
            id="half a token",
        ),
        pytest.param({"reasoning_budget_message": 5}, "reasoning_budget_message", id="last words"),
        pytest.param({"reasoning_control": True}, "reasoning_control", id="no live end of thinking"),
        pytest.param({"sse_ping_interval": -2}, "sse_ping_interval", id="sse_ping_interval"),
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
        pytest.param({"regex": "a", "choice": ["a"]}, "choice", id="two forms"),
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
    """T27, V9."""
    assert refused(**members).param == param


def test_message_gives_both_numbers():
    message = refused(top_p=1.5).message
    assert "0" in message
    assert "1" in message
    assert "1.5" in message
    assert "'min_tokens' is 5, and the length limit is 4" in refused(min_tokens=5, max_tokens=4).message


def test_message_does_not_repeat_a_whole_prompt():
    assert len(refused(temperature="x" * 100_000).message) < 300


def test_k10_strict_names_the_unknown_member():
    assert parse(ParseOptions(strict=True), user="u", temperature=0).params.sampling == {"temperature": 0}
    with pytest.raises(errors.BadRequest) as caught:
        parse(ParseOptions(strict=True), whatever=1)
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
    for body in ({"messages": value}, value, *({"messages": HI, "tools": [TOOL], name: value} for name in NULLABLE)):
        with contextlib.suppress(errors.BadRequest):
            parse_chat(json.dumps(body).encode("utf-8", "surrogatepass"), ParseOptions(allow_template=True))


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
            {"role": "assistant", "content": None, "refusal": "no"},
            {"role": "assistant", "content": "no"},
            id="refusal in place of content",
        ),
        pytest.param(
            {"role": "assistant", "content": "", "refusal": "no"},
            {"role": "assistant", "content": "no"},
            id="refusal as our client sends it back",
        ),
        pytest.param(
            {"role": "assistant", "content": "yes", "refusal": None},
            {"role": "assistant", "content": "yes"},
            id="no refusal",
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
            id="k30-call of the older form",
        ),
        pytest.param(
            {"role": "function", "name": "f", "content": "5"},
            {"role": "tool", "name": "f", "content": "5"},
            id="k30-result of the older form",
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


# --- the response ---

HEAD = ResponseHead("chatcmpl-1", 7, "m", ((5, 6),))
START = '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","choices":['
USAGE = Usage(n_prompt=10, n_cached=4, n_completion=3, n_reasoning=1, prompt_s=0.5, completion_s=0.25, queue_s=0.125)
EVENTS = (
    ReasoningDelta("hm"),
    ContentDelta('a"é\n'),
    ToolCallStart(0, "call_1", "f"),
    ToolCallArguments(0, '{"a":'),
    ToolCallArguments(0, "1}"),
    OutputEnd("tool_calls"),
)


def chunk(delta, *, i=0, logprobs="null", end='"finish_reason":null', beside=""):
    return f'{START}{{"index":{i},"delta":{delta},"logprobs":{logprobs},{end}}}]{beside}}}'


def stream_of(*events, options=DEFAULT_OPTIONS, **members):
    """An encoder with the events of choice 0; an event may be a pair with its index."""
    stream = ChatStream(HEAD, parse(options=options, **members), lambda: USAGE)
    add_all(stream, events)
    return stream


def body_of(*events, options=DEFAULT_OPTIONS, **members):
    whole = ChatBody(HEAD, parse(options=options, **members))
    add_all(whole, events)
    return whole.body(USAGE)


def add_all(encoder, events):
    for event in events:
        encoder.add(*(event if isinstance(event, tuple) else (0, event)))


def test_chunks_byte_for_byte():
    """Appendix A's last line; K2, K3, K12, K16, K38, T1, T12, T15, V22, V24, G34."""
    stream = stream_of(*EVENTS)
    timings = ',"timings":' + to_json(USAGE.timings())
    assert stream.finish() == [
        chunk('{"role":"assistant","content":""}'),
        chunk('{"reasoning_content":"hm"}'),
        chunk('{"content":"a\\"é\\n"}'),
        chunk('{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"f","arguments":""}}]}'),
        chunk('{"tool_calls":[{"index":0,"function":{"arguments":"{\\"a\\":"}}]}'),
        chunk('{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}'),
        chunk("{}", end='"finish_reason":"tool_calls","stop_reason":null', beside=timings),
    ]
    assert stream.take() == []


def test_k13_usage_is_null_until_the_closing_chunk():
    """V25."""
    stream = stream_of(OutputEnd("stop", "END"), stream_options={"include_usage": True})
    role, finish, usage = stream.finish()
    assert role == chunk('{"role":"assistant","content":""}', beside=',"usage":null')
    assert finish == chunk("{}", end='"finish_reason":"stop","stop_reason":"END"', beside=',"usage":null')
    assert json.loads(usage) == {
        **json.loads(role),
        "choices": [],
        "usage": USAGE.body(),
        "timings": USAGE.timings(),
    }


def test_v18_counts_so_far_are_on_every_chunk_where_they_are_asked_for():
    options = {"include_usage": True, "continuous_usage_stats": True}
    stream = stream_of(ContentDelta("a"), OutputEnd("stop"), stream_options=options, timings_per_token=True)
    for text in stream.finish():
        payload = json.loads(text)
        assert (payload["usage"], payload["timings"]) == (USAGE.body(), USAGE.timings())


def test_k2_k36_one_role_chunk_per_choice_and_right_indexes():
    """T14."""
    assert stream_of((1, ContentDelta("b")), n=2, return_token_ids=True).take() == [
        chunk('{"role":"assistant","content":""}', beside=',"prompt_token_ids":[5,6]'),
        chunk('{"role":"assistant","content":""}', i=1),
        chunk('{"content":"b"}', i=1),
    ]


def test_progress_is_beside_a_chunk_that_changes_nothing():
    progress = ',"prompt_progress":{"total":9,"cache":2,"processed":4,"time_ms":1500}'
    assert stream_of(PromptProgress(4, 9, 2, 1.5)).take()[1:] == [chunk("{}", beside=progress)]


def test_k8_thought_field_repeats_the_reasoning_of_the_first_choice():
    events, options = ((0, ReasoningDelta("hm")), (1, ReasoningDelta("no"))), ParseOptions(thought_field=True)
    first, second = stream_of(*events, options=options, n=2).take()[2:]
    assert first == chunk('{"reasoning_content":"hm"}', beside=',"thought":"hm"')
    assert second == chunk('{"reasoning_content":"no"}', i=1)
    assert body_of(*events, options=options, n=2)["thought"] == "hm"
    assert "thought" not in body_of(*events, n=2)


def test_k26_logprobs_are_on_the_next_chunk_of_their_choice():
    """V47."""
    sampled = SampledTokens((OutputToken(5, "é".encode()[:1], float("-inf"), (TokenLogprob(6, b"x", -0.5),)),))
    entry = {
        "token": "�",
        "logprob": -9999.0,
        "bytes": [0xC3],
        "top_logprobs": [{"token": "x", "logprob": -0.5, "bytes": [120]}],
    }
    events = (sampled, (1, ContentDelta("other")), sampled, OutputEnd("stop", 5))
    members = {"n": 2, "logprobs": True, "top_logprobs": 1, "return_token_ids": True}
    other, finish = (json.loads(text)["choices"][0] for text in stream_of(*events, **members).take()[2:])
    assert other["logprobs"] is None
    assert finish == {
        "index": 0,
        "delta": {},
        "logprobs": {"content": [entry, entry]},
        "token_ids": [5, 5],
        "finish_reason": "stop",
        "stop_reason": 5,
    }
    body = body_of(*events, **members)
    assert body["choices"][0]["logprobs"] == {"content": [entry, entry]}
    assert (body["prompt_token_ids"], body["choices"][0]["token_ids"]) == ((5, 6), [5, 5])
    without = body_of(*events, n=2)["choices"][0]
    assert without["logprobs"] is None
    assert "token_ids" not in without


def test_k5_error_chunk_has_the_error_body():
    _, text, error = stream_of(ContentDelta("a")).failed(errors.InferenceError("it broke"))
    assert json.loads(text)["choices"][0]["delta"] == {"content": "a"}
    assert [json.loads(error)] == [
        {"error": {"message": "it broke", "type": "inference_error", "param": None, "code": "inference_error"}}
    ]


def test_whole_body():
    """G30, V42, V43, K20, V44."""
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


def test_k20_content_is_null_beside_calls_alone():
    assert body_of(ToolCallStart(0, "call_1", "f"))["choices"][0]["message"]["content"] is None


def test_k15_usage_members():
    """T7."""
    assert USAGE.body() == {
        "prompt_tokens": 10,
        "prompt_time": 0.5,
        "prompt_tokens_per_sec": 12.0,
        "completion_tokens": 3,
        "completion_time": 0.25,
        "completion_tokens_per_sec": 8.0,
        "total_tokens": 13,
        "queue_time": 0.125,
        "total_time": 0.875,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }


def test_rates_of_nothing_are_null():
    body = Usage(n_prompt=5, n_cached=5, n_completion=1, prompt_s=0.0, completion_s=0.0).body()
    assert body["prompt_tokens_per_sec"] is None
    assert body["completion_tokens_per_sec"] is None


def test_timings_tell_guesses_over_all_choices_where_there_were_any():
    guessed = replace(USAGE, n_drafted=10, n_draft_accepted=7)
    timings = Usage.total([guessed, USAGE, guessed], 3).timings()
    assert (timings["draft_n"], timings["draft_n_accepted"]) == (20, 14)


def test_timings_have_llama_cpps_names():
    assert USAGE.timings() == {
        "cache_n": 4,
        "prompt_n": 6,
        "prompt_ms": 500.0,
        "prompt_per_token_ms": 83.333,
        "prompt_per_second": 12.0,
        "predicted_n": 3,
        "predicted_ms": 250.0,
        "predicted_per_token_ms": 125.0,
        "predicted_per_second": 8.0,
        "queue_ms": 125.0,
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("temperature=0", {"temperature": 0}),
        ("typical=0.5", {"typical_p": 0.5}),
        ("samplers=kt", {"samplers": ("top_k", "temperature")}),
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


def test_k14_usage_over_choices_counts_the_prompt_once():
    total = Usage.total([USAGE, USAGE], 2)
    assert (total.n_prompt, total.n_cached, total.n_completion, total.n_reasoning) == (10, 4, 6, 2)


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
        pytest.param(
            errors.ModelLoading("m", 0.1), 503, "model_loading", None, "model", {"Retry-After": "1"}, id="g11-soon"
        ),
        pytest.param(
            errors.ModelLoading("m", 4.4), 503, "model_loading", None, "model", {"Retry-After": "4"}, id="g11-later"
        ),
        pytest.param(
            errors.ModelLoading("m", 99), 503, "model_loading", None, "model", {"Retry-After": "10"}, id="g11-at most"
        ),
        pytest.param(
            errors.TooManyConnections("m"),
            503,
            "rate_limit_error",
            "too_many_connections",
            None,
            {"Retry-After": "2"},
            id="connections",
        ),
    ],
)
def test_k27_errors(error, status, type, code, param, headers):
    """K32, G10."""
    assert error.status == status
    assert error.headers() == headers
    assert error.body() == {"error": {"message": "m", "type": type, "param": param, "code": code or type}}


def test_models_body():
    model = model_body("m", 7, {"n_ctx": 9})
    fields = {"id": "m", "object": "model", "created": 7, "owned_by": "localchat"}
    assert model == {**fields, "max_model_len": 9, "meta": {"n_ctx": 9}}
    assert models_body([model], [{"name": "m"}]) == {"object": "list", "data": [model], "models": [{"name": "m"}]}


def test_unknown_lists_what_nobody_read():
    members = parse_body(b'{"a": 1, "b": 2}')
    members.integer("a")
    assert members.unknown() == ["b"]
