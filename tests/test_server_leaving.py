"""Early ends of requests: clients that disconnect during a response, and the shutdown of the server."""

import contextlib
import json
import logging
import socket
import threading

import pytest

from localchat.serving.chat import constraints
from localchat.serving.engine.compiling import compiling
from localchat.serving.http.settings import Settings

from .fakes import endless
from .serving import (
    DEADLINE_S,
    GOOD,
    chat_request,
    payloads,
    raw_request,
    read_response,
    read_until,
    reset,
    serving,
    wait_for,
)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("leave", [socket.socket.close, reset, lambda sock: sock.shutdown(socket.SHUT_WR)])
def test_k33_disconnect_frees_the_sequence(leave, stream, caplog):
    """T18, T19, T24, V45, G41."""
    caplog.set_level(logging.INFO)
    with serving(endless, n_ctx=100_000, n_cells=1_000_000) as running:
        sock = running.connect()
        sock.sendall(chat_request(stream=stream))
        wait_for(lambda: running.engine.stats().n_running == 1)
        leave(sock)
        running.wait_until_idle()
        sock.close()
        wait_for(lambda: " 499 POST" in caplog.text)
    # The disconnect ended the generation, long before it filled the context.
    assert "Traceback" not in caplog.text


def test_k33_disconnect_ends_a_request_that_waits_for_a_slot():
    def step_until(n_waiting):
        wait_for(lambda: running.gate.release() or running.engine.stats().n_waiting == n_waiting)

    with (
        serving(endless, is_gated=True, n_parallel=1, n_ctx=100_000, n_cells=100_000) as running,
        running.connect() as first,
    ):
        first.sendall(chat_request(stream=True))
        wait_for(lambda: running.engine.stats().n_running == 1)
        with running.connect() as second:
            second.sendall(chat_request())
            step_until(n_waiting=1)
        step_until(n_waiting=0)
        assert running.engine.stats().n_running == 1


def test_disconnect_after_an_empty_line_is_detected():
    """Old clients send an empty line after a body (RFC 9112, 2.2)."""
    with serving(endless, n_ctx=100_000, n_cells=1_000_000) as running:
        with running.connect() as sock:
            sock.sendall(chat_request())
            wait_for(lambda: running.engine.stats().n_running == 1)
            sock.sendall(b"\r\n")
        running.wait_until_idle()


_MESSAGES = [{"role": "user", "content": "a"}]
_TOOL = {"name": "f", "parameters": {"type": "object"}}
_CLAUDE_TOOLS = {
    "tools": [{"name": "f", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "any"},
    "messages": _MESSAGES,
}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/v1/chat/completions",
            {"messages": _MESSAGES, "tools": [{"type": "function", "function": _TOOL}], "tool_choice": "required"},
        ),
        ("/v1/responses", {"input": "a", "tools": [{"type": "function", **_TOOL}], "tool_choice": "required"}),
        ("/v1/messages", {**_CLAUDE_TOOLS, "max_tokens": 9}),
        ("/v1/messages/count_tokens", _CLAUDE_TOOLS),
    ],
)
def test_disconnect_ends_the_compilation_of_a_constraint(path, body, monkeypatch):
    has_begun, must_end, has_ended = threading.Event(), threading.Event(), threading.Event()

    @contextlib.contextmanager
    def compile_for_ever(n_steps):
        has_begun.set()
        try:
            with compiling(10**12) as budget:
                while not must_end.is_set():
                    budget.spend(100)
                yield
        finally:
            has_ended.set()

    monkeypatch.setattr(constraints, "compiling", compile_for_ever)
    with serving() as running:
        with running.connect() as sock:
            sock.sendall(raw_request(json.dumps({"model": "Fake", **body}).encode(), path=path))
            assert has_begun.wait(DEADLINE_S)
        try:
            assert has_ended.wait(DEADLINE_S)
        finally:
            must_end.set()


def test_pipelined_request_is_no_disconnect():
    with serving(is_gated=True) as running, running.connect() as sock:
        sock.sendall(chat_request("one"))
        wait_for(lambda: running.engine.stats().n_running == 1)
        sock.sendall(chat_request("two"))
        running.gate.release(1000)
        read_until(sock, b'"one"')
        read_until(sock, b'"two"')


