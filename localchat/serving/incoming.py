"""What a peer sends, for http.server to read: lines of a head that mean one thing, within a time for all of it."""

from __future__ import annotations

import io
import socket
import time
from typing import Any, Optional


class _Source(io.RawIOBase):
    """A socket's bytes. `deadline` is when all that is wanted must be there; without it each wait has the socket's."""

    def __init__(self, sock: socket.socket) -> None:
        self.deadline: Optional[float] = None
        self._socket = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self.deadline is not None:
            # A peer that sends a byte now and then would hold its thread for ever.
            left_s = self.deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("the head of a request took too long")
            self._socket.settimeout(left_s)
        return self._socket.recv_into(buffer)


class Incoming(io.BufferedReader):
    """Bytes of one connection, with a buffer.

    `is_ambiguous` tells whether, since `begin_head`, a line held a carriage return that does not end it, or a NUL,
    or went on with the line before: parsers differ on these, so that what is one header to a proxy could be two here.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._source = _Source(sock)
        super().__init__(self._source)
        self._socket = sock
        self.is_ambiguous = False

    def begin_head(self, seconds: float) -> None:
        """What comes now must be whole in so many seconds."""
        self.is_ambiguous = False
        self._source.deadline = time.monotonic() + seconds

    def end_head(self, timeout_s: float) -> None:
        """From now on each wait has a time of its own."""
        self._source.deadline = None
        self._socket.settimeout(timeout_s)

    def readline(self, size: Optional[int] = -1, /) -> bytes:
        line = super().readline(size)
        text = line[:-2] if line.endswith(b"\r\n") else line
        self.is_ambiguous |= b"\r" in text or b"\0" in text or text.startswith((b" ", b"\t"))
        return line
