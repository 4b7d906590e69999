"""HTTP/1.1 without I/O: write the head of a request, parse the status, headers and body of a response.

`ResponseReader` raises ProtocolError for bytes that are not HTTP, and IncompleteStream if the connection ends early.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import IncompleteStream, ProtocolError
from ..texts import excerpt

# A token of RFC 9110: the name of a header.
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# The headers of the message's framing and of the connection, which only the client itself may send.
_FRAMING_HEADERS = "content-length transfer-encoding connection keep-alive proxy-connection te trailer upgrade expect"

# Limits above what servers send.
_MAX_HEAD_BYTES = 256 * 1024
_MAX_LINE_BYTES = 65536

_STATUS_LINE = re.compile(r"HTTP/1\.(\d) +(\d{3})(?: |$)")
_EMPTY_LINE = re.compile(rb"\n\r?\n")
# The line end after a chunk with the size line of the next chunk, such as b"\r\n1f;name=value\r\n". The second pattern
# matches every beginning of that.
_CHUNK_SIZE = re.compile(rb"\r?\n[ \t]*([0-9a-fA-F]{1,15})[ \t]*(?:;[^\n]*)?\r?\n")
_PARTIAL_CHUNK_SIZE = re.compile(rb"\r?|\r?\n[ \t]*[0-9a-fA-F]{0,15}[ \t]*(?:;[^\n]*)?\r?")


def check_header(name: str, value: str) -> None:
    """Raise ValueError for a name or a value that HTTP does not allow, and for a header of the framing."""
    if not isinstance(name, str) or not TOKEN.fullmatch(name):
        raise ValueError(f"not a valid header name: {excerpt(str(name), 40)!r}")
    if name.lower() in _FRAMING_HEADERS.split():
        raise ValueError(f"the client sets the header {name} itself: leave it out")
    if not isinstance(value, str) or not value.isascii() or not value.isprintable():
        raise ValueError(f"the value of the header {name} is not text, or has a line end or a non-ASCII character")


def request_head(line: str, headers: Mapping[str, str]) -> bytes:
    """The head of a request. `check_header` has checked the headers, so none contains a line end."""
    return "\r\n".join([line, *(f"{name}: {value}" for name, value in headers.items()), "", ""]).encode("ascii")


class ResponseReader:
    """The parser of one HTTP/1 response: bytes in, body out.

    `has_body` is False if the request was HEAD or CONNECT, whose responses have none, whatever their headers say.
    """

    def __init__(self, has_body: bool = True) -> None:
        self._has_body = has_body
        self.status = 0  # 0 until the head is complete.
        self.headers: dict[str, str] = {}  # Names are in lower case; values of the same name are joined by commas.
        self.keeps_alive = False
        # Whether any byte was received, and whether the response is complete.
        self.has_begun = False
        self.has_ended = False
        self.surplus = b""  # The bytes after the response.
        # An error in the framing of the body: nothing after it can be parsed. Empty if there is none.
        self.framing_error = ""
        self._incomplete = b""  # The beginning of a head or of a line whose end was not received yet.
        self._n_missing = 0  # The number of bytes that are missing of the body or of the current chunk.
        # The method for the next bytes, by the framing of the response. It returns the part of the body in them. It is
        # a plain function, since a bound method would be a reference cycle.
        self._take = ResponseReader._take_head

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes and return the part of the body in them."""
        self.has_begun = self.has_begun or data != b""
        if self.has_ended or self.framing_error:
            self.surplus += data
            return b""
        data, self._incomplete = self._incomplete + data, b""
        return self._take(self, data)

    def feed_end(self) -> None:
        """Report the end of the connection."""
        if self._take is ResponseReader._take_until_close:
            self.has_ended = True
        if not self.has_ended:
            missing = f"{self._n_missing} bytes" if self._n_missing else "at least one chunk"
            raise IncompleteStream(f"the connection ended {missing if self.status else 'the headers'} too early")

    def _take_head(self, data: bytes) -> bytes:
        while not self.status:
            if not b"HTTP/".startswith(data[:5]):
                raise ProtocolError(f"this is not HTTP: {excerpt(data[:200].decode('latin-1'))}")
            end = _EMPTY_LINE.search(data)
            if end is None:
                if len(data) > _MAX_HEAD_BYTES:
                    raise ProtocolError(f"the headers have more than {_MAX_HEAD_BYTES} bytes")
                self._incomplete = data
                return b""
            self._read_head(data[: end.end()].decode("latin-1"))
            data = data[end.end() :]
        return self.feed(data)

    def _read_head(self, head: str) -> None:
        first, *lines = head.split("\n")
        match = _STATUS_LINE.match(first.rstrip("\r"))
        if match is None:
            raise ProtocolError(f"this is not HTTP: {excerpt(first)}")
        status = int(match[2])
        if status >= 200:  # A 1xx response is followed by the final response.
            self.status = status
            fields = re.sub(r"\r?\n[ \t]+", " ", "\n".join(lines))  # A value may continue on an indented line.
            for line in filter(str.strip, fields.split("\n")):
                name, _, value = (part.strip() for part in line.partition(":"))
                known = self.headers.get(name.lower())
                self.headers[name.lower()] = f"{known}, {value}" if known else value
            self._set_framing(is_http_10=match[1] == "0")

    def _set_framing(self, is_http_10: bool) -> None:
        connection = self.values("connection")
        lengths = set(self.values("content-length"))
        self.keeps_alive = "keep-alive" in connection if is_http_10 else "close" not in connection
        if self.status in (204, 304) or not self._has_body:
            self.has_ended = True
        elif "chunked" in self.values("transfer-encoding"):
            self._incomplete = b"\r\n"  # The pattern of a chunk size begins with the line end after a chunk.
            self._take = ResponseReader._take_chunks
        elif lengths:
            length = lengths.pop()
            if lengths or not length.isdecimal() or len(length) > 18:
                raise ProtocolError(f"the response has a wrong Content-Length: {excerpt(length, 40)!r}")
            self._n_missing = int(length)
            self.has_ended = self._n_missing == 0
            self._take = ResponseReader._take_length
        else:
            self.keeps_alive = False
            self._take = ResponseReader._take_until_close

    def values(self, name: str) -> list[str]:
        """The values of a header, in lower case."""
        return [value for value in (item.strip().lower() for item in self.headers.get(name, "").split(",")) if value]

    def _take_length(self, data: bytes) -> bytes:
        body, self.surplus = data[: self._n_missing], data[self._n_missing :]
        self._n_missing -= len(body)
        self.has_ended = not self._n_missing
        return body

    def _take_until_close(self, data: bytes) -> bytes:
        return data

    def _take_chunks(self, data: bytes) -> bytes:
        body: list[bytes] = []
        at = 0
        while True:
            if self._n_missing:
                piece = data[at : at + self._n_missing]
                body.append(piece)
                at += len(piece)
                self._n_missing -= len(piece)
                if self._n_missing:
                    break
            size = _CHUNK_SIZE.match(data, at)
            if size is None:
                self._incomplete = data[at:]
                if len(self._incomplete) > _MAX_LINE_BYTES or not _PARTIAL_CHUNK_SIZE.fullmatch(self._incomplete):
                    shown = excerpt(self._incomplete.decode("latin-1"), 40)
                    self.framing_error = f"this is not the size of a chunk: {shown!r}"
                break
            at = size.end()
            self._n_missing = int(size[1], 16)
            if not self._n_missing:
                self._take = ResponseReader._take_trailer
                self._take_trailer(b"\n" + data[at:])
                break
        return b"".join(body)

    def _take_trailer(self, data: bytes) -> bytes:
        """Skip the trailer, which ends with an empty line."""
        end = _EMPTY_LINE.search(data)
        if end is None:
            self._incomplete = data[-2:]
        else:
            self.has_ended, self.surplus = True, data[end.end() :]
        return b""


