"""Connections: their limit, TLS, Unix sockets, clients that disconnect or do not read, and the end of the server."""

import contextlib
import http.client
import logging
import os
import select
import socket
import stat
import subprocess
import sys
import threading
from typing import Any
from unittest import mock

import pytest

from localchat.serving.core.server_options import Options
from localchat.serving.http import clients
from localchat.serving.http.connections import Connections, ConnectionState, listen_at
from tests.support import serving as support
from tests.support.deadline import DEADLINE_S
from tests.support.exchanges import read
from tests.support.fakes import endless
from tests.support.serving import GOOD, chat_request, raw_request, read_all, read_until, serving, wait_for

LONG = {"n_ctx": 100_000, "n_cells": 1_000_000}
linux = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not report it behind unread bytes")

# --- the limit ---


def hold(running) -> socket.socket:
    """A connection with a request whose body has not arrived yet."""
    sock = running.connect(raw_request(GOOD, "Expect: 100-continue", "Connection: close")[: -len(GOOD)])
    read_until(sock, b"100 Continue\r\n\r\n")
    return sock


def test_connection_beyond_the_limit_gets_503_with_retry_after():
    """Its request is not read. The open connections are served, and when one ends, a new one is accepted."""
    with serving(settings=Options(port=0, max_connections=2)) as running, hold(running) as first:
        with hold(running) as second:
            for _ in range(3):
                head, body = support.exchange(running, chat_request("x" * 100_000))
                assert head.startswith(b"HTTP/1.1 503 ")
                assert b"\r\nRetry-After: 2" in head
                assert b"\r\nConnection: close" in head
                assert (body["error"]["type"], body["error"]["code"]) == ("rate_limit_error", "too_many_connections")
                # Beyond twice the limit there is no response, so wait until the server notices the disconnect.
                wait_for(lambda: running.server.connections.count(ConnectionState.ENDING) == 0)
            second.sendall(GOOD)
            assert second.recv(12) == b"HTTP/1.1 200"
        wait_for(lambda: running.chat()[0] == 200)
        first.sendall(GOOD)
        assert first.recv(12) == b"HTTP/1.1 200"
        # This request may be refused as long as the other connections are closing.
        wait_for(lambda: 'requests_total{path="refused",status="503"} ' in running.request("GET", "/metrics")[1])


def test_connections_beyond_twice_the_limit_are_closed_without_a_thread():
    """So a client that does not close its refused connection cannot make the server start more threads.

    A refused connection stays open for a moment, since its client may still be sending.
    """
    with serving(settings=Options(port=0, max_connections=1)) as running:
        served, handle = [], running.server.process_request_thread

        def counting(sock: Any, address: Any) -> None:
            served.append(sock)
            handle(sock, address)

        running.server.process_request_thread = counting  # type: ignore[method-assign]
        with hold(running) as first, running.connect() as refused:
            wait_for(lambda: running.server.connections.count(ConnectionState.ENDING) == 1)
            for _ in range(3):
                with running.connect() as closed:
                    assert read_all(closed) == b""
            assert refused.recv(15) == b"HTTP/1.1 503 Se"
            first.sendall(GOOD)
            assert first.recv(12) == b"HTTP/1.1 200"
            assert len(served) == 2


def test_idle_connections_are_closed_before_a_new_one_is_refused():
    """The one that has been idle for longest is first, even if it never sent a request. A busy one stays open."""
    with serving(settings=Options(port=0, max_connections=3)) as running, hold(running) as busy:
        with contextlib.ExitStack() as stack:
            silent = stack.enter_context(running.connect())
            wait_for(lambda: running.server.connections.count(ConnectionState.IDLE) == 1)
            used, *new = (stack.enter_context(contextlib.closing(running.client())) for _ in range(3))
            assert support.ask(used)[0] == 200
            wait_for(lambda: running.server.connections.count(ConnectionState.IDLE) == 2)
            for idle, client in zip((silent, used.sock), new):
                assert support.ask(client)[0] == 200
                assert idle.recv(1) == b""
        busy.sendall(GOOD)
        assert busy.recv(12) == b"HTTP/1.1 200"


