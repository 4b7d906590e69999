"""Requests that failed on other servers, by public reports, over HTTP. Each test is named after what is right."""

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.chat_requests import TOOL
from tests.support.exchanges import exchange
from tests.support.fakes import endless
from tests.support.live import running_process
from tests.support.serving import BIG, chat_body, generating, raw_request, read_all, reset, serving, wait_for

USER = {"role": "user", "content": "hello"}
SCHEMA = {"type": "object", "required": None, "enum": None, "properties": {"a": {"type": "integer", "minimum": None}}}


def called(id: Any, arguments: Any) -> dict[str, Any]:
    call = {"id": id, "type": "function", "function": {"name": "look", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def result(id: Any, content: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


CHAT = "/v1/chat/completions"


def chat(*messages: Any, **fields: Any) -> tuple[str, dict[str, Any]]:
    return CHAT, {"messages": messages or [USER], **fields}


A, B = ({"role": "system", "content": text} for text in "ab")
USED = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}]}
RETURNED = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t"}]}
SERVED: dict[str, tuple[str, dict[str, Any]]] = {
    "calls without ids": chat(USER, called(None, "{}"), result(None, "x"), tools=[TOOL]),
    "arguments that are an object": chat(USER, called("1", {"at": "x"}), result("1", "x")),
    "arguments that are no JSON": chat(USER, called("1", "{bad"), result("1", "x")),
    "a tool that returned nothing": chat(USER, called("1", ""), result("1", None)),
    "a system message at the end": chat(USER, A),
    "two system messages": chat(A, B, USER),
    "a tool without parameters": chat(tools=[{"type": "function", "function": {"name": "f"}}]),
    "a limit that is a float": chat(max_tokens=10.0),
    "options of a stream without one": chat(stream_options={"include_usage": True}),
    "Ollama's empty format": ("/api/chat", {"messages": [USER], "stream": False, "format": ""}),
    "null in Ollama's format": ("/api/chat", {"messages": [USER], "stream": False, "format": SCHEMA}),
    "null in Ollama's format of a text": ("/api/generate", {"prompt": "a", "stream": False, "format": SCHEMA}),
    "null in all fields": ("/v1/responses", {"input": "hi", "reasoning": None, "text": None, "tools": None}),
    "a tool result without content": ("/v1/messages", {"max_tokens": 5, "messages": [USER, USED, RETURNED]}),
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    pytest.importorskip("llama_cpp", reason="the real engine needs llama-cpp-python")
    with running_process("--max-tokens", "8", "--ctx", "2048") as server:
        yield urlsplit(server.url).netloc


@pytest.mark.parametrize("name", SERVED)
def test_request_is_served(address: str, name: str):
    path, body = SERVED[name]
    response, found = exchange(address, path, body)
    assert response.status == 200, found


OLLAMA = {"messages": [USER], "stream": False, "options": {"num_predict": 2}}
REPLAYED = {**called("1", '{"at": "x"}'), "content": "I look.", "reasoning_content": "Where?"}
# A request, and whether its response is right, with the fields of its first choice.
RESPONSES: dict[str, tuple[str, dict[str, Any], Any]] = {
    "zero log probabilities are those of the tokens": (
        "/v1/completions", {"prompt": "a", "logprobs": 0, "max_tokens": 3},
        lambda one: [*map(list, one["logprobs"]["top_logprobs"])] == [[token] for token in one["logprobs"]["tokens"]],
    ),
    "a natural end with log probabilities": (
        *chat(max_tokens=300, logprobs=True),
        lambda one: (one["finish_reason"], one["message"]["content"])
        == ("stop", "".join(token["token"] for token in one["logprobs"]["content"])),
    ),
    "control tokens as stop texts": (
        *chat(stop=["<|im_end|>", "<|im_start|>"]), lambda one: one["usage"]["completion_tokens"] == 8,
    ),
    "content, reasoning and a call in one message": (
        *chat(USER, REPLAYED, result("1", [{"type": "text", "text": "x"}]), tools=[TOOL]),
        lambda one: one["finish_reason"] == "length",
    ),
    "the count of a cached prompt": ("/api/chat", OLLAMA, lambda one: one["prompt_eval_count"] > 5),
}  # fmt: skip


@pytest.mark.parametrize("name", RESPONSES)
def test_response_is_right_also_for_a_cached_prompt(address: str, name: str):
    path, body, is_right = RESPONSES[name]
    for _ in range(2):
        response, found = exchange(address, path, body)
        assert response.status == 200, found
        assert is_right({**found, **found.get("choices", [{}])[0]}), found


REFUSED: dict[str, tuple[str, bytes]] = {
    "an empty text to embed": ("/api/embeddings", b'{"prompt": ""}'),
    "an empty text in a list": ("/v1/embeddings", b'{"input": ["a", ""]}'),
    "an empty prompt": ("/completion", b'{"prompt": ""}'),
    "another encoding": (CHAT, '{"messages": [{"role": "user", "content": "你好"}]}'.encode("gbk")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_request_is_refused_each_time_and_others_are_served(name: str):
    path, body = REFUSED[name]
    with serving(generating("Fine."), **BIG) as running:
        assert [running.request("POST", path, body)[0] for _ in range(3)] == [400] * 3
        assert running.chat()[0] == 200


def test_request_that_leaves_the_queue_does_not_end_the_running_ones():
    with serving(endless, **BIG, is_gated=True) as running, contextlib.ExitStack() as stack:

        def has_arrived(n: int) -> bool:
            running.gate.release()  # A step, before which the engine reads its inbox.
            stats = running.engine.stats()
            return stats.n_running + stats.n_waiting == n

        sockets = []
        for n in range(running.engine.facts.n_parallel + 1):
            sockets.append(stack.enter_context(running.connect()))
            sockets[-1].sendall(raw_request(chat_body(max_tokens=1000, stream=True), "Connection: close"))
            wait_for(lambda n=n: has_arrived(n + 1))
        reset(sockets.pop())
        wait_for(lambda: has_arrived(len(sockets)))
        running.gate.release(100_000)
        for sock in sockets:
            raw = read_all(sock)
            assert (raw.count(b'"finish_reason":"length"'), raw.count(b"[DONE]")) == (1, 1)


@pytest.mark.parametrize("fields", [{}, {"n_predict": 0}, {"n_predict": -1}], ids=["no limit", "limit 0", "limit -1"])
def test_context_of_other_files_is_cut_and_leaves_a_token_for_the_output(fields: dict[str, Any]):
    extra = [{"filename": "a.py", "text": "x = 1\n" * 100}]
    gap = {"input_prefix": "before", "input_suffix": "after", "input_extra": extra}
    with serving(generating("out"), n_ctx=128, fim={"fim_tokens": (1, 2, 3)}) as running:
        status, body = running.request("POST", "/infill", json.dumps({**gap, **fields}))
        assert status == 200, body
        assert running.last_prompt.endswith("\x01before\x02after\x03")
        assert 100 < len(running.last_prompt) < 128


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    gguf = pytest.importorskip("gguf", reason="the tiny models are written with the gguf package")
    pytest.importorskip("llama_cpp", reason="the real engine needs llama-cpp-python")
    tiny_models = importlib.import_module("tests.support.tiny_models")
    folder = tmp_path_factory.mktemp("models")
    tiny_models.write_bert(folder / "rank.gguf", gguf.PoolingType.RANK)
    tiny_models.write_bert(folder / "mean.gguf", gguf.PoolingType.MEAN)
    return folder


def test_document_of_two_million_tokens_is_refused_with_both_numbers(folder: Path):
    with running_process(str(folder / "rank.gguf")) as server:
        body = {"query": "a", "documents": ["b", "a " * 2_100_000]}
        response, found = exchange(urlsplit(server.url).netloc, "/v1/rerank", body)
    assert (response.status, found["error"]["code"]) == (400, "context_length_exceeded")
    assert "2100000" in found["error"]["message"]
    assert "2000000" in found["error"]["message"]


def test_ollama_cuts_long_inputs_of_embeddings_unless_told_not_to(folder: Path):
    text = "a cat " * 500
    cases = [
        ("/api/embed", {"input": text}, 200),
        ("/api/embed", {"input": [text, "a"], "truncate": True}, 200),
        ("/api/embed", {"input": text, "truncate": False}, 400),
        ("/api/embeddings", {"prompt": text}, 200),
        ("/v1/embeddings", {"input": text}, 400),
    ]
    with running_process(str(folder / "mean.gguf")) as server:
        for path, body, status in cases:
            response, found = exchange(urlsplit(server.url).netloc, path, body)
            assert response.status == status, (path, body.keys(), found)


LITELLM = """
import sys, litellm
for model, base in ("openai/demo", "http://{0}/v1"), ("anthropic/demo", "http://{0}"):
    try:
        text = "many words " * 20_000
        messages = [dict(role="user", content=text)]
        litellm.completion(model=model, api_base=base.format(sys.argv[1]), api_key="none", messages=messages)
    except litellm.ContextWindowExceededError:
        print("recognised")
"""


def test_litellm_recognises_a_prompt_that_is_too_long(address: str):
    if importlib.util.find_spec("litellm") is None:
        pytest.skip("the extra 'clients' has the package")
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # without a request to the network
    command = [sys.executable, "-c", LITELLM, address]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.stdout.split().count("recognised") == 2, done.stderr
