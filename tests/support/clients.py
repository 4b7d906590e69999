"""Helpers for the tests of both clients: one interface for both, the errors of their calls, and a hanging resolver."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

import localchat.transport.addresses
import localchat.transport.aio_sockets
import localchat.transport.sockets
from localchat import AsyncClient, Client
from localchat.agent.conversation import AsyncConversation
from tests.support.deadline import DEADLINE_S
from tests.support.raw_server import Server


class Waiting:
    """Wraps an AsyncClient or an object that it returned. Its methods wait, so that tests of Client run with it too."""

    def __init__(self, target: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._target, self._loop = target, loop

    def __enter__(self) -> Waiting:
        self._waited(self._target.__aenter__())
        return self

    def __exit__(self, *exception: object) -> None:
        self._waited(self._target.__aexit__(*exception))
        if isinstance(self._target, AsyncClient):
            self._loop.close()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if callable(value):
            return lambda *arguments, **options: self._waited(value(*arguments, **options))
        return self._waited(value)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return self._waited(self._target.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def _waited(self, value: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():  # Which runs the loop.
            return asyncio.run_coroutine_threadsafe(value, self._loop).result(DEADLINE_S)
        if inspect.isawaitable(value) and not isinstance(value, AsyncIterator):
            value = self._loop.run_until_complete(asyncio.wait_for(value, DEADLINE_S))
        return (
            Waiting(value, self._loop) if isinstance(value, (AsyncClient, AsyncConversation, AsyncIterator)) else value
        )


def waiting_client(*arguments: Any, **options: Any) -> Waiting:
    return Waiting(AsyncClient(*arguments, **options), asyncio.new_event_loop())


def run_async(url: str, use: Callable[[AsyncClient], Awaitable[Any]], **options: Any) -> Any:
    """The result of `use`, called with a client of the server at this URL."""

    async def main() -> Any:
        async with AsyncClient(url, **{"max_retries": 0, "model": "m", **options}) as client:
            return await asyncio.wait_for(use(client), DEADLINE_S)

    return asyncio.run(main())


async def until(event: threading.Event) -> None:
    """Wait for an event that a thread sets, without blocking the loop."""
    while not event.is_set():
        await asyncio.sleep(0.001)


@pytest.fixture(params=[Client, waiting_client], ids=["Client", "AsyncClient"])
def client_class(request: pytest.FixtureRequest) -> Any:
    """A test with this fixture runs with each of the two clients."""
    return request.param


def make_client(server: Server, client_class: Any = Client, **options: Any) -> Any:
    return client_class(server.url, **{"max_retries": 0, "model": "m", **options})


def failure(server: Server, kind: type[Exception], words: str = ".", client_class: Any = Client, **options: Any) -> Any:
    """The error that a chat with this server raises."""
    with server:
        return failure_at(server.url, kind, words, client_class, **options)


def failure_at(url, kind, words=".", client_class=Client, prompt="hi", **options):
    """The error that a chat with the server at this URL raises."""
    client = client_class(url, **{"max_retries": 0, "model": "m", **options})
    with client, pytest.raises(kind, match=words) as caught:
        client.chat(prompt)
    return caught.value


@pytest.fixture
def hanging_resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Make the resolver hang until the end of the test; the event is set when the resolver is called."""
    called, released = threading.Event(), threading.Event()

    def hang(host: str, port: int, flags: int = 0) -> list[Any]:
        if flags:  # No resolver is needed for an IP address.
            raise OSError(host)
        called.set()
        released.wait(DEADLINE_S)
        return []

    for module in (localchat.transport.addresses, localchat.transport.sockets, localchat.transport.aio_sockets):
        monkeypatch.setattr(module, "look_up", hang)
    yield called
    released.set()
