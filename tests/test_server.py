"""The server over real sockets, with a fake model behind the real engine: answers, errors, who may ask, its log."""

import contextlib
import json
import logging
import os
import re
import select
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from localchat.engine.proof import LIBRARY
from localchat.generation.model import Model
from localchat.generation.run import GenerationRun
from localchat.generation.service import Service
from localchat.models.catalog import DEMO_PATH, Catalog, ModelFile
from localchat.protocol.errors import ModelLoading
from localchat.serving.options import read_options
from localchat.serving.routes import Settings

from .fakes import endless
from .generations import request_for, submit
from .serving import (
    DEADLINE_S,
    GOOD,
    TOOLS,
    ask,
    bad,
    chat_request,
    dechunked,
    delta_text,
    exchange,
    payloads,
    raw_request,
    read_answer,
    read_until,
    says,
    serving,
    wait_for,
)

# --- answers ---


def test_whole_answer():
    """K1, T2, T3, G39."""
    with serving() as running:
        status, body = running.chat(content="hello")
    assert status == 200
    assert body["id"].startswith("chatcmpl-")
    assert len(body["id"]) == len("chatcmpl-") + 32
    assert body["model"] == "Fake"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hello"},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    usage = body["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (5, 6, 11)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}


def test_stream_byte_for_byte():
    """K1, K2, K3, K13 and appendix A's last line; each token goes out by itself as it is drawn (T2, V21, G33, G35)."""
    gate = threading.Semaphore(0)
    with serving(gate=gate) as running, running.connect() as sock:
        sock.sendall(chat_request("hé", stream=True, stream_options={"include_usage": True}))
        gate.release()
        lines = read_until(sock, b"\r\n\r\n").split(b"\r\n")
        frames = read_until(sock, b'"content":"h"') + read_until(sock, b"\n\n\r\n")
        gate.release(3)
        frames += read_until(sock, b"0\r\n\r\n")
    assert lines[0] == b"HTTP/1.1 200 OK"
    assert b"Content-Type: text/event-stream" in lines
    assert b"Cache-Control: no-cache" in lines
    assert b"Transfer-Encoding: chunked" in lines
    events = dechunked(frames).decode().split("\n\n")
    first = json.loads(events[0][len("data: ") :])
    start = json.dumps({key: first[key] for key in ("id", "object", "created", "model")}, separators=(",", ":"))[:-1]

    def chunk(delta: str, end: str = '"finish_reason":null') -> str:
        choice = f'{{"index":0,"delta":{delta},"logprobs":null,{end}}}'
        return f'data: {start},"choices":[{choice}],"usage":null}}'

    assert events[:-3] == [
        chunk('{"role":"assistant","content":""}'),
        chunk('{"content":"h"}'),
        chunk('{"content":"é"}'),
        chunk("{}", '"finish_reason":"stop","stop_reason":null'),
    ]
    usage = json.loads(events[-3][len("data: ") :])
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 4)
    assert events[-2:] == ["data: [DONE]", ""]


def test_k31_nothing_is_sent_before_the_first_token():
    """V16."""
    gate = threading.Semaphore(0)
    with serving(gate=gate) as running, running.connect() as sock:
        sock.sendall(chat_request(stream=True))
        wait_for(lambda: running.engine.stats().n_running == 1)
        assert select.select([sock], [], [], 0)[0] == []
        gate.release()
        assert sock.recv(15) == b"HTTP/1.1 200 OK"


def test_stream_and_whole_answer_agree():
    with serving() as running:
        text = 'He said: "naïve" 😀\n\n`x`'
        _, chunks = running.chat(content=text, stream=True)
        _, body = running.chat(content=text)
    assert delta_text(chunks) == body["choices"][0]["message"]["content"] == text
    assert all("usage" not in chunk for chunk in chunks)


