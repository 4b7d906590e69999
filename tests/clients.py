"""What the tests of the client share: one for a scripted server, how its calls end, and a resolver."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import localchat.sockets
from localchat import Client

from .raw_server import DEADLINE_S, Server


def make_client(server: Server, **options: Any) -> Client:
    options.setdefault("max_retries", 0)
    options.setdefault("model", "m")
    return Client(server.url, **options)


def failure(server: Server, kind: type[Exception], words: str = ".", **options: Any) -> Any:
    """The error in which one chat with this server ends."""
    with server, make_client(server, **options) as client, pytest.raises(kind, match=words) as caught:
        client.chat("hi")
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
