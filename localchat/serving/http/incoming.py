"""The bytes that a client sends, as a file for http.server: reads have deadlines, and header lines are checked."""

from __future__ import annotations

import io
import socket
import time
from email import errors as defects
from email.message import Message
from typing import Any

# Defects of multipart bodies. Python's parser reports them here because it gets the head without the body.
_DEFECTS_OF_BODIES = (
    defects.NoBoundaryInMultipartDefect,
    defects.StartBoundaryNotFoundDefect,
    defects.MultipartInvariantViolationDefect,
    defects.InvalidMultipartContentTransferEncodingDefect,
)

# How long a client may take to send the next bytes of a body.
READ_TIMEOUT_S = 30.0


class _Source(io.RawIOBase):
    """The bytes of a socket."""

    def __init__(self, sock: socket.socket) -> None:
        # The time at which reads fail; None: each read has `READ_TIMEOUT_S`.
        self.deadline: float | None = None
        self._socket = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = READ_TIMEOUT_S if self.deadline is None else self.deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the request took too long to arrive")
        timeout_s = self._socket.gettimeout()
        self._socket.settimeout(left_s)
        try:
            return self._socket.recv_into(buffer)
        finally:
            self._socket.settimeout(timeout_s)


class Incoming(io.BufferedReader):
    """The buffered bytes of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self._source = _Source(sock)
        super().__init__(self._source)
        # Whether a line since `begin_head` has a NUL or a carriage return within it, or continues the line before.
        # Parsers differ on such lines: a proxy could see one header where this server sees two.
        self.is_ambiguous = False

    def limit(self, seconds: float | None) -> None:
        """Require that all further reads end within this many seconds. None: each read has `READ_TIMEOUT_S`.

        A timeout for each read would let a client that sends single bytes occupy a thread forever.
        """
        self._source.deadline = None if seconds is None else time.monotonic() + seconds

    def begin_head(self, seconds: float) -> None:
        """Begin to read the head of a request, whose first line must arrive within this many seconds."""
        self.is_ambiguous = False
        self.limit(seconds)

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(size)
        text = line[:-2] if line.endswith(b"\r\n") else line
        self.is_ambiguous |= b"\r" in text or b"\0" in text or text.startswith((b" ", b"\t"))
        return line


def problem_of(version: str, headers: Message) -> str | None:
    """The error in the headers of a request; None if they are valid."""
    if not all(isinstance(defect, _DEFECTS_OF_BODIES) for defect in headers.defects):
        return "the headers are broken: each line must be a name, a colon and a value"
    for name in ("Host", "Origin"):
        n = len(headers.get_all(name, ()))
        if n > 1:
            return f"a request has one {name} header at most, this one has {n}"
    if version >= "HTTP/1.1" and "Host" not in headers:
        return "a request of HTTP/1.1 needs a Host header"
    return None