def test_k12_stop_text_is_cut_and_reported():
    """T5, G8."""
    with serving(endless) as running:
        _, body = running.chat(stop=["ef", "zz"])
        _, chunks = running.chat(stop="ef", stream=True)
        _, by_token = running.chat(stop_token_ids=[ord("c")])
    choice = body["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == ("abcd", "stop", "ef")
    assert delta_text(chunks) == "abcd"
    assert chunks[-1]["choices"][0]["stop_reason"] == "ef"
    assert by_token["choices"][0]["stop_reason"] == ord("c")


def test_max_tokens_and_the_servers_default():
    """K9."""
    with serving(endless) as running:
        running.server.service.model().max_tokens = 3
        _, by_default = running.chat()
        _, asked = running.chat(max_tokens=5)
    assert by_default["choices"][0]["message"]["content"] == "abc"
    assert asked["choices"][0]["message"]["content"] == "abcde"
    assert asked["choices"][0]["finish_reason"] == "length"


def test_k26_logprobs_whole_and_streamed():
    """V47."""
    with serving() as running:
        _, body = running.chat(content="ab", logprobs=True, top_logprobs=1)
        _, chunks = running.chat(content="ab", logprobs=True, top_logprobs=1, stream=True)
    entries = body["choices"][0]["logprobs"]["content"]
    a = {"token": "a", "logprob": -0.5, "bytes": [97]}
    assert entries[0] == {**a, "top_logprobs": [a]}
    streamed = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [entry for logprobs in streamed if logprobs for entry in logprobs["content"]] == entries


def test_t17_k14_k36_choices_interleave_with_their_indexes():
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


CALL = """<think>
hm
</think>

Let me look.
<tool_call>
{"name": "look", "arguments": {"at": "\\"x\\""}}
</tool_call>"""


def test_k6_k16_reasoning_content_and_calls():
    # A template that knows no tools is told of them in a message, which takes some room.
    """K8, T46, V35, V39."""
    with serving(says(CALL), n_ctx=2000, n_cells=8000) as running:
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


def test_k22_without_tools_nothing_is_a_call():
    """T26, T34, V39, L12."""
    with serving(says(CALL)) as running:
        for members in ({}, {"tools": TOOLS, "tool_choice": "none"}):
            _, body = running.chat(**members)
            message = body["choices"][0]["message"]
            assert "tool_calls" not in message
            assert "<tool_call>" in message["content"]
            assert body["choices"][0]["finish_reason"] == "stop"


def test_keep_alive_serves_many_requests_on_one_connection():
    with serving() as running, contextlib.closing(running.client()) as client:
        for stream in (False, True, True, False):
            status, answer = ask(client, stream=stream)
            assert status == 200
            assert (delta_text(answer) if stream else answer["choices"][0]["message"]["content"]) == "hello"


@pytest.mark.parametrize(
    "path", ["/v1/models", "/models", "/v1/models/", "/v1/models?x=1", "http://localhost/v1/models"]
)
def test_models(path):
    """G1."""
    with serving() as running, contextlib.closing(running.client()) as client:
        client.request("GET", path)
        status, body = read_answer(client)
    assert status == 200
    assert [model["id"] for model in body["data"]] == ["Fake"]
    assert body["data"][0]["meta"]["n_ctx"] == 256


@pytest.mark.parametrize(("name", "status"), [("Fake", 200), ("FAKE", 200), ("%46ake", 200), ("other", 404)])
def test_one_model(name, status):
    with serving() as running, contextlib.closing(running.client()) as client:
        client.request("GET", f"/v1/models/{name}")
        assert read_answer(client)[0] == status


@pytest.mark.parametrize("path", ["/health", "/v1/models"])
def test_head_is_get_without_a_body(path):
    with serving() as running, running.connect() as sock:
        sock.sendall(f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * 2)
        sock.shutdown(socket.SHUT_WR)
        raw = b"".join(iter(lambda: sock.recv(65536), b""))
    assert raw.count(b"HTTP/1.1 200 OK\r\n") == 2
    assert raw.count(b"Content-Length: ") == 2
    assert b"{" not in raw


def test_http_1_0_gets_its_stream_until_the_end_of_the_connection():
    with serving() as running, running.connect() as sock:
        sock.sendall(chat_request(stream=True).replace(b"HTTP/1.1", b"HTTP/1.0"))
        head, _, body = b"".join(iter(lambda: sock.recv(65536), b"")).partition(b"\r\n\r\n")
    assert b"Connection: close" in head
    assert b"chunked" not in head
    assert delta_text(payloads(body)) == "hello"


# --- errors ---

POST = "POST /v1/chat/completions"
INVALID = "invalid_request_error"
LONG = [{"role": "user", "content": "x" * 300}]
EMPTY = [{"role": "user", "content": ""}]


@pytest.mark.parametrize(
    ("line", "body", "status", "code", "param"),
    [
        pytest.param(POST, b"", 400, INVALID, "body", id="empty body"),
        pytest.param(POST, None, 411, "length_required", None, id="no body"),
        pytest.param(POST, b"hi", 400, INVALID, "body", id="g5-not JSON"),
        pytest.param(POST, b"[]", 400, INVALID, "body", id="g5-no object"),
        pytest.param(POST, bad(temperature="hot"), 400, INVALID, "temperature", id="wrong type"),
        pytest.param(POST, bad(n=0), 400, INVALID, "n", id="wrong range"),
        pytest.param(POST, bad(messages=[]), 400, INVALID, "messages", id="g6-no messages"),
        pytest.param(POST, bad(model="gpt"), 404, "model_not_found", "model", id="b-unknown model"),
        pytest.param(POST, bad(messages=LONG), 400, "context_length_exceeded", "messages", id="k28-too long"),
        pytest.param(
            POST, bad(messages=LONG, stream=True), 400, "context_length_exceeded", "messages", id="k31-too long, stream"
        ),
        pytest.param(POST, bad(messages=EMPTY), 400, INVALID, "messages", id="empty prompt"),
        pytest.param(POST, bad(logit_bias={"999": 1}), 400, INVALID, "logit_bias", id="unknown token in logit_bias"),
        pytest.param(POST, bad(stop_token_ids=[257]), 400, INVALID, "stop_token_ids", id="unknown stop token"),
        pytest.param("GET /v1/chat/completions", None, 405, "method_not_allowed", None, id="GET chat"),
        pytest.param("PUT /v1/chat/completions", GOOD, 405, "method_not_allowed", None, id="PUT chat"),
        pytest.param("POST /v1/models", GOOD, 405, "method_not_allowed", None, id="POST models"),
        pytest.param("GET /v1/nothing", None, 404, "unknown_path", None, id="unknown path"),
        pytest.param("POST /", GOOD, 405, "method_not_allowed", None, id="root"),
        pytest.param("GET models", None, 404, "unknown_path", None, id="path without a slash"),
        pytest.param("POST http://localhost", GOOD, 405, "method_not_allowed", None, id="host without a path"),
        pytest.param("DELETE /v1/v1/models", None, 404, "unknown_path", None, id="v1 twice"),
    ],
)
def test_bad_request_gets_its_error_and_the_connection_goes_on(line, body, status, code, param):
    """Appendix B, K27, K28, G12."""
    with serving() as running, contextlib.closing(running.client()) as client:
        client.putrequest(*line.split())
        if body is not None:
            client.putheader("Content-Length", str(len(body)))
        client.endheaders(body)
        sock = client.sock
        got_status, answer = read_answer(client)
        assert ask(client)[0] == 200
        assert client.sock is sock
    assert got_status == status
    assert set(answer) == {"error"}
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert (answer["error"]["code"], answer["error"]["param"]) == (code, param)
    assert answer["error"]["message"]


def test_wrong_method_says_which_are_right():
    with serving() as running, contextlib.closing(running.client()) as client:
        client.request("DELETE", "/v1/models")
        assert client.getresponse().getheader("Allow") == "GET, HEAD, OPTIONS"


def test_strict_refuses_unknown_members():
    with serving(settings=Settings(port=0, strict=True)) as running:
        assert running.chat(user="u")[0] == 200
        status, body = running.chat(whatever=1)
    assert (status, body["error"]["param"]) == (400, "whatever")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/apply-template", {"messages": [{"role": "user", "content": "a"}]}),
        ("/tokenize", {"content": "a"}),
        ("/detokenize", {"tokens": [1]}),
    ],
)
def test_k10_unknown_members_are_told_of_on_every_path(path, body, caplog):
    caplog.set_level(logging.INFO, "localchat.server")
    for strict, expected in (False, (200, None)), (True, (400, "frobnicate")):
        settings = Settings(port=0, strict=strict)
        with serving(settings=settings) as running, contextlib.closing(running.client()) as client:
            client.request("POST", path, json.dumps({**body, "frobnicate": 1}))
            status, answer = read_answer(client)
        assert (status, answer.get("error", {}).get("param")) == expected
    assert "the field 'frobnicate', which is ignored" in caplog.text


