"""What the tests of the clients share: both clients behind one interface, how their calls end, and a resolver."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import localchat.sockets
from localchat import AsyncClient, Client
from localchat.conversation import AsyncConversation

from .raw_server import DEADLINE_S, Server


class Waiting:
    """An AsyncClient, or what it returns, whose methods wait for their results: the tests of Client run with it too."""

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
        if inspect.isawaitable(value):
            value = self._loop.run_until_complete(asyncio.wait_for(value, DEADLINE_S))
        return Waiting(value, self._loop) if isinstance(value, (AsyncIterator, AsyncConversation)) else value


def waiting_client(*arguments: Any, **options: Any) -> Waiting:
    return Waiting(AsyncClient(*arguments, **options), asyncio.new_event_loop())


@pytest.fixture(params=[Client, waiting_client], ids=["Client", "AsyncClient"])
def client_class(request: pytest.FixtureRequest) -> Any:
    """Each of the two clients: a test that takes this runs with both."""
    return request.param


def make_client(server: Server, client_class: Any = Client, **options: Any) -> Any:
    options.setdefault("max_retries", 0)
    options.setdefault("model", "m")
    return client_class(server.url, **options)


def failure(server: Server, kind: type[Exception], words: str = ".", client_class: Any = Client, **options: Any) -> Any:
    """The error in which one chat with this server ends."""
    with server:
        return failure_at(server.url, kind, words, client_class, **options)


def failure_at(
    url: str, kind: type[Exception], words: str = ".", client_class: Any = Client, prompt: str = "hi", **options: Any
) -> Any:
    """The error in which one chat with the server at this URL ends."""
    client = client_class(url, **{"max_retries": 0, "model": "m", **options})
    with client, pytest.raises(kind, match=words) as caught:
        client.chat(prompt)
    return caught.value


@pytest.fixture
def hanging_resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """An event that is set when the resolver has been asked."""
    asked, released = threading.Event(), threading.Event()

    def hang(*where: Any) -> list[Any]:
        asked.set()
        released.wait(DEADLINE_S)
        return []

    monkeypatch.setattr(localchat.sockets, "addresses", hang)
    yield asked
    released.set()
