"""HTTP/1.1 without I/O: the head of a request to bytes, the bytes of a response to status, headers and body.

Knows nothing of sockets, JSON or chat. `ResponseReader` raises ProtocolError for what is not HTTP and
IncompleteStream where the connection ends before the response does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .errors import IncompleteStream, ProtocolError, cut

# What HTTP calls a token.
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

# More than servers send, and enough to fill no memory.
_MAX_HEAD_BYTES = 256 * 1024
_MAX_LINE_BYTES = 65536

_STATUS_LINE = re.compile(r"HTTP/1\.(\d) +(\d{3})(?: |$)")
_EMPTY_LINE = re.compile(rb"\n\r?\n")
# The end of a chunk and the size of the next one, and how far that may have come where the bytes end.
_CHUNK_SIZE = re.compile(rb"\r?\n[ \t]*([0-9a-fA-F]{1,15})[ \t]*(?:;[^\n]*)?\r?\n")
_CHUNK_SIZE_BEGUN = re.compile(rb"\r?|\r?\n[ \t]*[0-9a-fA-F]{0,15}[ \t]*(?:;[^\n]*)?\r?")


def check_method(method: str) -> None:
    """Raise ValueError for a method that HTTP does not allow."""
    if not _TOKEN.fullmatch(method):
        raise ValueError(f"this is no method of HTTP: {cut(method, 40)!r}")


def check_header(name: str, value: str) -> None:
    """Raise ValueError for a header that would not be one header on the wire."""
    if not _TOKEN.fullmatch(name):
        raise ValueError(f"this is no name of a header: {cut(name, 40)!r}")
    if not isinstance(value, str) or not value.isascii() or not value.isprintable():
        raise ValueError(f"the header {name} is no text, or has characters that cannot be sent, such as a line end")


def request_head(line: str, headers: Mapping[str, str]) -> bytes:
    """The head of a request. Nothing in it can end a line: `check_header` has been called."""
    return "\r\n".join([line, *(f"{name}: {value}" for name, value in headers.items()), "", ""]).encode("ascii")


class ResponseReader:
    """One HTTP/1 response: bytes in, body out.

    `status` is 0 until the head is complete; `begun` tells whether any byte has come. Once `ended`, `rest` is
    what came after the response. A `fault` in the framing of the body is the reason why no more can be read of it.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[str, str]] = []
        self.keeps_alive = False
        self.ended = False
        self.rest = b""
        self.begun = False
        self.fault = ""
        # What an unfinished head or line has so far, and how many bytes are missing.
        self._held = b""
        self._left = 0
        self._step = ResponseReader._take_head

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes and return what they hold of the body.

        Raises:
            ProtocolError: This is no HTTP.
        """
        self.begun = self.begun or data != b""
        if self.ended or self.fault:
            self.rest += data
            return b""
        data, self._held = self._held + data, b""
        return self._step(self, data)

    def feed_end(self) -> None:
        """The connection has ended.

        Raises:
            IncompleteStream: Before the response did.
        """
        if self._step is ResponseReader._take_rest:
            self.ended = True
        if not self.ended:
            missing = f"{self._left} bytes" if self._left else "at least one chunk"
            raise IncompleteStream(f"the connection ended {missing if self.status else 'the headers'} too early")

    # Each step takes bytes and returns body. Plain functions: bound methods would make it refer to itself.

    def _take_head(self, data: bytes) -> bytes:
        while not self.status:
            if not b"HTTP/".startswith(data[:5]):
                raise ProtocolError(f"this is no HTTP: {cut(data[:200].decode('latin-1'))}")
            end = _EMPTY_LINE.search(data)
            if end is None:
                if len(data) > _MAX_HEAD_BYTES:
                    raise ProtocolError(f"the headers have more than {_MAX_HEAD_BYTES} bytes")
                self._held = data
                return b""
            self._read_head(data[: end.end()].decode("latin-1"))
            data = data[end.end() :]
        return self.feed(data)

    def _read_head(self, head: str) -> None:
        first, *lines = head.split("\n")
        match = _STATUS_LINE.match(first.rstrip("\r"))
        if match is None:
            raise ProtocolError(f"this is no HTTP: {cut(first)}")
        status = int(match[2])
        if status >= 200:  # Below, it announces something, and the answer itself follows.
            self.status = status
            pairs = [line.partition(":") for line in lines if line.strip()]
            self.headers = [(name.strip().lower(), value.strip()) for name, _, value in pairs]
            self._set_framing(match[1] != "0")

    def _set_framing(self, newer: bool) -> None:
        connection = self._values("connection")
        lengths = set(self._values("content-length"))
        self.keeps_alive = "close" not in connection if newer else "keep-alive" in connection
        if self.status in (204, 304):
            self.ended = True
        elif self._values("transfer-encoding")[-1:] == ["chunked"]:
            self._held = b"\r\n"  # As if a chunk had been before the first one.
            self._step = ResponseReader._take_chunks
        elif lengths:
            length = lengths.pop()
            if lengths or not length.isdecimal() or len(length) > 18:
                raise ProtocolError(f"the server gives a wrong length of the answer: {cut(length, 40)!r}")
            self._left = int(length)
            self.ended = self._left == 0
            self._step = ResponseReader._take_length
        else:
            self.keeps_alive = False
            self._step = ResponseReader._take_rest

    def _values(self, name: str) -> list[str]:
        """What a header lists, in lower case; it may come more than once."""
        values = ",".join(value for known, value in self.headers if known == name)
        return [value for value in (item.strip().lower() for item in values.split(",")) if value]

    def _take_length(self, data: bytes) -> bytes:
        body, self.rest = data[: self._left], data[self._left :]
        self._left -= len(body)
        self.ended = not self._left
        return body

    def _take_rest(self, data: bytes) -> bytes:
        return data

    def _take_chunks(self, data: bytes) -> bytes:
        body: list[bytes] = []
        at = 0
        while True:
            if self._left:
                piece = data[at : at + self._left]
                body.append(piece)
                at += len(piece)
                self._left -= len(piece)
                if self._left:
                    break
            size = _CHUNK_SIZE.match(data, at)
            if size is None:
                self._hold(data[at:])
                break
            at = size.end()
            self._left = int(size[1], 16)
            if not self._left:
                self._step = ResponseReader._take_trailer
                self._take_trailer(b"\n" + data[at:])
                break
        return b"".join(body)

    def _hold(self, line: bytes) -> None:
        if len(line) > _MAX_LINE_BYTES or not _CHUNK_SIZE_BEGUN.fullmatch(line):
            self.fault = f"this is no size of a chunk: {cut(line.decode('latin-1'), 40)!r}"
        self._held = line

    def _take_trailer(self, data: bytes) -> bytes:
        """Skip the trailer: lines up to an empty one."""
        end = _EMPTY_LINE.search(data)
        if end is None:
            self._held = data[-2:]
        else:
            self.ended, self.rest = True, data[end.end() :]
        return b""


# So much is inflated at a time: a few bytes can stand for a thousand times as many.
_INFLATE_BYTES = 1024 * 1024


class Inflate:
    """The body as it was before the server compressed it, piece by piece; gzip may come in several members.

    Raises:
        ProtocolError: The content encoding is not one that can be read, or the data is damaged.
    """

    def __init__(self, encoding: str) -> None:
        self._inflate: Any = None
        # What has come and is not inflated, and whether zlib may have more to give without it.
        self._held = b""
        self.has_more = False
        if encoding in ("gzip", "x-gzip", "deflate"):
            import zlib  # Late: hardly any server compresses what was not asked for.

            self._zlib: Any = zlib
            self._inflate = zlib.decompressobj(wbits=47)
        elif encoding not in ("", "identity"):
            raise ProtocolError(f"the server compresses with {encoding!r}, which we did not offer")

    def feed(self, data: bytes) -> bytes:
        """The next bytes of the body, at most a MiB; `has_more` is set where another call, without data, gives more."""
        if self._inflate is None:
            return data
        self._held, out = self._held + data, b""
        while (self._held or self.has_more) and len(out) < _INFLATE_BYTES:
            if self._inflate.eof:
                self._held = self._held.lstrip(b"\0")  # Zeros may follow the last member.
                if not self._held:
                    break
                self._inflate = self._zlib.decompressobj(wbits=47)
            try:
                out += self._inflate.decompress(self._held, _INFLATE_BYTES - len(out))
            except self._zlib.error as error:
                raise ProtocolError(f"the compressed answer is damaged: {error}") from error
            ended = self._inflate.eof
            self._held = self._inflate.unused_data if ended else self._inflate.unconsumed_tail
            self.has_more = not ended and len(out) == _INFLATE_BYTES  # Only then does zlib hold something back.
        self.has_more = self.has_more or self._held != b""
        return out