def test_t23_template_that_refuses_is_a_bad_request():
    """V11."""
    template = "{{ raise_exception('no bad words') if messages[0].content == 'bad' else 'x' }}"
    with serving(chat_template=template) as running:
        status, body = running.chat(content="bad")
    assert (status, body["error"]["param"]) == (400, "messages")
    assert "no bad words" in body["error"]["message"]


def breaks_at(n: int):
    """A model whose n-th token cannot be drawn."""

    def model(tokens, n_prompt):
        if len(tokens) - n_prompt == n:
            raise RuntimeError("broken")
        return endless(tokens, n_prompt)

    return model


@pytest.mark.parametrize(("n", "stream"), [(0, True), (0, False), (3, False)])
def test_g13_failure_before_anything_is_sent_has_its_status(n, stream):
    """T22, G36."""
    with serving(breaks_at(n)) as running:
        status, body = running.chat(stream=stream)
    assert (status, body["error"]["type"], body["error"]["param"]) == (500, "inference_error", None)


def test_k5_failure_inside_a_stream_is_an_event_then_done():
    """K4, T20, T21, V38, G31, G37."""
    gate = threading.Semaphore(0)
    with serving(breaks_at(2), gate=gate) as running, contextlib.closing(running.client()) as client:
        gate.release()
        body = {"messages": [{"role": "user", "content": "x"}], "stream": True}
        client.request("POST", "/v1/chat/completions", json.dumps(body))
        response = client.getresponse()
        gate.release(1000)
        assert response.status == 200
        chunks = payloads(response.read())
        assert chunks[-1]["error"]["type"] == "inference_error"
        assert all(choice["finish_reason"] is None for chunk in chunks[:-1] for choice in chunk["choices"])
        # The stream ended in order, so the connection goes on.
        client.request("GET", "/health")
        assert read_answer(client)[0] == 200


