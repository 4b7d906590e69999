"""Cancelling: a stream is closed at any moment of a call, and the thread or task that reads it ends at once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from localchat import AsyncClient, Cancelled, Client, Timeout

from .clients import make_client
from .raw_server import (
    DEADLINE_S,
    HELLO,
    OPEN,
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


def close_in_a_thread(waits: threading.Event, url: str, prompt: str = "hi", **options: Any) -> None:
    """Close a stream in another thread when `waits` is set."""
    with Client(url, **options) as client:
        stream = client.stream(prompt)
        thread = threading.Thread(target=lambda: (waits.wait(DEADLINE_S), stream.close()))
        thread.start()
        with pytest.raises(Cancelled):
            list(stream)
        thread.join(DEADLINE_S)


def close_in_a_task(waits: threading.Event, url: str, prompt: str = "hi", **options: Any) -> None:
    """Close a stream in another task when `waits` is set."""

    async def close(stream: Any) -> None:
        while not waits.is_set():
            await asyncio.sleep(0.001)
        await stream.close()

    async def main() -> None:
        async with AsyncClient(url, **options) as client:
            stream = client.stream(prompt)
            closing = asyncio.ensure_future(close(stream))
            with pytest.raises(Cancelled):
                async for _ in stream:
                    pass
            await closing

    asyncio.run(asyncio.wait_for(main(), DEADLINE_S))


@pytest.fixture(params=[close_in_a_thread, close_in_a_task])
def close_when(request: pytest.FixtureRequest) -> Callable[..., None]:
    """A test with this fixture runs with each of the two clients, and fails if the stream does not end at once."""

    def close(waits: threading.Event, url: str, **options: Any) -> None:
        start = time.monotonic()
        request.param(waits, url, **{"model": "m", **options})
        assert time.monotonic() - start < DEADLINE_S / 2

    return close


def set_after(seconds: float) -> threading.Event:
    event = threading.Event()
    threading.Timer(seconds, event.set).start()
    return event


@pytest.mark.parametrize("model", ["m", None])
def test_close_while_waiting_for_the_response(model, close_when):
    """Without a model, the first response is the list of models."""
    with waiting() as server:
        close_when(server.sent, server.url, model=model)


@pytest.mark.parametrize("kind", ["http", "https", "unix", "until-close"])
def test_close_while_reading_the_response(kind, certificate, tmp_path, close_when):
    """A response that ends with its connection is cut as well."""
    server = waiting(until_close(piece("a")) if kind == "until-close" else OPEN)
    if kind == "https":
        with_tls(server, certificate)
    elif kind == "unix":
        at_unix_socket(server, tmp_path / "s")
    with server:
        close_when(server.sent, f"unix:{tmp_path}/s" if kind == "unix" else server.url, verify=False)


def test_close_while_waiting_to_retry(close_when):
    waits = threading.Event()
    with always(with_length(b"{}", "503 Loading", "Retry-After: 60\r\n")) as server:
        close_when(waits, server.url, max_retries=2, on_retry=lambda *_: waits.set())


@pytest.mark.parametrize(("scheme", "listening"), [("http", full_listener), ("https", silent_server)])
def test_close_while_it_connects(scheme, listening, close_when):
    """The http server accepts no connection, the https server does no handshake."""
    with listening() as port:
        close_when(set_after(0.05), f"{scheme}://127.0.0.1:{port}/v1", timeout=Timeout(connect=None))


def test_close_while_the_request_is_sent(close_when):
    with silent_server() as port:
        close_when(set_after(0.3), f"http://127.0.0.1:{port}/v1", prompt="x" * 30_000_000)


def test_close_while_the_resolver_hangs(hanging_resolver, close_when):
    close_when(hanging_resolver, "http://h.example/v1", timeout=Timeout(connect=None))


def test_leaving_the_with_cancels(client_class):
    with waiting(OPEN) as server, make_client(server, client_class) as client:
        with client.stream("hi") as stream:
            assert next(stream.text) == "a"
        assert server.left.wait(DEADLINE_S)
        assert stream.reply.text == "a"
        with pytest.raises(Cancelled):
            next(stream)


def test_dropping_the_stream_closes_its_connection():
    """C17, without a with."""
    with waiting(OPEN) as server, make_client(server) as client:
        stream = client.stream("hi")
        next(stream)
        del stream
        assert server.left.wait(DEADLINE_S)


def test_blocking_client_in_the_thread_of_an_event_loop():
    async def main(client: Client) -> str:
        with client.stream("hi") as stream:
            return next(stream.text) + client.chat("hi").text + client.run("hi").text

    with always(HELLO) as server, make_client(server) as client:
        assert asyncio.run(main(client)) == "HelHelloHello"


def test_cancel_does_not_end_the_encryption(certificate):
    """Another thread may be about to send the key."""
    with with_tls(waiting(OPEN), certificate) as server, make_client(server, verify=False) as client:
        stream = client.stream("hi")
        next(stream)
        sock: Any = stream._response._call._connection.sock
        stream._driver.cancel()
        assert sock.version() is not None
        stream.close()