@pytest.mark.parametrize("status", [401, 503])
def test_refused_client_that_stays_frees_its_thread_soon(status):
    """With the time that the server really waits."""
    settings = Options(port=0, max_connections=1, api_keys=("k",) if status == 401 else ())
    with serving(settings=settings) as running, contextlib.ExitStack() as stack:
        if status == 503:
            stack.enter_context(hold(running))
        sock = stack.enter_context(running.connect(raw_request(GOOD)[:-5]))
        assert read_all(sock).startswith(b"HTTP/1.1 %d " % status)
        wait_for(lambda: len(running.server.connections._states) == int(status == 503))


def test_connection_that_is_being_closed_takes_no_place():
    """A place is free as soon as its connection is being closed, not only when its thread has ended."""
    connections = Connections(1)
    with contextlib.ExitStack() as stack:
        first, second, third, fourth = (stack.enter_context(socket.socket()) for _ in range(4))
        assert connections.add(first)
        connections.mark(first, ConnectionState.IDLE)
        assert connections.add(second)  # It takes the place of the first.
        assert [connections.is_ending(sock) for sock in (first, second)] == [True, False]
        connections.remove(second)
        assert connections.add(third)
        connections.mark(third, ConnectionState.BUSY)
        assert not connections.is_ending(third)
        connections.remove(first)
        assert connections.add(fourth)
        assert connections.is_ending(fourth)  # The third one is busy.


def test_close_waits_no_longer_than_until_the_last_connection_has_ended():
    connections, (ours, theirs) = Connections(2), socket.socketpair()
    with ours, theirs:
        connections.add(ours)
        closing = threading.Thread(target=connections.close, args=(600,), daemon=True)
        closing.start()
        assert ours.recv(1) == b""  # It has been shut down, and `close` waits.
        connections.remove(ours)
        closing.join(DEADLINE_S)
        assert not closing.is_alive()


def test_connection_for_which_no_thread_can_be_started_is_closed(caplog):
    """As with `ulimit -v`. The log has one line for each connection, and no traceback."""
    failing = mock.patch("threading.Thread.start", side_effect=RuntimeError("can't start new thread"))
    with serving() as running:
        with failing, running.connect() as sock:
            assert read_all(sock) == b""
        assert running.chat()[0] == 200
    assert "no thread can be started" in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.skipif(sys.platform == "win32", reason="files are not limited there")
def test_server_without_files_for_connections_waits_until_there_are_some(caplog):
    """The loop must not call `accept` all the time."""
    import resource

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with serving() as running, contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        *sockets, free = [stack.enter_context(socket.socket()) for _ in range(5)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (free.fileno(), limits[1]))  # No number below this one is free.
        for sock in sockets:
            sock.connect(("127.0.0.1", running.port))
        wait_for(lambda: "no file is left" in caplog.text)
        threading.Event().wait(0.3)  # A loop that calls `accept` all the time would log hundreds of lines.
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for sock in sockets:
            sock.close()
        assert running.chat()[0] == 200
    assert caplog.text.count("no file is left") < 20


# --- TLS ---


def https(running) -> http.client.HTTPSConnection:
    return http.client.HTTPSConnection("localhost", running.port, timeout=DEADLINE_S, context=support.CLIENT_TLS)


def test_tls_serves_whole_responses_and_streams_on_one_connection():
    with serving(settings=support.TLS) as running, contextlib.closing(https(running)) as client:
        assert support.ask(client)[0] == 200
        assert support.delta_text(support.ask(client, stream=True)[1]) == "hello"
        assert running.server.url.startswith("https://127.0.0.1:")