_INFLATED = ("gzip", "x-gzip", "deflate")
# Codings that need a decoder which Python does not have.
_UNREADABLE = ("br", "zstd", "compress", "x-compress", "dcb", "dcz", "aes128gcm", "exi", "pack200-gzip", "bzip2", "xz")


def check_codings(codings: Iterable[str]) -> str:
    """The coding of a body to decompress, "" if there is none. Raises ProtocolError for one that cannot be read.

    Some servers send a name such as utf-8 or none in place of a coding: their bodies are read as they are. Some proxies
    repeat the header.
    """
    known = sorted({coding for coding in codings if coding in (*_INFLATED, *_UNREADABLE)})
    if len(known) > 1 or not set(known) <= set(_INFLATED):
        raise ProtocolError(f"the server compresses with {','.join(known)!r}, which the client did not offer")
    return "".join(known)


class Inflate:
    """Decompresses a body, also one of several members. `feed` drops what exceeds the limit by more than one byte."""

    def __init__(self, limit: int) -> None:
        import zlib  # Few responses are compressed.

        self._zlib: Any = zlib
        self._limit = limit
        self._member: Any = None  # The decompressor of a member, None before its first two bytes are there.
        self._incomplete = b""
        self._has_ended = False

    def feed(self, data: bytes) -> bytes:
        out, data, self._incomplete = b"", self._incomplete + data, b""
        while data:
            if self._member is None:
                if len(data) < 2:
                    self._incomplete = data
                    break
                # Some servers send deflate without the header of zlib. After a member, it is padding.
                has_header = data[:2] == b"\x1f\x8b" or (data[0] & 15 == 8 and (data[0] * 256 + data[1]) % 31 == 0)
                if self._has_ended and not has_header:
                    break
                self._member = self._zlib.decompressobj(wbits=47 if has_header else -15)
            try:
                out += self._member.decompress(data, self._limit + 1)
            except self._zlib.error as error:
                raise ProtocolError(f"the compressed response is damaged: {error}") from error
            data = b""
            if self._member.eof:
                data, self._member, self._has_ended = self._member.unused_data, None, True
        return out

    @property
    def is_whole(self) -> bool:
        """Whether the bytes so far are a whole body: no member is incomplete.

        A single byte after a member is padding, unless it is the first one of a further gzip member.
        """
        is_padding = self._has_ended and self._incomplete != b"\x1f"
        return self._member is None and (is_padding or not self._incomplete)

    def feed_end(self) -> None:
        """Report the end of the body, which raises IncompleteStream if it is not whole."""
        if not self.is_whole:
            raise IncompleteStream("the compressed response ends too early, although all of its bytes were received")
