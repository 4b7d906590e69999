"""Chat completions over a socket with a fake model: bodies, streams, choices, tool calls, long prompts; models."""

from __future__ import annotations

import json
import select

import pytest

from localchat.serving.loading.options import Options
from tests.support.fakes import endless
from tests.support.serving import (
    BIG,
    TOOLS,
    assert_in_order,
    chat_request,
    chunk_kind,
    dechunked,
    delta_text,
    generating,
    payloads,
    read_until,
    serving,
    wait_for,
)


def test_stream_byte_for_byte():
    """Nothing is sent before the first token. Each token is sent as soon as it is sampled."""
    with serving(is_gated=True) as running, running.connect() as sock:
        sock.sendall(chat_request("hé", stream=True, stream_options={"include_usage": True}))
        wait_for(lambda: running.engine.stats().n_running == 1)
        assert select.select([sock], [], [], 0)[0] == []
        running.gate.release()
        lines = read_until(sock, b"\r\n\r\n").split(b"\r\n")
        frames = read_until(sock, b'"content":"h"') + read_until(sock, b"\n\n\r\n")
        running.gate.release(3)
        frames += read_until(sock, b"0\r\n\r\n")
    assert lines[0] == b"HTTP/1.1 200 OK"
    assert b"Content-Type: text/event-stream" in lines
    assert b"Cache-Control: no-cache" in lines
    assert b"Transfer-Encoding: chunked" in lines
    body = dechunked(frames)
    *chunks, usage = payloads(body)
    assert [chunk["choices"][0]["delta"].get("content") for chunk in chunks] == ["", "h", "é", None]
    assert {chunk["usage"] for chunk in chunks} == {None}
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 4)
    assert '"choices":[{"index":0,"delta":{"content":"é"},"logprobs":null,"finish_reason":null}]' in body.decode()


def test_stop_text_is_cut_and_reported():
    with serving(endless) as running:
        _, body = running.chat(stop=["ef", "zz"])
        _, chunks = running.chat(stop="ef", stream=True)
        _, by_token = running.chat(stop_token_ids=[ord("c")])
    choice = body["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == ("abcd", "stop", "ef")
    assert delta_text(chunks) == "abcd"
    assert chunks[-1]["choices"][0]["stop_reason"] == "ef"
    assert by_token["choices"][0]["stop_reason"] == ord("c")


def test_choices_interleave_with_their_indexes():
    """The usage is the sum over the choices, with the prompt counted once."""
    with serving(endless) as running:
        _, chunks = running.chat(n=3, max_tokens=4, stream=True, stream_options={"include_usage": True})
        _, body = running.chat(n=3, max_tokens=4)
    roles = [chunk["choices"][0]["index"] for chunk in chunks[:3]]
    assert roles == [0, 1, 2]
    assert [delta_text(chunks, i) for i in range(3)] == ["abcd"] * 3
    ends = [choice["index"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert sorted(ends) == [0, 1, 2]
    assert chunks[-1]["usage"]["prompt_tokens"] == 5
    assert chunks[-1]["usage"]["completion_tokens"] == 12
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (5, 12)


CALL = """<think>
hm
</think>

Let me look.
<tool_call>
{"name": "look", "arguments": {"at": "\\"x\\""}}
</tool_call>"""


def test_reasoning_content_and_calls():
    # The template renders no tools, so a system message describes them, which needs some tokens.
    with serving(generating(CALL), n_ctx=2000, n_cells=8000) as running:
        _, body = running.chat(tools=TOOLS)
        _, chunks = running.chat(tools=TOOLS, stream=True)
    choice = body["choices"][0]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert message["reasoning_content"].strip() == "hm"
    assert message["content"].strip() == "Let me look."
    function = message["tool_calls"][0]["function"]
    assert (function["name"], json.loads(function["arguments"])) == ("look", {"at": '"x"'})
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    kinds = [next(iter(delta), "end") for delta in deltas]
    assert sorted(set(kinds), key=kinds.index) == ["role", "reasoning_content", "content", "tool_calls", "end"]
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert list(calls[0]) == ["index", "id", "type", "function"]
    assert calls[0]["id"].startswith("call_")
    assert all(list(call) == ["index", "function"] for call in calls[1:])
    assert "".join(call["function"]["arguments"] for call in calls) == function["arguments"]


MODELS = ("/v1/models", "/models", "/v1/models?x=1", "http://localhost/v1/models", "/v1//models/", "/%76%31/models")
ONE_MODEL = ("/v1/models/Fake", "/v1/models/FAKE", "/v1/models/%46ak%65", "//v1/models//Fake", "/v1%2Fmodels/Fake")


@pytest.mark.parametrize("path", [*MODELS, *ONE_MODEL])
def test_models(path):
    with serving() as running:
        status, body = running.request("GET", path)
        assert running.request("GET", "/v1/models/other")[0] == 404
    (model,) = [body] if path in ONE_MODEL else body["data"]
    assert (status, model["id"], model["meta"]["n_ctx"]) == (200, "Fake", 256)


def test_http_1_0_gets_its_stream_until_the_end_of_the_connection():
    with serving() as running, running.connect() as sock:
        sock.sendall(chat_request(stream=True).replace(b"HTTP/1.1", b"HTTP/1.0"))
        head, _, body = b"".join(iter(lambda: sock.recv(65536), b"")).partition(b"\r\n\r\n")
    assert b"Connection: close" in head
    assert b"chunked" not in head
    assert delta_text(payloads(body)) == "hello"


# --- long prompts, and pings in a stream without output ---


def test_progress_of_a_long_prompt():
    """The progress goes from the cached prefix to the whole prompt. It comes before the first token."""
    with serving(generating("!"), is_gated=True, n_batch=64, **BIG) as running, running.connect() as sock:
        sock.sendall(chat_request("x" * 200, stream=True, return_progress=True))
        running.gate.release(1)
        read_until(sock, b'"processed":64')
        running.gate.release(1000)
        read_until(sock, b"data: [DONE]\n\n")
        _, chunks = running.chat(content="x" * 200, stream=True, return_progress=True)
        _, plain = running.chat(content="x" * 200, stream=True)
    assert_in_order([chunk for chunk in chunks if "prompt_progress" not in chunk], 1, usage=False)
    progress = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    assert progress[-1]["processed"] == progress[-1]["total"] == 200
    assert all(entry["cache"] == 199 for entry in progress)
    kinds = ["progress" if "prompt_progress" in chunk else chunk_kind(chunk["choices"][0]) for chunk in chunks]
    assert kinds == ["role", *["progress"] * len(progress), "content", "finish"]
    assert all("prompt_progress" not in chunk for chunk in plain)


def test_stream_without_output_gets_pings_and_then_its_text():
    """The status line is sent with the first token, or after the ping interval, also in the queue."""
    assert Options.ping_s == 10
    with serving(is_gated=True, settings=Options(port=0, ping_s=0.02)) as running, running.connect() as sock:
        sock.sendall(chat_request("a", stream=True))
        head = read_until(sock, b"\r\n\r\n")
        first = read_until(sock, b": \n\n\r\n")
        running.gate.release()
        text = read_until(sock, b'"content":"a"')
        read_until(sock, b": \n\n\r\n")
        running.gate.release(1000)
        read_until(sock, b"data: [DONE]\n\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert b"data:" not in first
    assert b'"role":"assistant"' in text
