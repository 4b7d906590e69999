"""A request as it arrives: bytes with deadlines, checks of its head, and its body (RFC 9112)."""

from __future__ import annotations

import contextlib
import io
import re
import socket
import time
import zlib
from email import errors as defects
from email.message import Message
from typing import Any

from ..core import errors

# A body must arrive within this many seconds, and one more for each `MIN_BODY_RATE` bytes that have arrived. A timeout
# for each read would let a client that sends single bytes occupy a thread for hours.
BODY_TIMEOUT_S = 30.0
MIN_BODY_RATE = 16 * 1024

MAX_CHUNK_LINE_BYTES = 4096  # Limit of a line of a chunked body: a trailer, or the size of a chunk and extensions.
MAX_TRAILERS = 100  # Limit of the number of trailers. Their content is ignored.

_COMPRESSIONS = ("gzip", "x-gzip", "deflate")
# The window sizes (zlib's `wbits`) to try: gzip or zlib by the header, then none, as some clients send "deflate".
_WINDOWS = (47, -15)
_MAX_MEMBERS = 16  # Limit of the members of a compressed body. Each copies what follows it.

# Only CRLF ends a line of a chunked body. A proxy and a server that disagree on this would see different requests.
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,12})[ \t]*(;[^\r\n]*)?\r\n")

# Defects of the lines of a head. The other ones concern multipart bodies, which Python's parser misses behind the head.
_BROKEN_LINES = (defects.FirstHeaderLineIsContinuationDefect, defects.MissingHeaderBodySeparatorDefect)


class _Source(io.RawIOBase):
    """The bytes of a socket. Reads fail after `deadline`, which each byte that arrives postpones by `s_per_byte`."""

    deadline = s_per_byte = 0.0

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise socket.timeout("the request took too long to arrive")
        self._socket.settimeout(left_s)
        n = self._socket.recv_into(buffer)
        self.deadline += n * self.s_per_byte
        return n