def test_client_that_does_not_read_is_disconnected_after_the_write_timeout():
    """H15. It delays no other request."""
    settings = Settings(port=0, write_timeout_s=0.3)
    with serving(endless, settings=settings, n_ctx=10_000_000, n_cells=100_000_000) as running:
        # Connections inherit the small buffers of the listening socket, which are soon full.
        running.server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        stuck = socket.socket()
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.connect(("127.0.0.1", running.port))
        with stuck:
            stuck.sendall(chat_request(stream=True))
            wait_for(lambda: running.engine.stats().n_running == 1)
            for _ in range(3):
                assert running.chat(max_tokens=20)[0] == 200
            running.wait_until_idle()


def test_running_streams_get_an_error_and_their_end_when_the_server_closes():
    with (
        serving(endless, n_ctx=10_000_000, n_cells=100_000_000) as running,
        contextlib.closing(running.client()) as client,
        running.connect() as idle,
    ):
        body = {"messages": [{"role": "user", "content": "x"}], "stream": True}
        client.request("POST", "/v1/chat/completions", json.dumps(body))
        response = client.getresponse()
        assert response.status == 200
        running.server.shutdown()
        closer = threading.Thread(target=running.server.close)
        closer.start()
        chunks = payloads(response.read())
        closer.join(DEADLINE_S)
        assert not closer.is_alive()
        assert idle.recv(1) == b""
    assert chunks[-1]["error"]["code"] == "shutting_down"


def test_request_in_flight_and_later_requests_get_503_when_the_server_stops():
    with serving(endless, n_ctx=10_000_000, n_cells=100_000_000) as running:
        with contextlib.closing(running.client()) as client:
            client.request("POST", "/v1/chat/completions", GOOD)
            wait_for(lambda: running.engine.stats().n_running == 1)
            running.server.service.in_flight.stop()
            early = read_response(client)
        late = running.chat()
        running.wait_until_idle()
    for status, body in (early, late):
        assert (status, body["error"]["code"]) == (503, "shutting_down")


def test_server_that_drains_refuses_new_requests_and_ends_with_the_last_one():
    """H16. It refuses them on new and on open connections. The request in flight ends normally."""
    with serving(is_gated=True) as running, contextlib.closing(running.client()) as used, running.connect() as sock:
        used.request("GET", "/health")
        assert read_response(used)[0] == 200
        sock.sendall(chat_request("hello", stream=True))
        running.gate.release()
        read_until(sock, b'"content":"h"')
        running.server.drain(60)
        for client in (used, running.client()):
            with contextlib.closing(client):
                client.request("POST", "/v1/chat/completions", GOOD)
                response = client.getresponse()
                assert (response.status, response.getheader("Connection")) == (503, "close")
                assert int(response.getheader("Retry-After")) > 0
                assert json.loads(response.read())["error"]["code"] == "shutting_down"
        assert running.thread.is_alive()
        running.gate.release(1000)
        read_until(sock, b"0\r\n\r\n")
        running.thread.join(DEADLINE_S)
        assert not running.thread.is_alive()


def test_drain_ends_after_its_time_even_with_requests_in_flight():
    """H16."""
    with serving(endless, is_gated=True) as running, running.connect() as sock:
        sock.sendall(chat_request(stream=True))
        wait_for(lambda: running.engine.stats().n_running == 1)
        running.server.drain(0.05)
        running.thread.join(DEADLINE_S)
        assert not running.thread.is_alive()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"])
def test_request_that_is_being_prepared_runs_to_its_end_when_the_server_drains(path):
    """Compiling its constraint, and starting an engine process, take long."""
    has_begun, may_go_on = threading.Event(), threading.Event()
    with serving() as running, contextlib.closing(running.client()) as client:
        submit = running.engine.submit

        def submit_later(requests):
            has_begun.set()
            assert may_go_on.wait(DEADLINE_S)
            return submit(requests)

        running.engine.submit = submit_later
        body = {"model": "Fake", "max_tokens": 9, "stream": False, "messages": [{"role": "user", "content": "x"}]}
        body = {**body, "input": "x"} if path == "/v1/responses" else body
        client.request("POST", path, json.dumps(body))
        assert has_begun.wait(DEADLINE_S)
        running.server.drain(DEADLINE_S)
        with contextlib.closing(running.client()) as late:
            late.request("POST", path, json.dumps(body))
            assert late.getresponse().status == 503
        assert running.thread.is_alive()
        may_go_on.set()
        assert client.getresponse().status == 200
        running.thread.join(DEADLINE_S)
        assert not running.thread.is_alive()
