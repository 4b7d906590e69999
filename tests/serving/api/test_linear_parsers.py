"""The time to parse a body is linear in its size, for every list and object that a body may have many of."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from localchat.serving.api import ollama
from localchat.serving.api.chat import parse_chat
from localchat.serving.api.completions import parse_completion, parse_infill, parse_native
from localchat.serving.api.embeddings import parse_embeddings, parse_rerank
from localchat.serving.api.messages import parse_count_tokens, parse_messages
from localchat.serving.api.tokens import parse_detokenize, parse_tokenize
from localchat.serving.core.fields import Fields, parse_body
from tests.support.chat_requests import parse_responses
from tests.support.growth import assert_linear
from tests.support.request_items import (
    alternating,
    call,
    function,
    function_call,
    function_output,
    result,
    tool_result,
    tool_use,
    user,
)

Body = dict[str, Any]


THOUGHT = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a " * 20}]}
PARSERS: dict[str, Callable[[Fields], Any]] = {
    "chat": parse_chat, "messages": parse_messages, "responses": parse_responses, "ollama": ollama.parse_ollama,
    "count": parse_count_tokens, "generate": ollama.parse_generate, "embed": ollama.parse_embed,
    "completions": parse_completion, "completion": parse_native, "infill": parse_infill,
    "embeddings": parse_embeddings, "rerank": parse_rerank, "tokenize": parse_tokenize, "detokenize": parse_detokenize,
}  # fmt: skip
# The interface and what the body has many of; the fields for a number of these.
MANY: dict[str, Callable[[int], Body]] = {
    "chat: messages": lambda n: {"messages": [user()] * n},
    "chat: parts": lambda n: {"messages": [user([{"type": "text", "text": "a"}] * n)]},
    "chat: images": lambda n: {"messages": [user([{"type": "image_url", "image_url": {"url": "data:,"}}] * n)]},
    "chat: calls": lambda n: {
        "messages": [user(), {"role": "assistant", "tool_calls": [*map(call, range(n))]}, *map(result, range(n))]
    },
    "chat: calls one by one": lambda n: {
        "messages": [user(), *alternating(n, lambda i: {"role": "assistant", "tool_calls": [call(i)]}, result)]
    },
    "chat: tools": lambda n: {"messages": [user()], "tools": [*map(function, range(n))]},
    "chat: allowed tools": lambda n: {
        "messages": [user()], "tools": [*map(function, range(n))],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": [*map(function, range(n))]}},
    },
    "chat: unknown parts": lambda n: {
        "messages": [user(), {**result(0), "content": [{"type": f"t{i}", "text": "a"} for i in range(n)]}]
    },
    "chat: unknown fields": lambda n: {"messages": [user()], **{f"k{i}": 1 for i in range(n)}},
    "messages: calls": lambda n: {
        "max_tokens": 5, "messages": [
            user(), {"role": "assistant", "content": [*map(tool_use, range(n))]}, user([*map(tool_result, range(n))]),
        ],
    },
    "messages: calls one by one": lambda n: {
        "max_tokens": 5,
        "messages": alternating(
            n, lambda i: {"role": "assistant", "content": [tool_use(i)]}, lambda i: user([tool_result(i)])
        ),
    },
    "messages: system": lambda n: {
        "max_tokens": 5, "messages": [user()], "system": [{"type": "text", "text": "a"}] * n,
    },
    "responses: messages": lambda n: {"input": [user()] * n},
    "responses: calls": lambda n: {"input": [*map(function_call, range(n)), *map(function_output, range(n))]},
    "responses: reasoning": lambda n: {"input": [*[THOUGHT] * n, user()]},
    "responses: allowed tools": lambda n: {
        "input": "a", "tools": [{"type": "function", "name": f"f{i}"} for i in range(n)],
        "tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": f"f{i}"} for i in range(n)]},
    },
    "ollama: calls": lambda n: {
        "messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}] * n},
                     *[{"role": "tool", "tool_name": "f", "content": "r"}] * n],
    },
    "ollama: names in reverse": lambda n: {
        "messages": [{"role": "assistant", "tool_calls": [{"function": {"name": f"f{i}"}} for i in range(n)]},
                     *({"role": "tool", "tool_name": f"f{n - 1 - i}", "content": "r"} for i in range(n))],
    },
    "ollama: calls in reverse": lambda n: {
        "messages": [{"role": "assistant", "tool_calls": [call(i) | {"function": {"name": "f"}} for i in range(n)]},
                     *(result(n - 1 - i) for i in range(n))],
    },
    "ollama: images": lambda n: {"messages": [{**user(), "images": ["AAAA"] * n}]},
    "count: messages": lambda n: {"messages": [user()] * n},
    "generate: images": lambda n: {"prompt": "a", "images": ["AAAA"] * n},
    "embed: tokens": lambda n: {"input": [1] * 20 * n},
    "completions: tokens": lambda n: {"prompt": [1] * 20 * n},
    "completion: unknown fields": lambda n: {"prompt": "a", **{f"k{i}": 1 for i in range(n)}},
    "infill: files": lambda n: {"input_prefix": "a", "input_extra": [{"filename": "f", "text": "t"}] * n},
    "embeddings: tokens": lambda n: {"input": [1] * 20 * n},
    "rerank: unknown fields": lambda n: {"query": "a", "documents": ["b"], **{f"k{i}": 1 for i in range(n)}},
    "tokenize: a text": lambda n: {"content": "<|im_start|>\ud800" * n},
    "detokenize: tokens": lambda n: {"tokens": [1] * 20 * n},
}  # fmt: skip


@pytest.mark.parametrize("name", MANY)
def test_time_is_linear_in_the_size_of_a_body(name: str):
    parse = PARSERS[name.partition(":")[0]]

    def seconds(n: int) -> float:
        body = parse_body(json.dumps({"model": "m", **MANY[name](n)}).encode())
        began_at = time.thread_time()
        request = parse(body)
        body.report_unknown()
        body.ignored(strict=False)
        assert len(getattr(request, "callable_tools", ())) in (0, n)
        return time.thread_time() - began_at

    assert_linear(seconds, 800, 10, 0.004)