class Incoming(io.BufferedReader):
    """What a client sends on a connection, with a deadline for all reads together."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._source = _Source(sock)
        super().__init__(self._source)
        self.begin_head()

    def begin_head(self) -> None:
        """Forget what was noted about the lines of the request before."""
        # Whether a line has a NUL or a carriage return within it, or continues the line before. Parsers differ on such
        # lines: a proxy could see one header where this server sees two.
        self.is_ambiguous = False
        # Whether the connection ended where a line should end or begin. To `http.client` that is the end of the head.
        self.is_cut = False

    def require_within(self, seconds: float, s_per_byte: float = 0) -> None:
        """Require that all further reads end within this time, and so much more for each byte that arrives."""
        self._source.deadline, self._source.s_per_byte = time.monotonic() + seconds, s_per_byte

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(size)
        self.is_cut |= not line.endswith(b"\n")
        text = line[:-2] if line.endswith(b"\r\n") else line
        self.is_ambiguous |= b"\r" in text or b"\0" in text or text.startswith((b" ", b"\t"))
        return line


def problem_of(version: str, headers: Message, stream: Incoming) -> str | None:
    """The error in the head of a request; None if it is valid."""
    if stream.is_cut:
        return "the connection ended before the head of the request: end the head with an empty line"
    if stream.is_ambiguous:
        return "the headers are broken: a line has a carriage return or NUL, or begins with a space"
    if any(isinstance(defect, _BROKEN_LINES) for defect in headers.defects):
        return "the headers are broken: each line must be a name, a colon and a value"
    for name in ("Host", "Origin"):
        n = len(headers.get_all(name, ()))
        if n > 1:
            return f"a request has one {name} header at most, this one has {n}"
    if version >= "HTTP/1.1" and "Host" not in headers:
        return "a request of HTTP/1.1 needs a Host header"
    return None


def list_of(headers: Message, name: str) -> list[str]:
    """The elements of list headers in lower case, stripped of white space as HTTP defines it, unlike `str.strip`."""
    return [part.strip(" \t\r\n").lower() for value in headers.get_all(name, ()) for part in value.split(",")]


def has_body(headers: Message) -> bool:
    return "Transfer-Encoding" in headers or list_of(headers, "Content-Length") not in ([], ["0"])


def read_body(stream: Incoming, version: str, headers: Message, max_bytes: int) -> bytes:
    """The whole body, which may be compressed. Raises ApiError if it is wrong, too large or too slow, or OSError."""
    lengths, codings = list_of(headers, "Content-Length"), list_of(headers, "Transfer-Encoding")
    if not lengths and not codings:
        raise errors.HttpError(411, "length_required", "a body is needed: send JSON with a Content-Length")
    # A request with both headers can be smuggled past a proxy (RFC 9112, 6.1).
    if lengths and codings:
        raise errors.HttpError(400, None, "Content-Length and Transfer-Encoding cannot both be right")
    if codings not in ([], ["chunked"]):
        raise errors.HttpError(501, None, f"Transfer-Encoding {', '.join(codings)!r} is not 'chunked'")
    _compression(headers)  # A body that cannot be decompressed is not read.
    n_bytes = _length(lengths) if lengths else 0
    _check_size(n_bytes, max_bytes)
    # HTTP/1.0 has no "100 Continue" (RFC 9110, 10.1.1).
    if version >= "HTTP/1.1" and headers.get("Expect", "").lower() == "100-continue":
        stream.socket.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    stream.require_within(BODY_TIMEOUT_S, 1 / MIN_BODY_RATE)
    try:
        body = _read_chunks(stream, max_bytes) if codings else _read(stream, n_bytes)
    except socket.timeout as error:
        message = f"the body took too long to arrive: send {MIN_BODY_RATE} bytes per second or more"
        raise errors.HttpError(408, None, message) from error
    return bytes(body)


def _compression(headers: Message) -> str:
    """How the body is compressed; "" if it is not."""
    codings = [coding for coding in list_of(headers, "Content-Encoding") if coding not in ("", "identity")]
    if len(codings) > 1 or not set(codings) <= {*_COMPRESSIONS}:
        message = f"Content-Encoding {', '.join(codings)!r} is not 'gzip' or 'deflate'"
        raise errors.HttpError(415, "unsupported_content_encoding", message, {"Accept-Encoding": "gzip, deflate"})
    return codings[0] if codings else ""


def _read(stream: Incoming, n_bytes: int) -> bytes:
    data = stream.read(n_bytes)
    if len(data) < n_bytes:
        raise ConnectionAbortedError
    return data


def _read_chunks(stream: Incoming, max_bytes: int) -> bytearray:
    body = bytearray()
    while True:
        line = _read_line(stream)
        match = _CHUNK_SIZE.fullmatch(line)
        if match is None:
            raise errors.HttpError(400, None, f"a chunk of the body must begin with its size, got {line[:40]!r}")
        n_bytes = int(match[1], 16)
        if n_bytes == 0:
            break
        _check_size(len(body) + n_bytes, max_bytes)
        body += _read(stream, n_bytes)
        if _read_line(stream) != b"\r\n":
            raise errors.HttpError(400, None, "a chunk of the body is longer than its size")
    if not any(_read_line(stream) == b"\r\n" for _ in range(MAX_TRAILERS)):
        raise errors.HttpError(400, None, "too many lines follow the body")
    return body


def _read_line(stream: Incoming) -> bytes:
    line = stream.readline(MAX_CHUNK_LINE_BYTES)
    if not line:
        raise ConnectionAbortedError
    return line


def _check_size(n_bytes: int, max_bytes: int) -> None:
    if n_bytes > max_bytes:
        message = f"the body has {n_bytes} bytes or more, and the limit is {max_bytes}"
        raise errors.HttpError(413, "body_too_large", message)


def _length(values: list[str]) -> int:
    first = values[0]
    if len(set(values)) > 1 or not (first.isascii() and first.isdigit() and len(first) < 20):
        raise errors.HttpError(400, None, f"Content-Length must be one number, got {', '.join(values)!r}")
    return int(first)


def decompressed(body: bytes, headers: Message, max_bytes: int) -> bytes:
    """A body without its compression. Raises ApiError if it is damaged, or larger than the limit."""
    coding = _compression(headers)
    if not coding:
        return body
    for window in _WINDOWS:
        with contextlib.suppress(zlib.error, EOFError):
            return _inflated(body, window, max_bytes)
    raise errors.BadRequest(f"the body is damaged: it is not what Content-Encoding {coding!r} says", "body")


def _inflated(body: bytes, window: int, max_bytes: int) -> bytes:
    """The content of one or several compressed members (RFC 1952, 2.2). Raises zlib.error, or EOFError if it is cut."""
    plain, compressed = bytearray(), body
    for _ in range(_MAX_MEMBERS):
        inflater = zlib.decompressobj(window)
        plain += inflater.decompress(compressed, max_bytes + 1 - len(plain))
        _check_size(len(plain), max_bytes)
        compressed = inflater.unused_data
        if not inflater.eof:
            raise EOFError
        if not compressed:
            return bytes(plain)
    raise EOFError
