"""What the tests of the clients share: both clients behind one interface, how their calls end, and a resolver."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import localchat.sockets
from localchat import AsyncClient, Client

from .raw_server import DEADLINE_S, Server


class WaitingClient:
    """An AsyncClient whose methods wait for their results, so that the tests of Client run with it too."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._client = AsyncClient(*arguments, **options)
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> WaitingClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self._run(self._client.close())
        self._loop.close()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        return lambda *arguments, **options: self._run(method(*arguments, **options))

    def _run(self, coroutine: Any) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(coroutine, DEADLINE_S))

    def stream(self, *arguments: Any, **options: Any) -> WaitingStream:
        return WaitingStream(self._run, self._client.stream(*arguments, **options))

    def run_stream(self, *arguments: Any, **options: Any) -> WaitingStream:
        return WaitingStream(self._run, self._client.run_stream(*arguments, **options))


class WaitingStream:
    """A stream of an AsyncClient, to be iterated without `async`."""

    def __init__(self, run: Any, stream: Any) -> None:
        self._run, self._stream = run, stream

    def __enter__(self) -> WaitingStream:
        self._run(self._stream.__aenter__())
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return self._run(self._stream.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    @property
    def text(self) -> Iterator[str]:
        texts = self._stream.text
        with contextlib.suppress(StopAsyncIteration):
            while True:
                yield self._run(texts.__anext__())

    def close(self) -> None:
        self._run(self._stream.close())


@pytest.fixture(params=[Client, WaitingClient], ids=["Client", "AsyncClient"])
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
