"""The idle connections of a client, and the options of their sockets. No I/O."""

from __future__ import annotations

import socket
import time
from typing import Any

MAX_IDLE_CONNECTIONS = 8
# An idle connection is not reused later: a router may have dropped it, and a request would get no answer and no error.
_MAX_IDLE_S = 30.0

# TCP checks whether the peer is still there: after these seconds without a byte, again after these, this many times.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}


def configure(sock: socket.socket) -> None:
    """Send small pieces at once, and notice a peer that has vanished, also behind a router."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sock.family != getattr(socket, "AF_UNIX", None):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for name, value in _KEEP_ALIVE.items():
            if hasattr(socket, name):  # Some systems lack some of them.
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Pool:
    """The idle connections of one client, the last used first. It has no lock: the operations of a list are atomic."""

    def __init__(self) -> None:
        self._idle: list[tuple[Any, float]] = []  # Each with the time at which it was given, by time.monotonic.

    def take(self) -> Any:
        """Remove and return a connection that can be reused; None if there is none."""
        while True:
            try:
                connection, idle_since = self._idle.pop()
            except IndexError:
                return None
            if time.monotonic() - idle_since < _MAX_IDLE_S and connection.is_usable():
                return connection
            connection.close()

    def give(self, connection: Any) -> None:
        """Keep a connection for the next call, or close it if the pool is full or it cannot be reused."""
        if len(self._idle) < MAX_IDLE_CONNECTIONS and connection.is_usable():
            self._idle.append((connection, time.monotonic()))
        else:
            connection.close()

    def close(self) -> None:
        """Close all idle connections."""
        idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close()
