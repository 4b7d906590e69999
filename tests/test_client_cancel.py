"""Cancelling: a stream is closed at any moment of a call, and the thread that reads it ends at once."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from localchat import Cancelled, Client, Timeout

from .clients import make_client
from .raw_server import (
    DEADLINE_S,
    HELLO,
    OPEN,
    Peer,
    Server,
    always,
    at_unix_socket,
    full_listener,
    piece,
    silent_server,
    until_close,
    waiting,
    with_length,
    with_tls,
)


def cancel_while_reading(client: Client, stream: Any) -> float:
    """Seconds from close() in this thread to the end of the thread that reads."""
    reading = threading.Event()
    outcome: list[BaseException] = []

    def read() -> None:
        try:
            for event in stream:
                if event.type == "content_delta":
                    reading.set()
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    assert reading.wait(DEADLINE_S)
    start = time.monotonic()
    stream.close()
    thread.join(DEADLINE_S)
    spent = time.monotonic() - start
    assert not thread.is_alive()
    assert [type(error) for error in outcome] == [Cancelled]
    assert outcome[0].partial.text == "a"
    return spent


@pytest.mark.parametrize("kind", ["http", "https", "unix", "until-close"])
def test_cancel_from_another_thread(kind, certificate, tmp_path):
    """A response that ends with its connection is cut as well."""
    server = waiting(until_close(piece("a")) if kind == "until-close" else OPEN)
    if kind == "https":
        with_tls(server, certificate)
    elif kind == "unix":
        at_unix_socket(server, tmp_path / "s")
    url = f"unix:{tmp_path}/s" if kind == "unix" else server.url
    with server, Client(url, model="m", verify=False) as client:
        # The best of five tries, since the machine may be busy.
        assert min(cancel_while_reading(client, client.stream("hi")) for _ in range(5)) < 0.05


def check_close_when(event: threading.Event, stream: Any) -> None:
    """Close a stream in another thread while this one waits for its first event."""
    thread = threading.Thread(target=lambda: (event.wait(DEADLINE_S), stream.close()))
    thread.start()
    start = time.monotonic()
    with pytest.raises(Cancelled):
        next(stream)
    assert time.monotonic() - start < DEADLINE_S / 2
    thread.join(DEADLINE_S)


@pytest.mark.parametrize("model", ["m", None])
def test_close_before_the_first_byte_of_a_response(model):
    """Without a model, the first response is the list of models."""
    arrived = threading.Event()

    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        arrived.set()
        assert peer.is_disconnected()

    with Server(handle) as server, make_client(server, model=model) as client:
        check_close_when(arrived, client.stream("hi"))


def test_leaving_the_with_cancels(client_class):
    disconnected = threading.Event()

    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        peer.send(OPEN)
        if peer.is_disconnected():
            disconnected.set()

    with Server(handle) as server, make_client(server, client_class) as client:
        with client.stream("hi") as stream:
            assert next(stream.text) == "a"
        assert disconnected.wait(DEADLINE_S)
        assert stream.reply.text == "a"
        with pytest.raises(Cancelled):
            next(stream)


def test_dropping_the_stream_closes_its_connection():
    """C17, without a with."""

    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        peer.send(OPEN)
        assert peer.is_disconnected()

    with Server(handle) as server, make_client(server) as client:
        stream = client.stream("hi")
        next(stream)
        del stream


def test_blocking_client_in_the_thread_of_an_event_loop():
    async def main(client: Client) -> str:
        with client.stream("hi") as stream:
            return next(stream.text) + client.chat("hi").text

    with always(HELLO) as server, make_client(server) as client:
        assert asyncio.run(main(client)) == "HelHello"


def test_close_while_waiting_to_retry():
    waits = threading.Event()
    server = always(with_length(b"{}", "503 Loading", "Retry-After: 60\r\n"))
    with server, make_client(server, max_retries=2, on_retry=lambda *_: waits.set()) as client:
        check_close_when(waits, client.stream("hi"))


@pytest.mark.parametrize(("scheme", "listening"), [("http", full_listener), ("https", silent_server)])
def test_close_while_it_connects(scheme, listening):
    """The http server accepts no connection, the https server does no handshake."""
    with listening() as port:
        stream = Client(f"{scheme}://127.0.0.1:{port}/v1", model="m", timeout=Timeout(connect=None)).stream("hi")
        threading.Timer(0.05, stream.close).start()
        start = time.monotonic()
        with pytest.raises(Cancelled):
            next(stream)
        assert time.monotonic() - start < DEADLINE_S / 2


def test_close_while_the_request_is_sent():
    with silent_server() as port:
        stream = Client(f"http://127.0.0.1:{port}/v1", model="m").stream("x" * 30_000_000)
        threading.Timer(0.3, stream.close).start()
        with pytest.raises(Cancelled):
            next(stream)


def test_close_while_the_resolver_hangs(hanging_resolver):
    client = Client("http://h.example/v1", model="m", timeout=Timeout(connect=None))
    check_close_when(hanging_resolver, client.stream("hi"))


def test_cancel_does_not_end_the_encryption(certificate):
    """Another thread may be about to send the key."""
    with with_tls(waiting(OPEN), certificate) as server, make_client(server, verify=False) as client:
        stream = client.stream("hi")
        next(stream)
        sock: Any = stream._response._call._connection.sock
        stream._driver.cancel()
        assert sock.version() is not None
        stream.close()
