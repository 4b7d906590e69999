"""Limits the number of open connections, and closes idle ones before it refuses new ones."""

from __future__ import annotations

import contextlib
import socket
import threading


class Connections:
    """The open connections: at most `limit` that are served, and as many again that are being refused or closed."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        # Guards the attributes below, and is notified when a connection ends. Reentrant.
        self._changed = threading.Condition()
        self._open: set[socket.socket] = set()
        # Open connections that do not count towards the limit: those being refused, and idle ones being closed.
        self._surplus: set[socket.socket] = set()
        # Connections that wait for a request. The one that has been idle for longest is first.
        self._idle: dict[socket.socket, None] = {}

    def add(self, sock: socket.socket) -> bool:
        """Count a new connection. False: it must be closed without a response, which would need one more thread."""
        with self._changed:
            if len(self._open) >= 2 * self.limit:
                return False
            self._open.add(sock)
            if len(self._open) - len(self._surplus) > self.limit and not self.close_idle():
                self._surplus.add(sock)
            return True

    def is_surplus(self, sock: socket.socket) -> bool:
        """Whether this connection exceeds the limit, or was idle and is being closed."""
        with self._changed:
            return sock in self._surplus

    def remove(self, sock: socket.socket) -> None:
        with self._changed:
            self._open.discard(sock)
            self._surplus.discard(sock)
            self._idle.pop(sock, None)
            self._changed.notify_all()

    def set_idle(self, sock: socket.socket) -> None:
        """Mark a connection that waits for its next request or its end, so that it may be closed at any time."""
        with self._changed:
            if sock not in self._surplus:
                self._idle[sock] = None

    def set_busy(self, sock: socket.socket) -> None:
        """Mark a connection on which a request has arrived."""
        with self._changed:
            self._idle.pop(sock, None)

    def close_idle(self) -> bool:
        """Close the connection that has been idle for longest; False if none is idle."""
        with self._changed:
            sock = next(iter(self._idle), None)
            if sock is None:
                return False
            del self._idle[sock]
            self._surplus.add(sock)
            shut_down(sock, socket.SHUT_RDWR)
            return True

    def close_all(self, timeout_s: float) -> None:
        """Shut down all connections for reading, and those still open after this many seconds for writing too."""
        with self._changed:
            for how in (socket.SHUT_RD, socket.SHUT_RDWR):
                for sock in self._open:
                    shut_down(sock, how)
                if self._changed.wait_for(lambda: not self._open, timeout_s):
                    return


def shut_down(sock: socket.socket, how: int) -> None:
    """Shut down a connection, from any thread.

    This calls `socket.shutdown` for TLS too. `SSLSocket.shutdown` would end the encryption, and the thread that uses
    the connection would continue without it.
    """
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, how)