def test_k40_full_queue_is_429_with_retry_after():
    """K32."""
    gate = threading.Semaphore(0)
    with serving(endless, gate=gate, n_slots=1, max_queue=1) as running, contextlib.closing(running.client()) as client:
        work = request_for(prompt=(1,))
        with submit(running.engine, work), submit(running.engine, work):
            client.request("POST", "/v1/chat/completions", GOOD)
            response = client.getresponse()
            assert response.status == 429
            assert int(response.getheader("Retry-After")) > 0
            assert json.loads(response.read())["error"]["code"] == "queue_full"
        gate.release(1000)
        running.wait_until_idle()
        assert ask(client, max_tokens=1)[0] == 200


def test_refused_choices_leave_nothing_running():
    """Two of three choices fit: the request fails as a whole (T19)."""
    gate = threading.Semaphore(0)
    with serving(endless, gate=gate, n_slots=1, max_queue=2, n_ctx=100_000, n_cells=100_000) as running:
        with submit(running.engine, request_for(prompt=(1,))):
            assert running.chat(n=3)[0] == 429
        gate.release(1000)
        running.wait_until_idle()


@pytest.mark.parametrize(
    ("path", "members", "param"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": "x"}], "n": 3}, "n"),
        ("completions", {"prompt": "x", "n": 3}, "n"),
        ("completions", {"prompt": "x", "best_of": 3}, "best_of"),
        ("completions", {"prompt": ["x", "y", "z"]}, "prompt"),
    ],
)
def test_more_choices_than_could_ever_run_are_a_bad_request(path, members, param):
    """To try again later would not help."""
    with serving(n_slots=1, max_queue=1) as running, contextlib.closing(running.client()) as client:
        client.request("POST", f"/v1/{path}", json.dumps(members))
        status, body = read_answer(client)
    assert (status, body["error"]["param"]) == (400, param)
    assert "asks for 3 answers at once, and 2 can run" in body["error"]["message"]


def test_g11_loading_is_503_then_the_model_serves(caplog):
    """K32, G7, G12, G43."""
    caplog.set_level(logging.INFO, "localchat.server")
    with serving(is_ready=False) as running, contextlib.closing(running.client()) as client:
        for method, path, body in (
            ("GET", "/health", None),
            ("GET", "/v1/models", None),
            ("POST", "/v1/chat/completions", GOOD),
        ):
            client.request(method, path, body)
            response = client.getresponse()
            assert response.status == 503
            assert 1 <= int(response.getheader("Retry-After")) <= 10
            assert json.loads(response.read())["error"]["code"] == "model_loading"
        # What is wrong anyway is said at once (G9).
        assert ask(client, temperature="hot")[0] == 400
        assert ask(client, model="gpt")[0] == 404
        running.server.service.ready(Model("Fake", running.engine))
        assert ask(client)[0] == 200
    # Who asks every second whether the model is there does not fill the log.
    assert "/v1/chat/completions" in caplog.text
    assert "/health" not in caplog.text


