"""Servers that make a client wait, or that close its connection."""

import contextlib
import functools
import socket
import threading
import time
from collections.abc import Iterator

from tests.support.deadline import DEADLINE_S
from tests.support.raw_server import Peer, Server


def waiting(*parts: bytes) -> Server:
    """Sends the parts, then nothing until the client disconnects."""

    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        peer.send(*parts)
        server.sent.set()
        assert peer.is_disconnected()
        server.left.set()

    return Server(handle)


def interrupted(event: threading.Event, first: bytes, rest: bytes) -> Server:
    """Sends the first part of each response, waits for the event, and sends the rest."""

    def handle(peer: Peer, server: Server) -> None:
        while peer.request() is not None:
            peer.send(first)
            assert event.wait(DEADLINE_S)
            peer.send(rest)

    return Server(handle)


def responding_once(raw: bytes) -> Server:
    """Sends the bytes and closes."""
    return Server(lambda peer, server: (peer.request(), peer.send(raw)))


@contextlib.contextmanager
def full_listener() -> Iterator[int]:
    """The port of a listener whose queue is full, so that it accepts no connection."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port = listener.getsockname()[1]
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        yield port


@contextlib.contextmanager
def silent() -> Iterator[int]:
    """The port of a server that accepts and then neither reads nor writes."""
    done = threading.Event()
    with Server(lambda peer, server: done.wait(DEADLINE_S)) as server:
        try:
            yield server.port
        finally:
            done.set()


def dripping(*parts: bytes, drop: bytes = b"X: y\r\n") -> Server:
    """Sends the parts, then repeats the same few bytes."""

    def handle(peer: Peer, server: Server) -> None:
        peer.request()
        peer.send(*parts)
        while True:
            peer.send(drop)
            time.sleep(0.005)  # The pace of the drops; nothing waits for it.

    return Server(handle)


pinging = functools.partial(dripping, drop=b"8\r\n: ping\n\n\r\n")
