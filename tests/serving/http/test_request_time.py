"""The time of a request is linear in its size, for every list, object and text that a body may have much of.

The whole request is measured, up to the engine with a fake model: the parser, the chat template, the grammar, the
tokens. Most of these prompts exceed the context, which is found out after that. test_linear_parsers.py measures the
parsers alone, with larger bodies.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from localchat.serving.chat.constraints import constraint as constraint_module
from tests.support.exchanges import ask
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
from tests.support.serving import Serving, serving

Body = dict[str, Any]
N, TIMES = 120, 20
TEMPLATE = Path(__file__).parents[2] / "data" / "templates" / "hermes.jinja"
CONTROL_TOKENS = "<|im_start|><|im_end|><tool_call></think>"


def said(content: Any = "b", **fields: Any) -> Body:
    return {"role": "assistant", "content": content, **fields}


def after_a_call(content: Any) -> Body:
    return {"messages": [user(), said("", tool_calls=[call(0)]), result(0, content)]}


def properties(n: int, schema: Any) -> Body:
    return {"type": "object", "properties": {f"p{i}": schema for i in range(n)}}


def nested(n: int, begin: str, end: str, inside: str = "") -> Any:
    """JSON of n levels, of 180 at most: the limit of a body is 200."""
    n = min(n, 180)
    return json.loads(begin * n + inside + end * n)


def schema(value: Any) -> Body:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}}


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
TEXT, STRING = {"type": "text", "text": "a"}, {"type": "string"}
THOUGHT = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}]}
# For each path what is there beside the fields below, and the fields for n of something.
COMMON: dict[str, Body] = {
    "/v1/chat/completions": {"messages": [user()], "max_tokens": 1},
    "/v1/messages": {"messages": [user()], "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": [user()]},
    "/v1/responses": {"input": "a", "max_output_tokens": 1},
    "/v1/chat/completions/input_tokens": {"messages": [user()]},
    "/v1/responses/input_tokens": {"input": "a"},
    "/api/chat": {"messages": [user()], "options": {"num_predict": 1}, "stream": False},
    "/api/generate": {"prompt": "a", "options": {"num_predict": 1}, "stream": False},
    "/v1/completions": {"prompt": "a", "max_tokens": 1},
    "/completion": {"prompt": "a", "n_predict": 1},
    "/infill": {"input_prefix": "a", "input_suffix": "b", "n_predict": 1},
    "/v1/embeddings": {},
    "/api/embed": {},
    "/api/embeddings": {},
    "/v1/rerank": {"query": "a"},
    "/tokenize": {},
    "/detokenize": {},
    "/apply-template": {},
}
MANY: dict[str, dict[str, Callable[[int], Body]]] = {
    "/v1/chat/completions": {
        "messages": lambda n: {"messages": [user()] * n},
        "turns": lambda n: {"messages": [*alternating(n, lambda i: user(), lambda i: said()), user()]},
        "systems": lambda n: {"messages": [{"role": "system", "content": "s"}] * n + [user()]},
        "systems between": lambda n: {
            "messages": alternating(n, lambda i: user(f"u{i}"), lambda i: {"role": "developer", "content": f"s{i}"})
        },
        "parts": lambda n: {"messages": [user([TEXT] * n)]},
        "images": lambda n: {"messages": [user([IMAGE] * n)]},
        "images in a result": lambda n: after_a_call([IMAGE] * n),
        "unknown parts in a result": lambda n: after_a_call([{"type": f"x{i}", "a": "b"} for i in range(n)]),
        "calls": lambda n: {"messages": [user(), said("", tool_calls=[*map(call, range(n))]), *map(result, range(n))]},
        "calls in reverse": lambda n: {
            "messages": [user(), said("", tool_calls=[*map(call, range(n))]), *map(result, reversed(range(n)))]
        },
        "calls with one id": lambda n: {"messages": [user(), said("", tool_calls=[call(0)] * n), *[result(0)] * n]},
        "calls one by one": lambda n: {
            "messages": [user(), *alternating(n, lambda i: said("t", tool_calls=[call(i)]), result)]
        },
        "results without calls": lambda n: {"messages": [user(), *map(result, range(n))]},
        "older calls": lambda n: {
            "messages": [user(), *alternating(
                n, lambda i: said("", function_call={"name": "f"}), lambda i: {"role": "function", "content": "r"}
            )]
        },
        "arguments": lambda n: {
            "messages": [user(), said("", tool_calls=[call(0, json.dumps({"a": ["x"] * 20 * n}))]), result(0)]
        },
        "deep arguments": lambda n: {
            "messages": [user(), said("", tool_calls=[call(0, "[" * n + "]" * n)]), result(0)]
        },
        "reasoning": lambda n: {
            "messages": [*alternating(n, lambda i: user(), lambda i: said(reasoning_content="hm")), user()]
        },
        "reasoning in texts": lambda n: {"messages": [user(), said("<think>a</think>" * n), user()]},
        "names": lambda n: {"messages": [user(name=f"n{i}") for i in range(n)]},
        "control tokens": lambda n: {"messages": [user(CONTROL_TOKENS * 5 * n)]},
        "halves of control tokens": lambda n: {"messages": [user("<|im_" * 10 * n)]},
        "control tokens in a result": lambda n: after_a_call(CONTROL_TOKENS * 5 * n),
        "spaces": lambda n: {"messages": [user(" \n" * 20 * n)]},
        "surrogates": lambda n: {"messages": [user("\ud800" * 10 * n)]},
        "tools": lambda n: {"tools": [*map(function, range(n // 8))]},
        "tools of other types": lambda n: {"tools": [{"type": f"t{i}"} for i in range(n)]},
        "required tools": lambda n: {"tools": [*map(function, range(n // 8))], "tool_choice": "required"},
        "allowed tools": lambda n: {
            "tools": [*map(function, range(n // 8))],
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": [*map(function, range(n // 8))]}},
        },
        "functions": lambda n: {"functions": [{"name": f"f{i}"} for i in range(n // 8)]},
        "properties of a tool": lambda n: {"tools": [function(0, properties(n // 2, STRING))]},
        "enum of a tool": lambda n: {
            "tools": [function(0, properties(1, {"enum": [f"v{i}" for i in range(5 * n)]}))]
        },
        "control tokens in a tool": lambda n: {
            "tools": [{"type": "function", "function": {"name": "f", "description": CONTROL_TOKENS * 5 * n}}]
        },
        "parts that a tool loses": lambda n: {
            "tools": [function(0, properties(n // 10, {"type": "array", "uniqueItems": True}))]
        },
        "properties": lambda n: schema(properties(n // 2, STRING)),
        "an enum": lambda n: schema({"enum": [f"v{i}" for i in range(5 * n)]}),
        "anyOf": lambda n: schema({"anyOf": [{"const": i} for i in range(n)]}),
        "allOf": lambda n: schema({"allOf": [{"title": str(i)} for i in range(n)]}),
        "references": lambda n: schema(
            {"$defs": {f"d{i}": STRING for i in range(n)},
             "properties": {f"p{i}": {"$ref": f"#/$defs/d{i}"} for i in range(n // 2)}}
        ),
        "patterns": lambda n: schema({"properties": {f"p{i}": {**STRING, "pattern": f"a{i}"} for i in range(n // 4)}}),
        "a long pattern": lambda n: schema({**STRING, "pattern": "[a-z]" * n}),
        "a deep schema": lambda n: schema(nested(n, '{"items":', "}", "{}")),
        "a regex": lambda n: {"regex": "|".join(f"x{i}" for i in range(n))},
        "brackets in a regex": lambda n: {"regex": "(" * n + "a" + ")" * n},
        "rules of a grammar": lambda n: {
            "grammar": "root ::= " + "|".join(f"r{i}" for i in range(n)) + "".join(f'\nr{i} ::= "x"' for i in range(n))
        },
        "choices": lambda n: {"choice": [f"c{i}" for i in range(n)]},
        "stop texts": lambda n: {"stop": ["z"] * n},
        "biases": lambda n: {"logit_bias": {str(i): 1 for i in range(n)}},
        "texts of biases": lambda n: {"logit_bias": [["ab", 1]] * n},
        "stop tokens": lambda n: {"stop_token_ids": [1] * n},
        "samplers": lambda n: {"samplers": ["top_k"] * n},
        "breakers": lambda n: {"dry_sequence_breakers": ["a"] * n},
        "adapters": lambda n: {"lora": [{"id": i, "scale": 1} for i in range(n)]},
        "documents": lambda n: {"documents": [{"text": "b"}] * n},
        "variables": lambda n: {"chat_template_kwargs": {f"k{i}": [i] for i in range(n)}},
        "metadata": lambda n: {"metadata": {f"k{i}": "v" for i in range(n)}},
        "unknown fields": lambda n: {f"k{i}": i for i in range(n)},
        "numbers": lambda n: {"x": [1.5] * 20 * n},
        "deep values": lambda n: {"x": nested(180, "[", "]", ",".join(["[]"] * n))},
    },
    "/v1/messages": {
        "messages": lambda n: {"messages": [user()] * n},
        "system blocks": lambda n: {"system": [TEXT] * n},
        "blocks": lambda n: {"messages": [user([TEXT] * n)]},
        "calls": lambda n: {
            "messages": [user(), said([*map(tool_use, range(n))]), user([*map(tool_result, range(n))])]
        },
        "texts between results": lambda n: {
            "messages": [user(), said([*map(tool_use, range(n))]), user(alternating(n, tool_result, lambda i: TEXT))]
        },
        "thinking": lambda n: {"messages": [user(), said([{"type": "thinking", "thinking": "hm"}] * n), user()]},
        "documents": lambda n: {
            "messages": [user([{"type": "document", "source": {"type": "content", "content": [TEXT] * n}}])]
        },
        "tools": lambda n: {"tools": [{"name": f"f{i}", "input_schema": {}} for i in range(n // 8)]},
        "stop texts": lambda n: {"stop_sequences": ["z"] * n},
    },
    "/v1/messages/count_tokens": {
        "messages": lambda n: {"messages": [user()] * n},
        "control tokens": lambda n: {"messages": [user(CONTROL_TOKENS * 5 * n)]},
    },
    "/v1/chat/completions/input_tokens": {"messages": lambda n: {"messages": [user()] * n}},
    "/v1/responses/input_tokens": {"messages": lambda n: {"input": [user()] * n}},
    "/v1/responses": {
        "messages": lambda n: {"input": [user()] * n},
        "developer messages": lambda n: {"input": [{"role": "developer", "content": "a"}] * n + [user()]},
        "calls": lambda n: {"input": [user(), *map(function_call, range(n)), *map(function_output, range(n))]},
        "reasoning": lambda n: {"input": [*[THOUGHT] * n, user()]},
        "unknown items": lambda n: {"input": [*({"type": f"t{i}", "text": "a"} for i in range(n)), user()]},
        "references to items": lambda n: {"input": [{"type": "item_reference", "id": f"m{i}"} for i in range(n)]},
        "namespaces": lambda n: {
            "tools": [
                {"type": "namespace", "name": f"n{i}", "tools": [{"type": "function", "name": "f"}]}
                for i in range(n // 8)
            ]
        },
        "additional tools": lambda n: {
            "input": [
                *({"type": "additional_tools", "tools": [{"type": "custom", "name": f"f{i}"}]} for i in range(n // 8)),
                user(),
            ]
        },
        "metadata": lambda n: {"metadata": {f"k{i}": "v" for i in range(n)}},
        "included fields": lambda n: {"include": ["reasoning.encrypted_content"] * n},
    },
    "/api/chat": {
        "messages": lambda n: {"messages": [user()] * n},
        "calls": lambda n: {
            "messages": [user(), said(tool_calls=[{"function": {"name": "f"}}] * n),
                         *[{"role": "tool", "tool_name": "f", "content": "r"}] * n]
        },
        "calls in reverse": lambda n: {
            "messages": [user(), said(tool_calls=[{"function": {"name": f"f{i}"}} for i in range(n)]),
                         *({"role": "tool", "tool_name": f"f{n - 1 - i}", "content": "r"} for i in range(n))]
        },
        "images": lambda n: {"messages": [user(images=["AAAA"] * n)]},
        "options": lambda n: {"options": {"num_predict": 1, **{f"k{i}": 1 for i in range(n)}}},
        "an enum": lambda n: {"format": {"enum": [f"v{i}" for i in range(5 * n)]}},
    },
    "/api/generate": {
        "a text": lambda n: {"prompt": CONTROL_TOKENS * 5 * n},
        "a raw text": lambda n: {"prompt": CONTROL_TOKENS * 5 * n, "raw": True},
        "images": lambda n: {"images": ["AAAA"] * n},
    },
    "/v1/completions": {
        "prompts": lambda n: {"prompt": ["a"] * n},
        "a text": lambda n: {"prompt": "a" * 20 * n},
        "tokens": lambda n: {"prompt": [97] * 20 * n},
        "a suffix": lambda n: {"suffix": "a" * 20 * n},
    },
    "/completion": {"prompts": lambda n: {"prompt": ["a"] * n}, "a text": lambda n: {"prompt": CONTROL_TOKENS * 5 * n}},
    "/infill": {
        "files": lambda n: {"input_extra": [{"filename": "f", "text": "t"}] * n},
        "a file": lambda n: {"input_extra": [{"filename": "f", "text": "t" * 20 * n}]},
    },
    "/v1/embeddings": {"inputs": lambda n: {"input": ["a"] * n}, "tokens": lambda n: {"input": [97] * 20 * n}},
    "/api/embed": {"inputs": lambda n: {"input": ["a"] * n}, "a text": lambda n: {"input": "a" * 20 * n}},
    "/api/embeddings": {"a text": lambda n: {"prompt": "a" * 20 * n}},
    "/v1/rerank": {"documents": lambda n: {"documents": ["a"] * n}, "a query": lambda n: {"query": "a" * 20 * n}},
    "/tokenize": {"a text": lambda n: {"content": CONTROL_TOKENS * n, "with_pieces": True}},
    "/detokenize": {"tokens": lambda n: {"tokens": [97] * 20 * n}},
    "/apply-template": {"messages": lambda n: {"messages": [user(CONTROL_TOKENS)] * n}},
}  # fmt: skip


@pytest.fixture(scope="module")
def running() -> Iterator[Serving]:
    facts = {"chat_template": TEMPLATE.read_text(encoding="utf-8"), "n_ctx": 4000, "n_cells": 16_000}
    with serving(fim={"fim_tokens": (1, 2, 3), "fim_file": 4}, **facts) as running:
        yield running


@pytest.fixture(scope="module")
def reranker() -> Iterator[Serving]:
    with serving(metadata={"general.architecture": "bert", "bert.pooling_type": "4"}) as running:
        yield running


@pytest.mark.parametrize(
    ("path", "name"), [(path, name) for path, names in MANY.items() for name in names], ids=lambda text: text.strip("/")
)
def test_time_is_linear_in_the_size_of_a_request(request: pytest.FixtureRequest, path: str, name: str):
    running: Serving = request.getfixturevalue("reranker" if path == "/v1/rerank" else "running")

    def seconds(n: int) -> float:
        body = {**COMMON[path], **MANY[path][name](n)}
        constraint_module._constraint.cache_clear()
        began_at = time.process_time()
        status, found = ask(running.port, path, body)
        assert status < 500, found
        return time.process_time() - began_at

    assert_linear(seconds, N, TIMES, 0.004)


def test_every_endpoint_with_a_body_is_measured(running: Serving):
    """Apart from those that only name a model."""
    endpoints = (text.split(" /v1") for text in running.request("GET", "/v1")[1]["endpoints"])
    with_body = {path for method, path in endpoints if method == "POST"}
    measured = {path.removeprefix("/v1") for path in MANY}
    assert with_body - measured == {"/models/load", "/models/unload", "/api/show", "/reranking"}