@pytest.mark.parametrize(("progress", "seconds"), [(0.0, 6), (0.1, 54), (0.5, 6), (0.9, 2 / 3), (1.0, 0)])
def test_k32_who_comes_while_the_model_loads_is_told_for_how_long(progress: float, seconds: float):
    """K32: by how long it took so far; it is the error that rounds and bounds it."""
    now = iter((100.0, 106.0))
    service = Service(Catalog([ModelFile(DEMO_PATH, "Fake")]), clock=lambda: next(now))
    service.progress = progress
    with pytest.raises(ModelLoading) as loading:
        service.model()
    assert loading.value.headers() == ModelLoading("", seconds).headers()


def hold(running) -> socket.socket:
    """A connection with a request whose body has not arrived yet."""
    sock = running.connect()
    sock.sendall(raw_request(GOOD, "Expect: 100-continue", "Connection: close")[: -len(GOOD)])
    read_until(sock, b"100 Continue\r\n\r\n")
    return sock


def test_connection_beyond_the_limit_is_told_to_come_again():
    """H14. Whatever its request would be; the open ones go on, and when one ends there is room again."""
    with serving(settings=Settings(port=0, max_connections=2)) as running, hold(running) as first:
        with hold(running) as second:
            for _ in range(3):
                with running.connect() as third:
                    head, _, body = b"".join(iter(lambda: third.recv(65536), b"")).partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 503 ")
                assert b"\r\nRetry-After: 2" in head
                assert b"\r\nConnection: close" in head
                assert json.loads(body)["error"]["code"] == "too_many_connections"
                # Beyond twice the limit there is no response, and the end of a connection is seen a little later.
                wait_for(lambda: len(running.server.connections._open) == 2)
            second.sendall(GOOD)
            assert second.recv(12) == b"HTTP/1.1 200"
        wait_for(lambda: running.chat()[0] == 200)
        first.sendall(GOOD)
        assert first.recv(12) == b"HTTP/1.1 200"


def test_idle_connections_are_closed_before_a_new_one_is_refused():
    """H14. The longest idle first, whether it has had a request or never sent one; a busy one goes on."""
    with serving(settings=Settings(port=0, max_connections=3)) as running, hold(running) as busy:
        with contextlib.ExitStack() as stack:
            silent = stack.enter_context(running.connect())
            wait_for(lambda: len(running.server.connections._idle) == 1)
            used, *new = (stack.enter_context(contextlib.closing(running.client())) for _ in range(3))
            assert ask(used)[0] == 200
            wait_for(lambda: len(running.server.connections._idle) == 2)
            for idle, client in zip((silent, used.sock), new):
                assert ask(client)[0] == 200
                assert idle.recv(1) == b""
        busy.sendall(GOOD)
        assert busy.recv(12) == b"HTTP/1.1 200"


def test_request_on_a_connection_too_many_is_answered_and_not_reset():
    with serving(settings=Settings(port=0, max_connections=1)) as running, hold(running):
        head, body = exchange(running, chat_request("x" * 100_000))
    assert b" 503 " in head
    assert body["error"]["type"] == "rate_limit_error"


def test_connections_beyond_twice_the_limit_are_closed():
    """Those between stay open for a moment, as their clients may still be sending."""
    with serving(settings=Settings(port=0, max_connections=1)) as running, hold(running) as first:
        with running.connect() as second, running.connect() as third:
            # Without a response, and without a thread.
            assert third.recv(1) == b""
            assert second.recv(15) == b"HTTP/1.1 503 Se"
        first.sendall(GOOD)
        assert first.recv(12) == b"HTTP/1.1 200"


def test_connection_for_which_no_thread_can_be_started_gets_503(monkeypatch, caplog):
    """As under `ulimit -v`: one line in the log each, and no traceback."""

    def no_thread(*_):
        raise RuntimeError("can't start new thread")

    with serving() as running:
        with monkeypatch.context() as patched:
            patched.setattr("socketserver.ThreadingMixIn.process_request", no_thread)
            with running.connect() as sock:
                head, _, body = b"".join(iter(lambda: sock.recv(65536), b"")).partition(b"\r\n\r\n")
        assert running.chat()[0] == 200
    assert head.startswith(b"HTTP/1.1 503 ")
    assert json.loads(body)["error"]["code"] == "too_many_connections"
    assert "no thread can be started" in caplog.text
    assert "Traceback" not in caplog.text


def test_request_without_memory_is_an_error_in_one_line(monkeypatch, caplog):
    def no_memory(*_):
        raise MemoryError

    monkeypatch.setattr(GenerationRun, "take", no_memory)
    with serving() as running:
        status, body = running.chat()
    assert status == 500
    assert body["error"]["message"].startswith("no memory is left: raise the limit")
    assert "Traceback" not in caplog.text


