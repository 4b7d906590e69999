"""The asynchronous client: cancelled tasks and event loops. Its other tests are in test_client*.py."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from localchat import AsyncClient
from localchat.transport.call import DRAIN_S
from tests.support.raw_server import (
    DEADLINE_S,
    HELLO,
    OPEN,
    Peer,
    Server,
    always,
    interrupted,
    waiting,
    with_length,
    with_tls,
)


def run(url: str, use: Callable[[AsyncClient], Awaitable[Any]], **options: Any) -> Any:
    """The result of `use`, called with a client of the server at this URL."""

    async def main() -> Any:
        async with AsyncClient(url, max_retries=0, model="m", **options) as client:
            return await asyncio.wait_for(use(client), DEADLINE_S)

    return asyncio.run(main())


async def chat_text(client: AsyncClient) -> str:
    return (await client.chat("hi")).text


async def until(event: threading.Event) -> None:
    """Wait for an event that a thread sets, without blocking the loop."""
    while not event.is_set():
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("parts", [(), (OPEN,)], ids=["before-the-response", "in-the-response"])
@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_cancelled_task_closes_the_connection_at_once(parts, tls, certificate):
    server = with_tls(waiting(*parts), certificate) if tls else waiting(*parts)

    async def cancel(client: AsyncClient) -> None:
        task = asyncio.ensure_future(client.chat("hi"))
        await until(server.sent)
        task.cancel()
        start = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(server.left)
        assert time.monotonic() - start < 0.5  # A millisecond on an idle machine.

    with server:
        run(server.url, cancel, verify=False)


def test_idle_connection_with_unread_bytes_is_not_reused():
    """The server sends a 408 and closes the connection while it is idle."""
    left = threading.Event()

    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        peer.send(HELLO)
        peer.send(with_length(b"idle for too long", "408 Request Timeout", "Connection: close\r\n"))
        peer.sock.shutdown(socket.SHUT_WR)
        left.set()
        peer.request()

    async def twice(client: AsyncClient) -> str:
        texts = [await chat_text(client)]
        await until(left)
        await asyncio.sleep(0.01)
        return texts[0] + await chat_text(client)

    with Server(handle) as server:
        assert run(server.url, twice) == "HelloHello"


def test_timeout_that_expires_while_the_loop_is_busy_does_not_end_the_next_call():
    """The end of the first response is received in the same iteration of the loop in which its timeout expires."""
    late = threading.Event()

    def be_busy() -> None:
        late.set()
        time.sleep(2 * DRAIN_S)

    async def twice(client: AsyncClient) -> str:
        async with client.stream("hi") as stream:
            async for event in stream:
                if event.type == "usage":
                    asyncio.get_running_loop().call_later(0.001, be_busy)
        return stream.reply.text + await chat_text(client)

    with interrupted(late, HELLO[:-5], HELLO[-5:]) as server:
        assert run(server.url, twice) == "HelloHello"


def test_client_in_a_second_event_loop():
    with always(HELLO) as server:
        client = AsyncClient(server.url, model="m")

        async def call() -> str:
            text = await chat_text(client)
            await client.close()
            return text

        assert [asyncio.run(call()) for _ in range(2)] == ["Hello"] * 2


# asyncio before Python 3.11 warns of the transport of each handshake that was cancelled.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_cancels_at_any_moment_do_not_disturb_other_calls(certificate):
    """If a socket were closed while asyncio watches it, a new socket could get its file number."""
    server = with_tls(always(HELLO), certificate)

    async def call(client: AsyncClient, chance: random.Random) -> None:
        for _ in range(40):
            task = asyncio.ensure_future(chat_text(client))
            await asyncio.wait([task], timeout=chance.random() * 0.02)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                assert await task == "Hello"

    async def call_all(client: AsyncClient) -> None:
        await asyncio.gather(*(call(client, random.Random(seed)) for seed in range(6)))

    with server:
        run(server.url, call_all, verify=False)
