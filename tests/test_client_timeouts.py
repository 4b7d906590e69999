"""The timeouts of the client: servers that are slow, silent or endless, in every phase of a call."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

import localchat.transport.call
import localchat.transport.sockets
from localchat import Client, ServerError, TimedOut, Timeout
from localchat.transport.timeouts import Deadlines

from .clients import failure, failure_at, make_client
from .raw_server import (
    DEADLINE_S,
    DONE,
    HELLO,
    OPEN,
    STOP,
    Peer,
    Server,
    chunked,
    chunks,
    dripping,
    dripping_letters,
    full_listener,
    interrupted,
    piece,
    pinging,
    silent_server,
    sse,
    waiting,
    with_tls,
)

ANNOUNCED = b"HTTP/1.1 102 Wait\r\n\r\nHTTP/1.1 102\r\n"
TIMEOUTS = {
    "first-no-headers": (waiting, (), Timeout(first=0.05), "first"),
    "first-headers-only": (waiting, (chunked(end=False),), Timeout(first=0.05, idle=0.001), "first"),
    "first-only-pings": (pinging, (chunked(end=False),), Timeout(first=0.1), "first"),
    "idle": (waiting, (OPEN,), Timeout(idle=0.05), "idle"),
    "idle-from-a-number": (waiting, (OPEN,), 0.05, "idle"),
    "stall-although-pings": (pinging, (OPEN,), Timeout(idle=5, stall=0.1), "stall"),
    "stall-although-a-chunk-size-drips": (dripping_letters, (OPEN, b"1;"), Timeout(idle=5, stall=0.1), "stall"),
    "first-although-the-head-drips": (dripping, (b"HTTP/1.1 200 OK\r\n",), Timeout(first=0.1), "first"),
    "first-although-announced": (dripping, (ANNOUNCED,), Timeout(first=0.1), "first"),
    "total": (pinging, (OPEN,), Timeout(total=0.1), "total"),
}


@pytest.mark.parametrize(("kind_of_server", "parts", "timeout", "kind"), TIMEOUTS.values(), ids=TIMEOUTS)
def test_timeout_expires(kind_of_server, parts, timeout, kind, client_class):
    error = failure(kind_of_server(*parts), TimedOut, f"Timeout.{kind}", client_class, timeout=timeout)
    assert error.kind == kind
    assert error.partial is not None or not parts


def test_timeouts_do_not_run_between_reads():
    """A program may take long between two events, for example to read the text aloud."""
    done = threading.Event()
    server = interrupted(done, OPEN, chunks(piece("b"), STOP, DONE))
    with server, make_client(server, timeout=Timeout(stall=0.5)) as client:
        texts = client.stream("hi").text
        assert next(texts) == "a"
        time.sleep(0.7)  # Longer than the timeout.
        done.set()
        assert list(texts) == ["b"]


def test_timeout_after_the_finish_is_cancelled_if_text_follows():
    deadlines = Deadlines(Timeout())
    deadlines.start()
    deadlines.event()
    left = []
    for seconds in (5, None):
        deadlines.end_within(seconds)
        left.append(deadlines.left()[0] or 0)
    assert left[0] <= 5 < left[1]


def test_timeout_expires_on_https(certificate):
    server = with_tls(waiting(OPEN), certificate)
    assert failure(server, TimedOut, timeout=Timeout(idle=0.05), verify=False).kind == "idle"


@pytest.mark.parametrize(("scheme", "listening"), [("http", full_listener), ("https", silent_server)])
def test_connect_timeout_applies_to_the_connection_and_the_handshake(scheme, listening, client_class):
    with listening() as port:
        url, timeout = f"{scheme}://127.0.0.1:{port}/v1", Timeout(connect=0.1)
        assert failure_at(url, TimedOut, client_class=client_class, timeout=timeout).kind == "connect"


def test_connect_timeout_applies_while_the_resolver_hangs(hanging_resolver, client_class):
    timeout = Timeout(connect=0.05)
    assert failure_at("http://h.example/v1", TimedOut, client_class=client_class, timeout=timeout).kind == "connect"


@pytest.mark.parametrize("raw", [b"", b"HTTP/1.1 200 OK\r\n"], ids=["silent", "dripping"])
def test_connect_timeout_applies_to_the_tunnel_of_a_proxy(raw, client_class):
    with dripping(raw) if raw else waiting() as server:
        options = {"proxy": f"http://127.0.0.1:{server.port}", "timeout": Timeout(connect=0.1)}
        error = failure_at("https://h.example/v1", TimedOut, client_class=client_class, **options)
    assert error.kind == "connect"


def test_first_event_timeout_applies_while_the_request_is_sent():
    """The server reads nothing, and the request is larger than any buffer."""
    with silent_server() as port:
        url, timeout = f"http://127.0.0.1:{port}/v1", Timeout(first=0.1)
        assert failure_at(url, TimedOut, prompt="x" * 30_000_000, timeout=timeout).kind == "first"


def test_timeout_of_a_call_applies_to_its_list_of_models():
    """Without a model, the client requests the list first."""
    with waiting() as server, Client(server.url, max_retries=0) as client:
        for method in (client.chat, client.complete, client.embed):
            with pytest.raises(TimedOut):
                method("hi", timeout=Timeout(first=0.05))


def test_body_of_an_error_has_a_short_timeout(monkeypatch, client_class):
    raw = b'HTTP/1.1 503 Busy\r\nContent-Length: 100\r\n\r\n{"error": '
    for limit, timeout in ((0.05, Timeout()), (DEADLINE_S, Timeout(total=0.1))):
        monkeypatch.setattr(localchat.transport.call, "ERROR_BODY_S", limit)
        start = time.monotonic()
        error = failure(waiting(raw), ServerError, client_class=client_class, timeout=timeout)
        assert error.body == '{"error": '
        assert time.monotonic() - start < DEADLINE_S / 2


def test_timeouts_apply_to_reads_in_steps(monkeypatch):
    """As on Windows, for Ctrl-C."""
    monkeypatch.setattr(localchat.transport.sockets, "_STEP_S", 0.005)
    assert failure(waiting(OPEN), TimedOut, timeout=0.05).kind == "idle"

    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        time.sleep(0.03)  # Several steps.
        peer.send(HELLO)

    with Server(handle) as server, make_client(server) as client:
        assert client.chat("hi").text == "Hello"


def test_prompt_progress_restarts_the_timeout_between_events_and_an_empty_payload_does_not(client_class):
    """A server reports the progress of a long prefill; an empty payload is no more than a keep-alive."""

    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        peer.send(chunked(end=False))
        while True:
            peer.send(chunks(sse(payload), end=False))
            time.sleep(0.02)  # The pace of the payloads; nothing waits for it.

    payload: dict[str, Any] = {"id": "1", "choices": []}
    timeout = Timeout(idle=5, stall=0.4, total=1.2)
    assert failure(Server(handle), TimedOut, client_class=client_class, timeout=timeout).kind == "stall"
    payload = {"prompt_progress": {"processed": 8}}
    assert failure(Server(handle), TimedOut, client_class=client_class, timeout=timeout).kind == "total"
