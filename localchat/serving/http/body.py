"""Reads the body of an HTTP request, with Content-Length or chunked transfer coding (RFC 9112, 6 and 7)."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from email.message import Message
from typing import Protocol

from ..core import errors

# Limit of a line of a chunked body: a trailer, or the size of a chunk and extensions.
MAX_CHUNK_LINE_BYTES = 4096
# Limit of the number of trailers. Their content is ignored.
MAX_TRAILERS = 100

# Only CRLF ends a line of a chunked body. A proxy and a server that disagree on this would see different requests.
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,12})[ \t]*(;[^\r\n]*)?\r\n")


class Readable(Protocol):
    """A buffered byte stream. `limit` sets the seconds within which all further reads must end."""

    def read(self, size: int, /) -> bytes: ...

    def readline(self, limit: int, /) -> bytes: ...

    def limit(self, seconds: float | None) -> None: ...


class PeerGone(Exception):
    """The client has closed the connection: no response is needed."""


class Body:
    """Reads or skips the body of one request. `send_continue` sends "100 Continue" to a client that waits for it."""

    def __init__(self, headers: Message, stream: Readable, send_continue: Callable[[], None], max_bytes: int) -> None:
        # Whether the whole body has been read, so that the next request follows in the stream.
        self.is_read = False
        self._headers = headers
        self._stream = stream
        self._send_continue = send_continue
        self._max_bytes = max_bytes
        self._pieces = self._framed()

    def read(self) -> bytes:
        """The whole body.

        Raises:
            BodyTooLarge, LengthRequired, MalformedRequest: The framing is wrong, or the body too large.
            PeerGone: The client closed the connection within the body.
        """
        if not self._is_announced:
            self.is_read = True
            raise errors.LengthRequired("a body is needed: send JSON with a Content-Length")
        body = bytearray()
        for piece in self._pieces:
            body += piece
            if len(body) > self._max_bytes:
                raise errors.BodyTooLarge(f"the body is larger than {self._max_bytes} bytes")
        return bytes(body)

    def skip(self, seconds: float) -> None:
        """Read and discard the rest of the body, for at most this many seconds. Sets `is_read` at its end."""
        if self._is_announced and not self.is_read:
            if self._expects_continue:
                return  # The client waits for "100 Continue", so it is unknown whether the body follows.
            self._stream.limit(seconds)
        n_left = self._max_bytes
        with contextlib.suppress(errors.ApiError, OSError):
            for piece in self._pieces:
                n_left -= len(piece)
                if n_left < 0:
                    return

    def _framed(self) -> Iterator[bytes]:
        """The pieces of the body, by its Content-Length or its chunks. Sets `is_read` at the end."""
        lengths, codings = self._lengths(), self._codings()
        if codings:
            # A request with both headers can be smuggled past a proxy (RFC 9112, 6.1).
            if lengths:
                raise errors.MalformedRequest("Content-Length and Transfer-Encoding cannot both be right")
            if codings != ["chunked"]:
                raise errors.MalformedRequest(f"Transfer-Encoding {', '.join(codings)!r} is not 'chunked'", 501)
            self._accept()
            yield from self._chunks()
        elif lengths:
            n = _length(lengths)
            if n > self._max_bytes:
                raise errors.BodyTooLarge(f"the body has {n} bytes, and the limit is {self._max_bytes}")
            self._accept()
            yield from self._exactly(n)
        self.is_read = True

    def _accept(self) -> None:
        if self._expects_continue:
            self._send_continue()
            del self._headers["Expect"]

    @property
    def _is_announced(self) -> bool:
        return bool(self._lengths() or self._codings())

    @property
    def _expects_continue(self) -> bool:
        return self._headers.get("Expect", "").lower() == "100-continue"

    def _lengths(self) -> list[str]:
        return list_of(self._headers.get_all("Content-Length", ()))

    def _codings(self) -> list[str]:
        return [coding.lower() for coding in list_of(self._headers.get_all("Transfer-Encoding", ()))]

    def _chunks(self) -> Iterator[bytes]:
        while True:
            line = self._stream.readline(MAX_CHUNK_LINE_BYTES)
            if not line:
                raise PeerGone
            match = _CHUNK_SIZE.fullmatch(line)
            if match is None:
                raise errors.MalformedRequest(f"a chunk of the body must begin with its size, got {line[:40]!r}")
            size = int(match[1], 16)
            if size == 0:
                return self._trailers()
            yield from self._exactly(size)
            end = self._stream.readline(MAX_CHUNK_LINE_BYTES)
            if not end:
                raise PeerGone
            if end != b"\r\n":
                raise errors.MalformedRequest("a chunk of the body is longer than its size")

    def _trailers(self) -> None:
        for _ in range(MAX_TRAILERS):
            line = self._stream.readline(MAX_CHUNK_LINE_BYTES)
            if not line:
                raise PeerGone
            if line == b"\r\n":
                return
        raise errors.MalformedRequest("too many lines follow the body")

    def _exactly(self, n: int) -> Iterator[bytes]:
        while n > 0:
            piece = self._stream.read(min(n, 65536))
            if not piece:
                raise PeerGone
            n -= len(piece)
            yield piece


def list_of(values: Iterable[str]) -> list[str]:
    """The elements of list headers, stripped of white space as HTTP defines it, unlike `str.strip`."""
    return [part.strip(" \t\r\n") for value in values for part in value.split(",")]


def _length(values: list[str]) -> int:
    first = values[0]
    if len(set(values)) > 1 or not (first.isascii() and first.isdigit() and len(first) < 20):
        raise errors.MalformedRequest(f"Content-Length must be one number, got {', '.join(values)!r}")
    return int(first)
