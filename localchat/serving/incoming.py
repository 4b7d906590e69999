"""What a peer sends, for http.server to read: lines of a head that mean one thing, within a time for all of it."""

from __future__ import annotations

import io
import socket
import time
from typing import Any


class _Source(io.RawIOBase):
    """A socket's bytes. `deadline` is when all that is wanted must be there; without it each wait has the socket's."""

    def __init__(self, sock: socket.socket) -> None:
        self.deadline: float | None = None
        self._socket = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self.deadline is None:
            return self._socket.recv_into(buffer)
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("what was to come took too long")
        timeout_s = self._socket.gettimeout()
        self._socket.settimeout(left_s)
        try:
            return self._socket.recv_into(buffer)
        finally:
            self._socket.settimeout(timeout_s)


class Incoming(io.BufferedReader):
    """Bytes of one connection, with a buffer.

    `is_ambiguous` tells whether, since `begin_head`, a line held a carriage return that does not end it, or a NUL,
    or went on with the line before: parsers differ on these, so that what is one header to a proxy could be two here.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._source = _Source(sock)
        super().__init__(self._source)
        self.is_ambiguous = False

    def limit(self, seconds: float | None) -> None:
        """All that is read from now on must come within so many seconds; None gives each wait the socket's time.

        A peer that sends a byte now and then would otherwise hold its thread for ever.
        """
        self._source.deadline = None if seconds is None else time.monotonic() + seconds

    def begin_head(self, seconds: float) -> None:
        """The head of a request comes next; its first line must be whole within this many seconds."""
        self.is_ambiguous = False
        self.limit(seconds)

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(size)
        text = line[:-2] if line.endswith(b"\r\n") else line
        self.is_ambiguous |= b"\r" in text or b"\0" in text or text.startswith((b" ", b"\t"))
        return line
