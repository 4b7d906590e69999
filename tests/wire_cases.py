"""The requests of `tests.wire_record`: every endpoint, every parameter with a good and a bad value, broken HTTP."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@dataclass(frozen=True)
class Case:
    """One request."""

    name: str
    path: str = CHAT
    # JSON; None for a request without a body.
    body: Any = None
    method: str = "POST"
    headers: tuple[str, ...] = ()
    # The bytes of the request, in place of all of the above.
    verbatim: bytes | None = None

    def raw(self) -> bytes:
        if self.verbatim is not None:
            return self.verbatim
        content = b"" if self.body is None else json.dumps(self.body, ensure_ascii=False).encode()
        lines = [f"{self.method} {self.path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close", *self.headers]
        if self.body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
        return "\r\n".join([*lines, "", ""]).encode() + content


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


NAME = user("What is your name?")
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
SECOND_TOOL = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}
WEATHER = user("What is the weather in Rome?")
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
HISTORY = [
    *WEATHER,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": '{"temperature": 21}'},
]
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}, "required": ["name"]}


def chat(name: str, messages: Any = None, **fields: Any) -> Case:
    body = {"messages": NAME if messages is None else messages, "temperature": 0, "max_tokens": 24, **fields}
    return Case(f"chat {name}", CHAT, {key: value for key, value in body.items() if value != "absent"})


def both(name: str, messages: Any = None, **fields: Any) -> list[Case]:
    """A case with a whole response and one with a stream."""
    return [chat(name, messages, **fields), chat(f"{name}, streamed", messages, stream=True, **fields)]


def text(name: str, **fields: Any) -> Case:
    body = {"prompt": "My name is", "temperature": 0, "max_tokens": 12, **fields}
    return Case(f"text {name}", TEXT, {key: value for key, value in body.items() if value != "absent"})


USAGE = {"stream": True, "stream_options": {"include_usage": True}}
GOOD_FIELDS: dict[str, Any] = {
    "temperature": 0.5,
    "top_k": 3,
    "top_p": 0.5,
    "min_p": 0.2,
    "typical_p": 0.9,
    "top_n_sigma": 1.5,
    "xtc_probability": 0.3,
    "xtc_threshold": 0.2,
    "repeat_penalty": 1.2,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "dry_multiplier": 0.8,
    "mirostat": 2,
    "adaptive_target": 0.4,
    "min_keep": 2,
    "dynatemp_range": 0.2,
    "repetition_penalty": 1.1,
    "typ_p": 0.8,
    "nsigma": 1,
    "samplers": ["top_k", "temperature"],
}
BAD_FIELDS: dict[str, list[Any]] = {
    **{
        name: ["x", -5.5, 1e9, True]
        for name in ("temperature", "top_p", "min_p", "typical_p", "xtc_probability", "repeat_penalty", "dry_base")
    },
    **{name: ["x", 1.5, -7] for name in ("top_k", "min_keep", "mirostat", "penalty_last_n", "n", "min_tokens")},
    "seed": ["x", 1.5, 2**70],
    "presence_penalty": [-3, 3, "x"],
    "frequency_penalty": [-3, 3],
    "repetition_penalty": [0],
    "max_tokens": [0, -2, "x", 1.5],
    "max_completion_tokens": [0],
    "n_predict": [-2, 0],
    "stop": [1, [""], [1], ["x"] * 65, ["a\0b"]],
    "stop_token_ids": [1, ["x"], [-1], [10**9]],
    "logit_bias": [1, {"x": "y"}, {"": 1}, {"1": 101}, [[1]], [[-1, 1]], {"99999999": 1}],
    "samplers": ["?", [1], ["top_k", "top_k"], 5],
    "dry_sequence_breakers": [[], [""], 1],
    "logprobs": [1, "x"],
    "top_logprobs": [3, 21, "x"],
    "prompt_logprobs": [21, "x"],
    "stream": [1, "x"],
    "stream_options": [1, {"include_usage": 1}],
    "messages": [
        None,
        [],
        "x",
        [1],
        [{"role": "x", "content": "y"}],
        [{"role": "user"}],
        [{"role": "user", "content": 1}],
        [{"role": "user", "content": [{"type": "image_url"}]}],
        [{"role": "assistant", "tool_calls": [{"function": {}}]}],
    ],
    "model": [1, "nobody"],
    "tools": [1, [1], [{"type": "x"}], [{"type": "function"}], [{"type": "function", "function": {"name": ""}}]],
    "tool_choice": [1, "x", "required", {"type": "function", "function": {"name": "nobody"}}],
    "response_format": [
        1,
        {"type": "x"},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {}},
        {"type": "json_schema", "json_schema": {"schema": {"type": "strange"}}},
        {"type": "json_schema", "json_schema": {"schema": {"if": {}, "then": {}}}},
    ],
    "regex": [1, "(", "(?=a)b"],
    "grammar": [1, "root := x", 'root ::= "a" |', 'start ::= "a"'],
    "choice": [1, [""], [1]],
    "structured_outputs": [1, {"structural_tag": "x"}, {"json": 1}],
    "reasoning_format": ["x", 1],
    "reasoning_budget_tokens": ["x", -2],
    "chat_template_kwargs": [1, {"enable_thinking": "no"}],
    "chat_template": ["x"],
    "continue_final_message": ["x", True],
    "add_generation_prompt": [1],
    "response_prefix": [1],
    "sse_ping_interval": ["x", -2],
    "use_beam_search": [True],
    "lora": [[1]],
    "web_search_options": [{}],
    "grammar_lazy": [True],
    "request_id": [1],
    "functions": [1, [{}]],
}


def chat_cases() -> list[Case]:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    return [
        *both("plain"),
        *both("two choices", n=2, seed=3, temperature=0.8),
        *both("stop text", stop=["chat"]),
        *both("stop token", stop_token_ids=[30, 40, 50]),
        *both("log probabilities", logprobs=True, top_logprobs=2, max_tokens=4),
        *both("llama.cpp's log probabilities", n_probs=2, post_sampling_probs=True, max_tokens=4),
        *both("token ids", return_token_ids=True, max_tokens=4),
        *both("tokens as ids", return_tokens_as_token_ids=True, logprobs=True, max_tokens=3),
        *both("one token", max_tokens=1),
        *both("at least ten tokens", min_tokens=10),
        *both("no end", ignore_eos=True, max_tokens=40),
        *both("prefix", response_prefix="I am", echo=True),
        *both("continued", [*NAME, {"role": "assistant", "content": "I am"}]),
        *both("continued and echoed", [*NAME, {"role": "assistant", "content": "I am"}], echo=True),
        *both(
            "a new turn after the assistant",
            [*NAME, {"role": "assistant", "content": "Hi"}],
            add_generation_prompt=True,
        ),
        *both("thinking", user("Think first: what is your name?"), max_tokens=60),
        *both("thinking left in", user("Think first: what is your name?"), reasoning_format="none", max_tokens=60),
        *both(
            "thinking twice", user("Think first: what is your name?"), reasoning_format="deepseek-legacy", max_tokens=60
        ),
        *both("no thinking", user("Think first: what is your name?"), chat_template_kwargs={"enable_thinking": False}),
        *both("thinking budget", user("Think first: what is your name?"), reasoning_budget_tokens=3, max_tokens=40),
        *both("no thinking budget", user("Think first: what is your name?"), reasoning_budget_tokens=0, max_tokens=40),
        *both(
            "budget with message", user("Think first."), reasoning_budget_tokens=2, reasoning_budget_message=" enough"
        ),
        *both("tools", WEATHER, tools=[TOOL], max_tokens=60),
        *both("two tools", user("What time is it?"), tools=[TOOL, SECOND_TOOL], max_tokens=60),
        *both("required tool", NAME, tools=[TOOL], tool_choice="required", max_tokens=60),
        *both("required tool, cut", NAME, tools=[TOOL], tool_choice="required", max_tokens=8),
        *both("no tool", WEATHER, tools=[TOOL], tool_choice="none"),
        *both(
            "named tool",
            NAME,
            tools=[TOOL, SECOND_TOOL],
            tool_choice={"type": "function", "function": {"name": "get_time"}},
            max_tokens=60,
        ),
        *both("one call", user("Weather in Rome and in Oslo?"), tools=[TOOL], parallel_tool_calls=False, max_tokens=80),
        *both("more calls", user("Weather in Rome and in Oslo?"), tools=[TOOL], max_tokens=90),
        *both("tool result", HISTORY, tools=[TOOL], max_tokens=40),
        *both("older functions", WEATHER, functions=[TOOL["function"]], function_call="auto", max_tokens=60),
        *both("developer role", [{"role": "developer", "content": "Be brief."}, *NAME]),
        *both(
            "content parts",
            [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "What is "}, {"type": "text", "text": "your name?"}],
                }
            ],
        ),
        *both("special text in a message", user("<|im_end|><think>hello</think>")),
        *both("json object", response_format={"type": "json_object"}, max_tokens=40),
        *both("json schema", response_format=form, max_tokens=60),
        *both("json schema, cut", response_format=form, max_tokens=4),
        *both("regex", regex="(yes|no)[!?]"),
        *both("choice", choice=["red", "green"]),
        *both("grammar", grammar='root ::= "a" [0-9]{3}'),
        *both("structured outputs", structured_outputs={"choice": ["x", "y"]}),
        *both("guided", guided_regex="[a-c]{4}"),
        *both("schema and tools", WEATHER, response_format=form, tools=[TOOL], max_tokens=60),
        *both("prompt log probabilities", prompt_logprobs=1, max_tokens=1)[:1],
        *[
            Case(f"{case.name} and usage", case.path, {**case.body, **USAGE})
            for case in both("plain with usage", WEATHER, tools=[TOOL])[:1]
        ],
        chat(
            "continuous usage",
            stream=True,
            stream_options={"include_usage": True, "continuous_usage_stats": True},
            max_tokens=3,
        ),
        chat("timings per token", stream=True, timings_per_token=True, max_tokens=3),
        chat(
            "progress",
            user("A prompt that nobody has sent: " + "x y z " * 20),
            stream=True,
            return_progress=True,
            max_tokens=2,
        ),
        chat("unknown field", zzz=1, max_tokens=2),
        chat("own request id", request_id="mine", max_tokens=2),
        chat("too long", user("word " * 4000)),
        *[
            chat(f"with {name}", max_tokens=8, seed=7, **{"temperature": 0.9, name: value})
            for name, value in GOOD_FIELDS.items()
        ],
        *[
            chat(f"bad {name} {i}", **{"max_tokens": 4, name: value})
            for name, values in BAD_FIELDS.items()
            for i, value in enumerate(values)
        ],
    ]


def other_cases() -> list[Case]:
    texts = [
        text("plain"),
        text("streamed", stream=True),
        text("two", prompt=["My name is", "Hello"]),
        text("tokens", prompt=[40, 41, 42]),
        text("token lists", prompt=[[40, 41], [42]]),
        text("n", n=2, seed=1, temperature=0.9),
        text("n streamed", n=2, seed=1, temperature=0.9, stream=True),
        text("best of", n=1, best_of=3),
        text("echo", echo=True),
        text("echo streamed", echo=True, stream=True),
        text("log probabilities", logprobs=2, max_tokens=4),
        text("log probabilities streamed", logprobs=2, max_tokens=4, stream=True),
        text("echo with log probabilities", echo=True, logprobs=1, max_tokens=2),
        text("prefill only", max_tokens=0, echo=True, logprobs=1),
        text("prompt log probabilities", prompt_logprobs=1, max_tokens=1),
        text("suffix", suffix="!"),
        text("empty prompt", prompt=""),
        text("no prompt", prompt="absent"),
        text("bad prompt", prompt=[["x"]]),
        text("bad token", prompt=[10**8]),
        text("too many", prompt=["x"] * 129),
        text("stop", stop=" "),
        text("regex", regex="[0-9]{3}"),
        text("bad regex", regex="("),
        text("usage", stream=True, stream_options={"include_usage": True}),
        text("truncated", truncate_prompt_tokens=2),
        text("token ids", return_token_ids=True),
        text("bad logprobs", logprobs=50),
        text("bad n", n=1000),
        text("schema", response_format={"type": "json_schema", "json_schema": {"schema": SCHEMA}}, max_tokens=40),
        text("progress", stream=True, return_progress=True, max_tokens=2),
    ]
    simple = [
        ("embeddings", "/v1/embeddings", {"input": "hello"}),
        ("embeddings list", "/v1/embeddings", {"input": ["a", "b"]}),
        ("embeddings base64", "/v1/embeddings", {"input": "a", "encoding_format": "base64", "dimensions": 4}),
        ("embeddings empty", "/v1/embeddings", {"input": []}),
        ("embeddings bad", "/v1/embeddings", {"input": 1}),
        ("embeddings too wide", "/v1/embeddings", {"input": "a", "dimensions": 10**6}),
        ("rerank", "/v1/rerank", {"query": "a", "documents": ["b"]}),
        ("rerank bad", "/rerank", {"query": 1}),
        ("tokenize", "/tokenize", {"content": "hello", "with_pieces": True}),
        ("tokenize bad", "/tokenize", {}),
        ("detokenize", "/detokenize", {"tokens": [40, 41]}),
        ("detokenize bad", "/detokenize", {"tokens": [10**9]}),
        ("apply template", "/apply-template", {"messages": NAME}),
        ("apply template bad", "/apply-template", {}),
        ("responses", "/v1/nothing", {"input": "x"}),
        ("infill", "/infilll", {}),
    ]
    got = [
        "/health",
        "/v1/health",
        "/v1/models",
        "/v1/models/demo",
        "/v1/models/nobody",
        "/props",
        "/slots",
        "/metrics",
    ]
    got += ["/", "/v1", "/nothing", "/v1/chat/completions", "/v1/files", "/v1/audio/speech"]
    hosts = [
        ("host", "Host: evil.example"),
        ("origin", "Origin: https://evil.example"),
        ("origin ours", "Origin: null"),
    ]
    return [
        *texts,
        *[Case(name, path, body) for name, path, body in simple],
        *[Case(f"GET {path}", path, method="GET") for path in got],
        *[Case(f"HEAD {path}", path, method="HEAD") for path in ("/health", "/v1/models", "/nothing")],
        *[Case(f"OPTIONS {path}", path, method="OPTIONS") for path in ("/health", CHAT, "/nothing")],
        Case("PUT", CHAT, {}, "PUT"),
        Case("no body", CHAT),
        Case("not JSON", verbatim=posted(b"{")),
        Case("an array", CHAT, []),
        Case("NaN", verbatim=posted(b'{"messages": NaN}')),
        Case("deep", verbatim=posted(b'{"messages": ' + b"[" * 300 + b"]" * 300 + b"}")),
        Case("not UTF-8", verbatim=posted(b'{"messages": "\xff"}')),
        *[Case(name, "/v1/models", method="GET", headers=(line,)) for name, line in hosts[1:]],
        Case("foreign host", verbatim=b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"),
        Case("request id", "/v1/models", method="GET", headers=("X-Request-Id: abc",)),
        Case("HTTP/1.0", verbatim=b"GET /health HTTP/1.0\r\n\r\n"),
        Case("bare CR", verbatim=b"GET /health HTTP/1.1\r\nHost: a\rb\r\n\r\n"),
        Case("NUL", verbatim=b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a\0b\r\n\r\n"),
        Case("bad header", verbatim=b"GET /health HTTP/1.1\r\nnonsense\r\n\r\n"),
        Case("bad method", verbatim=b"BREW /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
        Case(
            "two lengths",
            verbatim=b"POST /tokenize HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        ),
        Case("bad length", verbatim=b"POST /tokenize HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: x\r\n\r\n{}"),
        Case(
            "length and chunks",
            verbatim=b"POST /tokenize HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",  # noqa: E501
        ),
        Case("gzip coding", verbatim=b"POST /tokenize HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: gzip\r\n\r\n"),
        Case(
            "bad chunk",
            verbatim=b"POST /tokenize HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
        ),
        Case(
            "chunks",
            verbatim=b"POST /tokenize HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"  # noqa: E501
            b'f\r\n{"content":"a"}\r\n0\r\n\r\n',
        ),
        Case(
            "too large", verbatim=b"POST /tokenize HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999\r\n\r\n"
        ),
        Case("long line", verbatim=b"GET /" + b"x" * 70000 + b" HTTP/1.1\r\n\r\n"),
    ]


def posted(content: bytes) -> bytes:
    head = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


KEY = ("Authorization: Bearer secret",)
STRICT = [
    Case("no key", CHAT, {"messages": NAME}),
    Case("wrong key", CHAT, {"messages": NAME}, headers=("Authorization: Bearer wrong",)),
    Case("health needs no key", "/health", method="GET"),
    Case("unknown field", CHAT, {"messages": NAME, "zzz": 1}, headers=KEY),
    Case("harmless field", CHAT, {"messages": NAME, "user": "me", "max_tokens": 4, "temperature": 0}, headers=KEY),
    Case(
        "own template",
        CHAT,
        {"messages": NAME, "chat_template": "{{ messages[0].content }}", "max_tokens": 4, "temperature": 0},
        headers=KEY,
    ),
    Case("bad template", CHAT, {"messages": NAME, "chat_template": "{% if %}"}, headers=KEY),
    Case(
        "thought field",
        CHAT,
        {"messages": user("Think first: what is your name?"), "temperature": 0, "max_tokens": 40},
        headers=KEY,
    ),
    Case(
        "thought field streamed",
        CHAT,
        {"messages": user("Think first: what is your name?"), "temperature": 0, "max_tokens": 40, "stream": True},
        headers=KEY,
    ),
    Case(
        "tools kept",
        CHAT,
        {"messages": WEATHER, "tools": [TOOL], "tool_choice": "none", "temperature": 0, "max_tokens": 20},
        headers=KEY,
    ),
    Case("any name", CHAT, {"messages": NAME, "model": "whatever", "max_tokens": 2, "temperature": 0}, headers=KEY),
    Case("allowed page", "/v1/models", method="GET", headers=(*KEY, "Origin: https://good.example")),
    Case(
        "preflight",
        CHAT,
        method="OPTIONS",
        headers=("Origin: https://good.example", "Access-Control-Request-Method: POST"),
    ),
    Case("other page", "/v1/models", method="GET", headers=(*KEY, "Origin: https://evil.example")),
]
OPTIONS = ["--api-key", "secret", "--strict", "--allow-chat-template", "--thought-field", "--keep-tools", "--any-name"]
OPTIONS += ["--cors", "https://good.example", "--reasoning-budget", "8", "--default", "top_k=5"]

SERVERS: dict[str, tuple[list[str], list[Case]]] = {
    # Whether a draft is made depends on how long steps take.
    "chat": (["--no-speculation"], chat_cases()),
    "other": (["--no-speculation"], other_cases()),
    "strict": (["--no-speculation", *OPTIONS], STRICT),
}
