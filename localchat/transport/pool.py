"""The idle connections of a client, and what the connections of both drivers have in common. No I/O."""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Any

from .addresses import Proxy

MAX_IDLE_CONNECTIONS = 8
# An idle connection is not reused after this time: a router between may have forgotten it, and a request that is sent
# over it would get no response and no error.
_MAX_IDLE_S = 30.0

# Seconds without a byte before TCP checks whether the peer is still there, between two checks, and their number.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}


def configure(sock: socket.socket) -> None:
    """Send small pieces at once, and notice a peer that has gone without a word, also behind a router."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sock.family != getattr(socket, "AF_UNIX", None):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for name, value in _KEEP_ALIVE.items():
            if hasattr(socket, name):  # Some systems lack some of them.
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class BaseConnection:
    """A connection to the server. A driver makes it, and reads and writes."""

    # The proxy that gets the requests; None without a proxy and for a tunnel through one.
    proxy: Proxy | None = None
    # Whether a request was sent over the connection.
    used = False
    # When the connection was given to the pool, as a time of time.monotonic.
    idle_since = 0.0

    def is_usable(self) -> bool:
        """Whether an idle connection can be reused here: it is open, and has no unread bytes."""
        return False

    def close(self) -> None:
        """Close the connection at once."""


class Pool:
    """The idle connections of one client. The one that was used last is reused first. Safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._idle: list[Any] = []

    def take(self) -> Any:
        """Remove and return a connection that can be reused; None if there is none."""
        self._reset_after_fork()
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return None
            if time.monotonic() - connection.idle_since < _MAX_IDLE_S and connection.is_usable():
                return connection
            connection.close()

    def give(self, connection: BaseConnection) -> None:
        """Keep a connection for the next call, or close it if the pool is full or it cannot be reused."""
        self._reset_after_fork()
        if connection.is_usable():
            connection.idle_since = time.monotonic()
            with self._lock:
                if len(self._idle) < MAX_IDLE_CONNECTIONS:
                    self._idle.append(connection)
                    return
        connection.close()

    def close(self) -> None:
        """Close all idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _reset_after_fork(self) -> None:
        """In a child process, begin with an empty pool: the parent uses the connections, and may hold the lock."""
        if self._process != os.getpid():
            self._process, self._lock, self._idle = os.getpid(), threading.Lock(), []
