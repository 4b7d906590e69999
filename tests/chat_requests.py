"""Chat requests for tests of the parser."""

import json

import pytest

from localchat.serving.api.chat import parse_chat
from localchat.serving.core import errors
from localchat.serving.core.fields import parse_body

HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "look"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}


# The fields for which null means absent.
NULLABLE = (
    "model", "stream", "stream_options", "n", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k",
    "min_p", "seed", "stop", "presence_penalty", "frequency_penalty", "repeat_penalty", "repetition_penalty",
    "stop_token_ids", "logit_bias", "logprobs", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls",
    "template_vars", "chat_template_kwargs", "enable_thinking", "reasoning_effort", "response_format", "grammar",
    "echo", "documents", "user", "typical_p", "typical", "samplers", "dry_sequence_breakers", "min_tokens",
    "ignore_eos", "n_predict", "functions", "function_call", "chat_template", "response_prefix",
    "continue_final_message", "add_generation_prompt", "reasoning_format", "return_progress", "return_token_ids",
    "n_cmpl", "n_probs", "use_beam_search", "request_id", "timings_per_token", "reasoning_budget_tokens",
    "thinking_budget_tokens", "reasoning_budget", "reasoning_budget_message",
)  # fmt: skip


def read(parser, fields, *, strict=False):
    """The request that a parser of any interface reads from these fields."""
    body = parse_body(json.dumps(fields).encode())
    request = parser(body)
    body.report_unknown()
    body.ignored(strict=strict)
    return request


def ignored(parser, fields):
    """What the parser ignores in these fields."""
    body = parse_body(json.dumps(fields).encode())
    parser(body)
    body.report_unknown()
    return body.ignored(strict=False)


def parse(*, strict=False, **fields):
    return read(parse_chat, {"messages": HI, **fields}, strict=strict)


def parse_messages(*messages):
    return parse(messages=list(messages)).messages


def refused(parser, fields):
    """The path of the field that a parser of any interface refuses."""
    with pytest.raises(errors.BadRequest) as caught:
        read(parser, fields)
    assert f"'{caught.value.param}'" in caught.value.message
    return caught.value.param
