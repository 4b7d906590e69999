"""The limit of connections: the response beyond the limit, and which idle connections are closed."""

import contextlib
import json
import socket

from localchat.serving.http.settings import Settings

from .serving import GOOD, ask, chat_request, exchange, raw_request, read_until, serving, wait_for


def hold(running) -> socket.socket:
    """A connection with a request whose body has not arrived yet."""
    sock = running.connect()
    sock.sendall(raw_request(GOOD, "Expect: 100-continue", "Connection: close")[: -len(GOOD)])
    read_until(sock, b"100 Continue\r\n\r\n")
    return sock


def test_connection_beyond_the_limit_gets_503_with_retry_after():
    """H14. Its request is not read. The open connections are served, and when one ends, a new one is accepted."""
    with serving(settings=Settings(port=0, max_connections=2)) as running, hold(running) as first:
        with hold(running) as second:
            for _ in range(3):
                with running.connect() as third:
                    head, _, body = b"".join(iter(lambda: third.recv(65536), b"")).partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 503 ")
                assert b"\r\nRetry-After: 2" in head
                assert b"\r\nConnection: close" in head
                assert json.loads(body)["error"]["code"] == "too_many_connections"
                # Beyond twice the limit there is no response, so wait until the server notices the disconnect.
                wait_for(lambda: len(running.server.connections._open) == 2)
            second.sendall(GOOD)
            assert second.recv(12) == b"HTTP/1.1 200"
        wait_for(lambda: running.chat()[0] == 200)
        first.sendall(GOOD)
        assert first.recv(12) == b"HTTP/1.1 200"


def test_idle_connections_are_closed_before_a_new_one_is_refused():
    """H14. The one that has been idle for longest is first, even if it never sent a request. A busy one stays open."""
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


def test_request_beyond_the_limit_gets_a_response_and_no_reset():
    with serving(settings=Settings(port=0, max_connections=1)) as running, hold(running):
        head, body = exchange(running, chat_request("x" * 100_000))
    assert b" 503 " in head
    assert body["error"]["type"] == "rate_limit_error"


def test_connections_beyond_twice_the_limit_are_closed():
    """Those up to twice the limit stay open for a moment, since their clients may still be sending."""
    with serving(settings=Settings(port=0, max_connections=1)) as running, hold(running) as first:
        with running.connect() as second, running.connect() as third:
            # It gets no response, which would need a thread.
            assert third.recv(1) == b""
            assert second.recv(15) == b"HTTP/1.1 503 Se"
        first.sendall(GOOD)
        assert first.recv(12) == b"HTTP/1.1 200"


def test_connection_for_which_no_thread_can_be_started_gets_503(monkeypatch, caplog):
    """As with `ulimit -v`. The log has one line for each connection, and no traceback."""

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
