"""Clients that disconnect or do not read during a response, and the shutdown of the server."""

import contextlib
import json
import logging
import socket
import sys
import threading

import pytest

from localchat.serving.loading.options import Options
from tests.support.fakes import endless
from tests.support.serving import (
    CLIENT_TLS,
    DEADLINE_S,
    GOOD,
    TLS,
    chat_request,
    dechunked,
    delta_text,
    payloads,
    read_response,
    read_until,
    reset,
    serving,
    wait_for,
)

LONG = {"n_ctx": 100_000, "n_cells": 1_000_000}
linux = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not report it behind unread bytes")


def half_close(sock: socket.socket) -> None:
    socket.socket.shutdown(sock, socket.SHUT_WR)


def close_cleanly(sock: socket.socket) -> None:
    """With TLS, this sends a last record before the connection ends."""
    with contextlib.suppress(OSError):
        if hasattr(sock, "unwrap"):
            sock.settimeout(0.01)
            sock.unwrap()
    sock.close()


@pytest.fixture(scope="module")
def long():
    """Servers whose responses do not end, without and with TLS."""
    with serving(endless, **LONG) as plain, serving(endless, settings=TLS, **LONG) as tls:
        yield {"plain": plain, "TLS": tls}


def connected(running) -> socket.socket:
    sock = running.connect()
    return CLIENT_TLS.wrap_socket(sock, server_hostname="localhost") if running.server.url[:5] == "https" else sock


@pytest.mark.parametrize("kind", ["plain", pytest.param("TLS", marks=linux)])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("leave", [close_cleanly, reset, half_close])
def test_disconnect_frees_the_sequence(long, leave, stream, kind, caplog):
    caplog.set_level(logging.INFO)
    running = long[kind]
    sock = connected(running)
    sock.sendall(chat_request(stream=stream))
    wait_for(lambda: running.engine.stats().n_running == 1)
    leave(sock)
    running.wait_until_idle()
    sock.close()
    wait_for(lambda: " 499 POST" in caplog.text)
    # The disconnect ended the generation, long before it filled the context.
    assert "Traceback" not in caplog.text


@linux
@pytest.mark.parametrize("kind", ["plain", "TLS"])
@pytest.mark.parametrize("more", [b"\r\n", chat_request()], ids=["an empty line", "a pipelined request"])
def test_disconnect_behind_unread_bytes_is_detected(long, more, kind):
    """Old clients send an empty line after a body (RFC 9112, 2.2)."""
    running = long[kind]
    with connected(running) as sock:
        sock.sendall(chat_request())
        wait_for(lambda: running.engine.stats().n_running == 1)
        sock.sendall(more)
    running.wait_until_idle()


def test_pipelined_request_is_no_disconnect():
    with serving(is_gated=True) as running, running.connect() as sock:
        sock.sendall(chat_request("one"))
        wait_for(lambda: running.engine.stats().n_running == 1)
        sock.sendall(chat_request("two"))
        running.gate.release(1000)
        read_until(sock, b'"one"')
        read_until(sock, b'"two"')


# --- clients that do not read ---


def slow_reader(running, content="x", **fields) -> socket.socket:
    """A connection with small buffers, on which a stream begins that the client does not read."""
    # Connections inherit the buffer sizes of the listening socket.
    running.server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(DEADLINE_S)
    sock.connect(("127.0.0.1", running.port))
    sock.sendall(chat_request(content, stream=True, logprobs=True, **fields))
    return sock


def test_client_that_does_not_read_is_disconnected_after_the_write_timeout():
    """It delays no other request."""
    settings = Options(port=0, write_timeout_s=0.3)
    with serving(endless, settings=settings, **LONG) as running, slow_reader(running):
        wait_for(lambda: running.engine.stats().n_running == 1)
        for _ in range(3):
            assert running.chat(max_tokens=20)[0] == 200
        running.wait_until_idle()


def test_stream_that_is_read_late_is_complete():
    text = "ab" * 150
    with serving(n_ctx=1000, n_cells=1000) as running, slow_reader(running, content=text) as sock:
        wait_for(lambda: running.engine.stats().n_sampled > len(text))
        raw = b""
        while not raw.endswith(b"\r\n0\r\n\r\n"):
            raw += sock.recv(65536)
    assert delta_text(payloads(dechunked(raw.partition(b"\r\n\r\n")[2]))) == text


# --- shutdown ---


def test_running_streams_get_an_error_and_their_end_when_the_server_closes():
    with serving(endless, **LONG) as running, contextlib.closing(running.client()) as client, running.connect() as idle:
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
    with serving(endless, **LONG) as running:
        with contextlib.closing(running.client()) as client:
            client.request("POST", "/v1/chat/completions", GOOD)
            wait_for(lambda: running.engine.stats().n_running == 1)
            running.server.service.stop()
            early = read_response(client)
        late = running.chat()
    for status, body in (early, late):
        assert (status, body["error"]["code"]) == (503, "shutting_down")


def test_server_that_drains_refuses_new_requests_and_ends_with_the_last_one():
    """It refuses them on new and on open connections. The request in flight ends normally."""
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
    with serving(endless, is_gated=True) as running, running.connect() as sock:
        sock.sendall(chat_request(stream=True))
        wait_for(lambda: running.engine.stats().n_running == 1)
        running.server.drain(0.05)
        running.thread.join(DEADLINE_S)
        assert not running.thread.is_alive()


def test_request_that_is_being_prepared_runs_to_its_end_when_the_server_drains():
    """Compiling its constraint, and starting an engine process, take long."""
    has_begun, may_go_on = threading.Event(), threading.Event()
    with serving() as running, contextlib.closing(running.client()) as client:
        submit = running.engine.submit

        def submit_later(*arguments):
            has_begun.set()
            assert may_go_on.wait(DEADLINE_S)
            return submit(*arguments)

        running.engine.submit = submit_later
        client.request("POST", "/v1/chat/completions", GOOD)
        assert has_begun.wait(DEADLINE_S)
        running.server.drain(DEADLINE_S)
        assert running.chat()[0] == 503
        assert running.thread.is_alive()
        may_go_on.set()
        assert client.getresponse().status == 200
        running.thread.join(DEADLINE_S)
        assert not running.thread.is_alive()
