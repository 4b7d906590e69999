"""The requests of other servers' documentation, through a raw socket and through the real `openai` package."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from .serving import DEADLINE_S, TOOLS, Serving, dechunked, delta_text, payloads, raw_request, says, serving

ANSWER = "<think>hm</think>Hello there.\n"
SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
DEVELOPER = {"role": "developer", "content": "You are a helpful assistant."}
USER = {"role": "user", "content": "Hello!"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_current_weather",
        "description": "Get the current weather in a given location",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["location"],
        },
    },
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_current_weather", "arguments": "{}"}}
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.jpg"}}

# What documentation asks for, and the member that is wrong with it here, if one is.
EXAMPLES: dict[str, tuple[dict[str, Any], Any]] = {
    "default": ({"messages": [DEVELOPER, USER]}, None),
    "system": ({"messages": [SYSTEM, USER], "temperature": 0.7, "top_p": 0.9}, None),
    "image": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "?"}, IMAGE]}]},
        "messages[0].content[1]",
    ),
    "functions": ({"messages": [USER], "tools": [WEATHER], "tool_choice": "auto"}, None),
    "logprobs": ({"messages": [USER], "logprobs": True, "top_logprobs": 2}, None),
    "tool result": (
        {
            "messages": [
                USER,
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "call_1", "content": '{"temperature": 22}'},
            ],
            "tools": [WEATHER],
        },
        None,
    ),
    "audio": ({"messages": [USER], "modalities": ["text", "audio"]}, "modalities"),
    "many members": (
        {
            "messages": [USER],
            "max_completion_tokens": 100,
            "n": 2,
            "stop": ["###"],
            "presence_penalty": 0.1,
            "frequency_penalty": 0.1,
            "logit_bias": {"50": -100},
            "seed": 42,
            "user": "someone",
            "store": True,
            "metadata": {"a": "b"},
            "service_tier": "auto",
            "parallel_tool_calls": True,
            "reasoning_effort": "medium",
            "response_format": {"type": "text"},
        },
        None,
    ),
    "named tool": (
        {
            "messages": [USER],
            "tools": TOOLS,
            "tool_choice": {"type": "function", "function": {"name": "nobody"}},
        },
        "tool_choice",
    ),
    "llama.cpp members": (
        {
            "messages": [USER],
            "n_predict": 64,
            "min_p": 0.05,
            "typical_p": 1.0,
            "repeat_penalty": 1.1,
            "repeat_last_n": 64,
            "mirostat": 0,
            "mirostat_tau": 5.0,
            "mirostat_eta": 0.1,
            "dry_multiplier": 0.8,
            "xtc_probability": 0.5,
            "samplers": ["dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],
            "cache_prompt": True,
            "id_slot": -1,
            "timings_per_token": True,
            "return_progress": True,
            "chat_template_kwargs": {"enable_thinking": False},
            "reasoning_format": "auto",
        },
        None,
    ),
    "vllm members": (
        {
            "messages": [USER],
            "repetition_penalty": 1.1,
            "stop_token_ids": [10],
            "min_tokens": 2,
            "add_generation_prompt": True,
            "include_reasoning": True,
            "add_special_tokens": False,
            "priority": 0,
            "request_id": "r1",
        },
        None,
    ),
    "prefix": ({"messages": [USER, {"role": "assistant", "content": "Hell"}], "continue_final_message": True}, None),
    "no messages": ({"messages": []}, "messages"),
    "temperature": ({"messages": [USER], "temperature": 101}, "temperature"),
}


@pytest.fixture(scope="module")
def running() -> Iterator[Serving]:
    with serving(says(ANSWER), n_ctx=4000, n_cells=16000) as running:
        yield running


def ask_raw(running: Serving, members: dict[str, Any]) -> tuple[int, Any]:
    body = json.dumps({"model": "Fake", **members}).encode()
    with running.connect() as sock:
        sock.sendall(raw_request(body, "Connection: close"))
        head, _, rest = b"".join(iter(lambda: sock.recv(65536), b"")).partition(b"\r\n\r\n")
    status = int(head.split()[1])
    return status, payloads(dechunked(rest)) if b"event-stream" in head else json.loads(rest)


def ask_openai(running: Serving, members: dict[str, Any]) -> tuple[int, Any]:
    """The same through the package; members that its signature lacks go the way it has for them."""
    openai = pytest.importorskip("openai", reason="the real client comes with the test extra")
    known = set(openai.resources.chat.completions.Completions.create.__annotations__)
    given = {name: value for name, value in members.items() if name in known}
    more = {name: value for name, value in members.items() if name not in known}
    url = f"http://127.0.0.1:{running.port}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=DEADLINE_S) as client:
        try:
            answer = client.chat.completions.create(model="Fake", **given, extra_body=more)
            if members.get("stream"):
                return 200, [chunk.model_dump() for chunk in answer]
            return 200, answer.model_dump()
        except openai.BadRequestError as error:
            return error.status_code, {"error": {"param": error.param, "message": error.message}}


CLIENTS = {"raw": ask_raw, "openai": ask_openai}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_example_is_answered_or_refused_by_name(running: Serving, name: str, stream: bool, client: str):
    members, param = EXAMPLES[name]
    status, answer = CLIENTS[client](running, {**members, "stream": stream})
    if param is not None:
        assert (status, answer["error"]["param"]) == (400, param)
        return
    assert status == 200
    for i in range(members.get("n", 1)):
        assert text_of(answer, i).strip() in ("Hello there.", "")
        assert end_of(answer, i) in ("stop", "length")


def text_of(answer: Any, i: int) -> str:
    if isinstance(answer, list):
        return delta_text(answer, i)
    content: str = answer["choices"][i]["message"]["content"]
    return content


def end_of(answer: Any, i: int) -> str:
    chunks = answer if isinstance(answer, list) else [answer]
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == i]
    (end,) = (choice["finish_reason"] for choice in choices if choice["finish_reason"])
    return str(end)


def test_openai_package_reads_reasoning_and_figures(running: Serving):
    """K8, K13, K15: members beyond the package's own are there too."""
    members = {"messages": [USER], "stream": True, "stream_options": {"include_usage": True}}
    _, chunks = ask_openai(running, members)
    thoughts = [c["delta"].get("reasoning_content") or "" for chunk in chunks for c in chunk["choices"]]
    assert "".join(thoughts).strip() == "hm"
    usage = chunks[-1]["usage"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == len("<think>hm</think>")
    assert usage["completion_tokens"] == len(ANSWER) + 1
    assert chunks[-1]["timings"]["predicted_n"] == usage["completion_tokens"]
    with contextlib.suppress(KeyError):
        assert chunks[0]["usage"] is None