@pytest.mark.parametrize("first_bytes", [b"", GOOD, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello"])
def test_connection_without_tls_is_closed_and_others_stay_open(first_bytes, caplog):
    with serving(settings=support.TLS) as running:
        # The server may have closed it already.
        with running.connect(first_bytes) as sock, contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
            assert not read_all(sock).startswith(b"HTTP")
        with contextlib.closing(https(running)) as client:
            assert support.ask(client)[0] == 200
    assert "Traceback" not in caplog.text


# --- Unix sockets ---

unix = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no Unix sockets here")


@unix
def test_unix_socket_serves_this_user_and_is_removed_at_the_end(tmp_path):
    """Any host name is accepted, since a web page cannot connect to a Unix socket."""
    path, client = tmp_path / "chat", http.client.HTTPConnection("any.host")
    with serving(settings=Options(uds=path)) as running, contextlib.closing(client):
        client.sock = socket.socket(socket.AF_UNIX)
        client.sock.settimeout(DEADLINE_S)
        client.sock.connect(str(path))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert running.server.url == f"unix:{path}"
        assert support.ask(client)[0] == 200
        assert support.delta_text(support.ask(client, stream=True)[1]) == "hello"
    assert not path.exists()


@unix
def test_unix_socket_that_a_server_left_behind_is_replaced_and_others_stay(tmp_path):
    path, file = tmp_path / "chat", tmp_path / "notes"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    file.write_text("mine")
    with contextlib.ExitStack() as next_server:
        with listen_at(path) as listener:
            for used in (path, file):
                with pytest.raises(OSError, match="in use"), listen_at(used):
                    pass
            listener.close()
            next_server.enter_context(listen_at(path))
        assert path.is_socket()
    assert file.read_text() == "mine"


# --- clients that disconnect ---


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
    with serving(endless, **LONG) as plain, serving(endless, settings=support.TLS, **LONG) as tls:
        yield {"plain": plain, "TLS": tls}


def connected(running) -> socket.socket:
    sock, is_tls = running.connect(), running.server.url.startswith("https")
    return support.CLIENT_TLS.wrap_socket(sock, server_hostname="localhost") if is_tls else sock


@pytest.mark.parametrize("kind", ["plain", pytest.param("TLS", marks=linux)])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("leave", [close_cleanly, support.reset])
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


@pytest.mark.parametrize("kind", ["plain", pytest.param("TLS", marks=linux)])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("probe_after_s", [0.0, DEADLINE_S])
def test_client_that_sends_no_more_gets_its_whole_response(kind, stream, probe_after_s, monkeypatch, caplog):
    """Half-closing is legal. Before the response, the client may get an interim response, which it ignores."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(clients, "PROBE_AFTER_S", probe_after_s)
    settings = support.TLS if kind == "TLS" else support.ANY_PORT
    with serving(is_gated=True, settings=settings) as running, connected(running) as sock:
        sock.sendall(raw_request(support.chat_body(stream=stream), "Connection: close"))
        wait_for(lambda: running.engine.stats().n_running == 1)
        half_close(sock)
        if probe_after_s == 0 and kind == "plain":  # With TLS, the server has sent something already.
            wait_for(lambda: select.select([sock], [], [], 0)[0])
        running.gate.release(1000)
        received = support.read_all(sock)
        wait_for(lambda: " 200 POST" in caplog.text)
    if kind == "plain":
        assert received.count(b"100 Continue") == (probe_after_s == 0 and not stream)
    assert received.endswith(b"0\r\n\r\n" if stream else b"}")


def test_client_that_leaves_after_the_first_probe_is_noticed(monkeypatch):
    monkeypatch.setattr(clients, "PROBE_AFTER_S", 0.0)
    monkeypatch.setattr(clients, "PROBE_PERIOD_S", 0.05, raising=False)
    with serving(is_gated=True) as running:
        with running.connect(chat_request(stream=False)) as sock:
            wait_for(lambda: running.engine.stats().n_running == 1)
            half_close(sock)
            support.read_until(sock, b"100 Continue\r\n\r\n")
        wait_for(
            lambda: running.engine_client.n_open == 0, DEADLINE_S / 2
        )  # The gate ends the request after DEADLINE_S.


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat", "/v1/messages"])
def test_client_that_leaves_before_the_first_token_is_noticed_in_every_format(path, monkeypatch):
    monkeypatch.setattr(clients, "PROBE_AFTER_S", 0.0)
    with serving(is_gated=True) as running:
        body = support.chat_body(stream=True, max_tokens=5, model="Fake")
        with running.connect(raw_request(body, path=path)):
            wait_for(lambda: running.engine.stats().n_running == 1)
        wait_for(lambda: running.engine_client.n_open == 0)


def test_client_that_closes_after_its_response_has_got_all_of_it(caplog):
    caplog.set_level(logging.INFO)
    with serving() as running:
        for _ in range(20):
            with running.connect(chat_request(stream=True)) as sock:
                support.read_until(sock, b"[DONE]\n\n\r\n")
        wait_for(lambda: caplog.text.count(" POST ") == 20)
    assert " 499 " not in caplog.text


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


@linux
@pytest.mark.parametrize(
    ("change", "state"),
    [
        (lambda sock: None, clients.ClientState.OPEN),
        (lambda sock: sock.sendall(b"x"), clients.ClientState.OPEN),
        (half_close, clients.ClientState.SHUT_DOWN),
        (support.reset, clients.ClientState.GONE),
    ],
    ids=["open", "sends", "half-closed", "reset"],
)
def test_state_of_a_client(change, state):
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as sock:
        ours, _ = listener.accept()
        with ours:
            change(sock)
            wait_for(lambda: clients.client_state(ours) is state)
            assert clients.client_state(ours) is state


@linux
@pytest.mark.parametrize("number", [0, 1500], ids=["low", "high"])
def test_state_of_a_client_without_epoll_has_no_limit_of_descriptors(number: int, monkeypatch: pytest.MonkeyPatch):
    """As on macOS, whose `select` takes descriptors below 1024."""
    import fcntl

    monkeypatch.delattr(select, "POLLRDHUP")
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.socket(fileno=fcntl.fcntl(ours, fcntl.F_DUPFD, number)) as copy:
        assert clients.client_state(copy) is clients.ClientState.OPEN
        theirs.sendall(b"x")
        assert clients.client_state(copy) is clients.ClientState.OPEN
        copy.recv(1)
        half_close(theirs)
        assert clients.client_state(copy) is clients.ClientState.SHUT_DOWN


@linux
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_watch_ends_beside_a_forked_process():
    """The child has a copy of each socket, so closing one of the parent's does not end the connection."""
    program = (
        "import os, sys\n"
        "from localchat.serving.http.clients import ClientWatch\n"
        "watch = ClientWatch()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    sys.stdin.read()\n"
        "    os._exit(0)\n"
        "watch.close()\n"
    )
    # The child waits for the end of this pipe, and so ends with the test.
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as parent:
        try:
            assert parent.wait(DEADLINE_S) == 0
        finally:
            parent.kill()


def test_watch_notifies_once_of_each_change_of_a_client():
    """The others are watched one after the other, so that the thread has waited for events again in between."""
    listening = socket.create_server(("127.0.0.1", 0))
    with listening as listener, contextlib.closing(clients.ClientWatch()) as watch, contextlib.ExitStack() as stack:

        def watched(changes: list[str]) -> socket.socket:
            """The other side of a watched connection."""
            theirs = stack.enter_context(socket.create_connection(listener.getsockname()))
            ours = stack.enter_context(listener.accept()[0])
            stack.enter_context(watch.watching(ours, lambda: changes.append("changed")))
            return theirs

        changes: list[str] = []
        sock = watched(changes)
        for n_changes, change in enumerate((half_close, support.reset), 1):
            change(sock)
            wait_for(lambda n_changes=n_changes: len(changes) >= n_changes)
            for _ in range(10):
                others: list[str] = []
                half_close(watched(others))
                wait_for(lambda others=others: others)
            assert len(changes) == n_changes


def test_pipelined_requests_are_no_disconnect_and_get_their_responses_in_order():
    with serving(is_gated=True) as running, running.connect(chat_request("one")) as sock:
        wait_for(lambda: running.engine.stats().n_running == 1)
        sock.sendall(chat_request("two", stream=True) + chat_request("three"))
        running.gate.release(1000)
        for text in (b'"one"', b"text/event-stream", b'"three"'):
            read_until(sock, text)


def test_request_that_leaves_the_queue_does_not_end_the_running_ones():
    with serving(endless, **LONG, is_gated=True) as running, contextlib.ExitStack() as stack:

        def has_arrived(n: int) -> bool:
            running.gate.release()  # A step, before which the engine reads its inbox.
            stats = running.engine.stats()
            return stats.n_running + stats.n_waiting == n

        sockets = []
        for n in range(running.engine.facts.n_parallel + 1):
            sockets.append(stack.enter_context(running.connect()))
            sockets[-1].sendall(raw_request(support.chat_body(max_tokens=1000, stream=True), "Connection: close"))
            wait_for(lambda n=n: has_arrived(n + 1))
        support.reset(sockets.pop())
        wait_for(lambda: has_arrived(len(sockets)))
        running.gate.release(100_000)
        for sock in sockets:
            raw = read_all(sock)
            assert (raw.count(b'"finish_reason":"length"'), raw.count(b"[DONE]")) == (1, 1)


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
    with serving(endless, settings=Options(port=0, write_timeout_s=0.3), **LONG) as running, slow_reader(running):
        wait_for(lambda: running.requests)
        for _ in range(3):
            assert running.chat(max_tokens=20)[0] == 200
        running.wait_until_idle()


def test_stream_that_is_read_late_is_complete():
    text = "ab" * 150
    with serving(n_ctx=1000, n_cells=1000) as running, slow_reader(running, content=text) as sock:
        wait_for(lambda: running.engine.stats().n_sampled > len(text))
        raw = read_until(sock, b"\r\n0\r\n\r\n")
    assert support.delta_text(support.payloads(support.dechunked(raw.partition(b"\r\n\r\n")[2]))) == text


# --- shutdown ---


def test_running_streams_get_an_error_and_their_end_when_the_server_closes():
    with serving(endless, **LONG) as running, contextlib.closing(running.client()) as client, running.connect() as idle:
        client.request("POST", "/v1/chat/completions", support.chat_body(stream=True))
        response = client.getresponse()
        assert response.status == 200
        running.server.shutdown()
        closer = threading.Thread(target=running.server.close)
        closer.start()
        chunks = support.payloads(response.read())
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
            early = support.read_response(client)
        late = running.chat()
    for status, body in (early, late):
        assert (status, body["error"]["code"]) == (503, "shutting_down")


def test_server_that_drains_refuses_new_requests_and_ends_with_the_last_one():
    """It refuses them on new and on open connections. The request in flight ends normally."""
    with serving(is_gated=True) as running, contextlib.closing(running.client()) as used, running.connect() as sock:
        used.request("GET", "/health")
        assert support.read_response(used)[0] == 200
        sock.sendall(chat_request("hello", stream=True))
        running.gate.release()
        read_until(sock, b'"content":"h"')
        running.server.drain(60)
        for client in (used, running.client()):
            with contextlib.closing(client):
                client.request("POST", "/v1/chat/completions", GOOD)
                response, body = read(client.getresponse())
            assert (response.status, response.getheader("Connection")) == (503, "close")
            assert (int(response.getheader("Retry-After")) > 0, body["error"]["code"]) == (True, "shutting_down")
        assert running.thread.is_alive()
        running.gate.release(1000)
        read_until(sock, b"0\r\n\r\n")
        running.thread.join(DEADLINE_S)
        assert not running.thread.is_alive()


def test_drain_ends_after_its_time_even_with_requests_in_flight():
    with serving(endless, is_gated=True) as running, running.connect(chat_request(stream=True)):
        wait_for(lambda: running.engine.stats().n_running == 1)
        running.server.drain(0.05)
        running.thread.join(DEADLINE_S)
        assert not running.thread.is_alive()


def test_request_that_is_being_prepared_runs_to_its_end_when_the_server_drains():
    """Compiling its constraint, and starting an engine process, take long."""
    has_begun, may_go_on = threading.Event(), threading.Event()
    with serving() as running, contextlib.closing(running.client()) as client:
        prepare = running.engine.prepare

        def prepare_later(*arguments):
            has_begun.set()
            assert may_go_on.wait(DEADLINE_S)
            return prepare(*arguments)

        running.engine.prepare = prepare_later
        client.request("POST", "/v1/chat/completions", GOOD)
        assert has_begun.wait(DEADLINE_S)
        running.server.drain(DEADLINE_S)
        assert running.chat()[0] == 503
        assert running.thread.is_alive()
        may_go_on.set()
        assert client.getresponse().status == 200
        running.thread.join(DEADLINE_S)
        assert not running.thread.is_alive()