def test_health_tells_of_a_failed_engine():
    """V5."""
    with serving() as running, contextlib.closing(running.client()) as client:
        running.engine.failure = RuntimeError("out of luck")
        client.request("GET", "/health")
        status, body = read_answer(client)
        assert (status, body["error"]["type"]) == (500, "inference_error")
        assert "out of luck" in body["error"]["message"]
        assert ask(client)[0] == 500


def test_bug_in_a_route_is_500_without_details(monkeypatch, caplog):
    monkeypatch.setattr(GenerationRun, "take", lambda *_: 1 / 0)
    with serving() as running, contextlib.closing(running.client()) as client:
        status, body = ask(client)
        assert status == 500
        assert "division" not in body["error"]["message"]
        assert "ZeroDivisionError" in caplog.text
        client.request("GET", "/health")
        assert read_answer(client)[0] == 200


# --- who may ask ---


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Bearer sécret"}, 401),
        ({"Authorization": "secret"}, 401),
        ({"Authorization": "Basic secret"}, 401),
        ({"X-Api-Key": "Bearer secret"}, 401),
        ({"X-Api-Key": ""}, 401),
        ({"Authorization": "Bearer secret"}, 200),
        ({"Authorization": "bearer  secret "}, 200),
        ({"Authorization": "Bearer other"}, 200),
        ({"x-api-key": "other"}, 200),
        ({"Authorization": "Bearer wrong", "X-API-Key": "secret"}, 200),
    ],
)
def test_a_key_is_needed_except_for_health(headers, status):
    """H8."""
    settings = Settings(port=0, api_keys=("secret", "other"))
    with serving(settings=settings) as running, contextlib.closing(running.client()) as client:
        client.request("POST", "/v1/chat/completions", GOOD, headers)
        response = client.getresponse()
        body = json.loads(response.read())
        client.request("GET", "/health")
        assert read_answer(client)[0] == 200
    assert response.status == status
    if status == 401:
        assert response.getheader("WWW-Authenticate") == "Bearer"
        assert body["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({}, 200, id="a program"),
        pytest.param({"Host": "localhost:8080"}, 200, id="localhost"),
        pytest.param({"Host": "[::1]:8080"}, 200, id="IPv6"),
        pytest.param({"Host": "[0:0:0:0:0:0:0:1]"}, 200, id="IPv6 in full"),
        pytest.param({"Host": "LocalHost"}, 200, id="host in any case"),
        pytest.param({"Host": "localhost.:8080"}, 200, id="host with the root's dot"),
        pytest.param({"Host": "evil@localhost"}, 403, id="user name before the host"),
        pytest.param({"Host": "localhost/"}, 403, id="host with a path"),
        pytest.param({"Host": "127.0.0.999"}, 403, id="no address"),
        pytest.param({"Host": "evil.example"}, 403, id="rebound name"),
        pytest.param({"Host": "127.0.0.1.evil.example"}, 403, id="name like an address"),
        pytest.param({"Host": "["}, 403, id="broken host"),
        pytest.param({"Origin": "https://evil.example"}, 403, id="page of another site"),
        pytest.param({"Origin": "null"}, 403, id="page without origin"),
        pytest.param({"Origin": "http://localhost:3000"}, 200, id="page of this machine"),
        pytest.param({"Origin": "HTTP://LOCALHOST:3000"}, 200, id="origin in any case"),
        pytest.param({"Origin": "HTTPS://evil.example"}, 403, id="other site, scheme in any case"),
        pytest.param({"Origin": "http://localhost@evil.example"}, 403, id="other site behind a user name"),
        pytest.param({"Sec-Fetch-Site": "cross-site"}, 403, id="image or script of another site"),
        pytest.param({"Sec-Fetch-Site": "same-origin"}, 200, id="image of a page of this server"),
        pytest.param(
            {"Sec-Fetch-Site": "cross-site", "Origin": "http://[::1]:3000"},
            200,
            id="its page, cross-site",
        ),
        pytest.param({"Origin": "vscode-webview://x"}, 200, id="a program's page"),
    ],
)
def test_web_pages_of_others_are_refused(headers, status):
    """H4, H5."""
    with serving() as running, contextlib.closing(running.client()) as client:
        client.request("POST", "/v1/chat/completions", GOOD, headers)
        assert read_answer(client)[0] == status
    with serving(settings=Settings(port=0, api_keys=("k",))) as running, contextlib.closing(running.client()) as client:
        client.request("GET", "/v1/models", headers={**headers, "Authorization": "Bearer k"})
        assert read_answer(client)[0] == 200


@pytest.mark.parametrize(
    ("name", "status"),
    [
        pytest.param("192.168.1.7", 200, id="address"),
        pytest.param("[fd00::7]", 200, id="IPv6"),
        pytest.param("desk", 200, id="name of one word"),
        pytest.param("desk.local", 200, id="name of the local network"),
        pytest.param("evil.example", 403, id="name that may have been pointed here"),
        pytest.param("1.evil.example", 403, id="name that begins like an address"),
    ],
)
def test_server_in_a_network_is_friendly_to_its_own_pages_by_names_that_nobody_can_forge(name, status):
    headers = {"Host": f"{name}:8080", "Origin": f"http://{name}:3000"}
    with (
        serving(settings=Settings(host="0.0.0.0", port=0)) as running,
        contextlib.closing(running.client()) as client,
    ):
        client.request("POST", "/v1/chat/completions", GOOD, headers)
        assert read_answer(client)[0] == status


# --- its log, its command line ---


def test_log_has_one_line_per_request_and_nothing_forged(caplog):
    """V49."""
    caplog.set_level(logging.INFO, "localchat.server")
    with serving(settings=Settings(port=0, api_keys=("s3cret",))) as running, running.connect() as sock:
        key = "Authorization: Bearer s3cret"
        sock.sendall(raw_request(GOOD, key) + raw_request(b"", key, path="/\x1b[2J\x9bx", method="GET"))
        with running.connect() as odd:
            odd.sendall(raw_request(b"", key, path="/" + "y" * 9000, method="GET"))
            odd.sendall(raw_request(b"", key, method="B\x1b[2JREW"))
            b"".join(iter(lambda: odd.recv(65536), b""))
        for path in ("/metrics", "/v1/slots"):  # as for health, success is nothing to tell
            sock.sendall(raw_request(b"", key, path=path, method="GET"))
        sock.sendall(raw_request(b"", "Connection: close", path="/health", method="GET"))
        b"".join(iter(lambda: sock.recv(65536), b""))
    lines = [record.getMessage() for record in caplog.records]
    assert "\x1b" not in caplog.text
    assert max(map(len, lines)) < 1000
    (odd,) = (line for line in lines if " 501 " in line)
    assert odd.startswith(r"- 501 B\x1b[2JREW")
    lines = [line for line in lines if line != odd and "/yyy" not in line]
    assert len(lines) == 2
    assert re.fullmatch(
        r"chatcmpl-[0-9a-f]{32} 200 POST /v1/chat/completions [\d.]+ s: "
        r"in 5 \(0 cached\) at [\d.]+/s, out 6 at [\d.]+/s, stop",
        lines[0],
    )
    assert lines[1].startswith(r"- 404 GET /\x1b[2J\x9bx")
    assert "s3cret" not in caplog.text


def test_k10_ignored_members_are_logged_once(caplog):
    caplog.set_level(logging.INFO, "localchat.server")
    with serving() as running:
        for _ in range(2):
            assert running.chat(frobnicate=1, **{"x" * 100_000: 1})[0] == 200
    assert caplog.text.count("frobnicate") == 1
    assert len(caplog.text) < 10_000


ROOT = DEMO_PATH.parents[2]
START = "from localchat.server import main; sys.exit(main([]))"


def command(*arguments: str) -> "subprocess.CompletedProcess[str]":
    program = [sys.executable, "-m", "localchat.server", "--no-supervise", *arguments]
    return subprocess.run(program, capture_output=True, text=True, timeout=DEADLINE_S)


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        pytest.param(["--version"], 0, "localchat ", id="version"),
        pytest.param(["--help"], 0, "--gpu-layers", id="help"),
        pytest.param(["--parallel", "0"], 2, "at least 1", id="wrong number"),
        pytest.param(["--port", "99999"], 2, "at most 65535, got 99999", id="no such port"),
        pytest.param(["--threads", "3000000000"], 2, "at most 512", id="more threads than llama.cpp knows"),
        pytest.param(["--gpu-layers", "4294967296"], 2, "at most 2147483647", id="number beyond 32 bits"),
        pytest.param(["--api-key", ""], 2, "the key is empty", id="a variable that is not set in place of the key"),
        pytest.param(["--api-key", "a\nb"], 2, "that no client can send", id="key of two lines"),
        pytest.param(["--cache-dir", ""], 2, "the folder has no name", id="no folder"),
        pytest.param(["--cache-size", "100"], 2, "--cache-size 100 limits a folder: name", id="bound of no folder"),
        pytest.param(["--api-key-file", "/nowhere/keys"], 2, "cannot read keys from /nowhere/keys", id="no keys"),
        pytest.param(["--api-key-file", os.devnull], 2, "has no key: write one per line", id="file without a key"),
        pytest.param(["--host", "0.0.0.0"], 2, "or add --insecure to serve everyone", id="open without a key"),
        pytest.param(["--tls-key", "key.pem"], 2, "name it with --tls-cert", id="key of no certificate"),
        pytest.param(["--tls-cert", "/nowhere.pem"], 1, "cannot use the certificate /nowhere.pem", id="no certificate"),
        pytest.param(["--uds", "/nowhere/s"], 1, "cannot listen on /nowhere/s", id="socket in no folder"),
        pytest.param(["--cors", "localhost:3000"], 2, "such as https://example.org", id="origin without its scheme"),
        pytest.param(["--cors", "https://example.org/app"], 2, "example.org/app'", id="origin with a path"),
        pytest.param(["--default", "top_p=2"], 2, "from 0 to 1, got 2", id="k9-wrong default"),
        pytest.param(["--default", "topp=1"], 2, "topp", id="k9-unknown default"),
        pytest.param(["/nowhere/model.gguf"], 1, "/nowhere/model.gguf", id="no such model"),
        pytest.param(["~nobody-here/model.gguf"], 1, "there is no file ~nobody-here", id="home of nobody"),
        pytest.param(["m" * 300], 1, "localchat.server: [Errno", id="model that cannot be looked at"),
        pytest.param(["--host", "203.0.113.1", "--insecure"], 1, "cannot listen on 203.0.113.1", id="foreign address"),
    ],
)
def test_command_line(arguments, status, text):
    """V1, H10."""
    done = command(*arguments)
    assert done.returncode == status
    assert text in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_model_that_was_cut_is_told_with_both_sizes(tmp_path):
    """Not in the words of llama.cpp's log."""
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(DEMO_PATH.read_bytes()[:-1000])
    done = command(str(cut), "--port", "0")
    size = DEMO_PATH.stat().st_size
    assert done.returncode == 1
    assert f"cannot load {cut}: the file has {size - 1000} bytes, its tensors need {size}: it was cut" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="other systems limit the address space otherwise")
def test_memory_limit_is_one_line():
    """Too little for the model's file, or for numpy, or for a thread: whichever comes first."""
    program = ["sh", "-c", 'ulimit -v 250000; exec "$@"', "sh", sys.executable, "-m", "localchat.server", "--port", "0"]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(program, capture_output=True, text=True, timeout=DEADLINE_S, env=environment)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    # OpenBLAS, which numpy loads, ends the process by itself where its buffers do not fit.
    assert done.stderr.splitlines()[-1].startswith(("localchat.server: cannot ", "OpenBLAS error: "))


def test_home_folder_is_found_where_the_shell_leaves_it_to_us():
    options = read_options(["--cache-dir=~/prefixes", "--draft=~/small.gguf"])
    assert options.cache_dir == Path.home() / "prefixes"
    assert options.draft == str(Path.home() / "small.gguf")


def test_origins_as_browsers_name_them_are_taken():
    origins = ["*", "null", "http://localhost:3000", "https://example.org/", "http://[::1]:80", "app-x://a.b"]
    assert read_options([word for origin in origins for word in ("--cors", origin)]).cors == origins


@pytest.mark.parametrize(
    ("arguments", "key"),
    [([], "from env"), (["--api-key", " from option\n"], "from option")],
    ids=["environment", "option"],
)
def test_key_from_a_file_may_end_with_a_line_end(arguments, key, monkeypatch):
    monkeypatch.setenv("LOCALCHAT_API_KEY", "from env\n")
    assert read_options(arguments).api_keys == [key]


def test_what_is_missing_is_told_with_the_release_that_was_tried():
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {START}"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 1
    assert done.stderr.endswith(f"-m pip install {LIBRARY}\n")
    _, release = LIBRARY.split("==")
    for file in ("pyproject.toml", "README.md"):
        assert set(re.findall(r"llama-cpp-python\S*=([\d.]+)", (ROOT / file).read_text(encoding="utf-8"))) == {release}


def test_port_in_use_is_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = command("--port", str(port))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"port {port}" in done.stderr
    assert "--port" in done.stderr
