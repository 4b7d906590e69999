"""One HTTP request and its answer, on a socket: what http.server leaves to its users.

Bodies are read as they are framed, or thrown away, since what is left of one would be taken for the
next request. Answers are one JSON value or a stream of events. Knows no paths and no models.
"""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Protocol

from .. import sse
from ..protocol import errors
from ..protocol.chat_response import to_json
from .watch import Watcher

log = logging.getLogger("localchat.server")

# A conversation of a million tokens is some 5 MB; pictures will need the rest.
DEFAULT_MAX_BODY_BYTES = 64 * 1024 * 1024
# One line of a chunked body: a size and perhaps an extension that nobody uses; and the lines after it.
MAX_CHUNK_LINE_BYTES = 4096
MAX_TRAILERS = 100
# How long a connection is read on of which nothing is wanted any more, so that the peer sees the answer and no reset.
LINGER_S = 2.0

# What a client may call its request: it goes into headers and the log as it is.
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,200}")

# A message may quote what a client sent.
MAX_LOGGED_CHARS = 200

# What the log says where no answer could be given (nginx's number for it).
CLIENT_GONE = 499

# What is sent in one go: all of it must be taken within the socket's timeout.
SEND_BYTES = 64 * 1024

# Lines of a chunked body end with CRLF and nothing else: readers that disagree on it see different requests.
_CHUNK_SIZE = re.compile(rb"([0-9a-fA-F]{1,12})[ \t]*(;[^\r\n]*)?\r\n")
_CONTROL_CHARACTERS = {c: f"\\x{c:02x}" for c in (*range(0x20), *range(0x7F, 0xA0))}


class Readable(Protocol):
    """A byte stream with a buffer; `limit` says in how many seconds all that is read then must come."""

    def read(self, size: int, /) -> bytes: ...

    def readline(self, limit: int, /) -> bytes: ...

    def limit(self, seconds: float | None) -> None: ...


class PeerGone(Exception):
    """The client has left: there is nobody to answer."""


class Body:
    """The body of one request.

    `invite` is called when a peer that waits for "100 Continue" may go on. `is_read` tells whether the
    stream stands where the next request begins.
    """

    def __init__(self, headers: Message, stream: Readable, invite: Callable[[], None], max_bytes: int) -> None:
        self.is_read = False
        self._headers = headers
        self._stream = stream
        self._invite = invite
        self._max_bytes = max_bytes
        self._pieces = self._framed()

    def read(self) -> bytes:
        """All of it.

        Raises:
            BodyTooLarge, LengthRequired, MalformedRequest, PeerGone.
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

    def drain(self) -> None:
        """Throws away what is left, as far as that is reasonable; `is_read` tells whether all of it."""
        if self._is_announced and not self.is_read:
            if self._expects_invitation:
                return  # The peer waits for our word, and may take the answer as a no or send all the same.
            self._stream.limit(LINGER_S)
        n_left = self._max_bytes
        with contextlib.suppress(errors.ApiError, OSError):
            for piece in self._pieces:
                n_left -= len(piece)
                if n_left < 0:
                    return

    def _framed(self) -> Iterator[bytes]:
        lengths, codings = self._lengths(), self._codings()
        if codings:
            # Both at once is how requests are smuggled past proxies (RFC 9112, 6.1).
            if lengths:
                raise errors.MalformedRequest("Content-Length and Transfer-Encoding cannot both be right")
            if codings != ["chunked"]:
                raise errors.MalformedRequest(f"Transfer-Encoding {', '.join(codings)!r} is not 'chunked'", 501)
            self._accept()
            yield from self._chunks()
        elif lengths:
            n = _length(lengths)
            if n > self._max_bytes:
                raise errors.BodyTooLarge(f"the body has {n} bytes, and {self._max_bytes} are the limit")
            self._accept()
            yield from self._exactly(n)
        self.is_read = True

    def _accept(self) -> None:
        if self._expects_invitation:
            self._invite()
            del self._headers["Expect"]

    @property
    def _is_announced(self) -> bool:
        return bool(self._lengths() or self._codings())

    @property
    def _expects_invitation(self) -> bool:
        return self._headers.get("Expect", "").lower() == "100-continue"

    def _lengths(self) -> list[str]:
        return _listed(self._headers.get_all("Content-Length", ()))

    def _codings(self) -> list[str]:
        return [coding.lower() for coding in _listed(self._headers.get_all("Transfer-Encoding", ()))]

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
                raise errors.MalformedRequest("a chunk of the body is longer than its size says")

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


def _listed(values: Iterable[str]) -> list[str]:
    """The members of header lists, without what HTTP calls white space, and nothing else that Python does."""
    return [part.strip(" \t\r\n") for value in values for part in value.split(",")]


def _length(values: list[str]) -> int:
    first = values[0]
    if len(set(values)) > 1 or not (first.isascii() and first.isdigit() and len(first) < 20):
        raise errors.MalformedRequest(f"Content-Length must be one number, got {', '.join(values)!r}")
    return int(first)


@dataclass(frozen=True)
class Head:
    """A request without its body, and the connection that it came on."""

    method: str
    target: str
    version: str
    headers: Message
    keep_alive: bool
    stream: Readable
    socket: socket.socket

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


class Exchange:
    """One request and its answer: reads the one, writes the other, and knows how far both are.

    `headers` are those that every answer to it has, whatever it is.
    """

    def __init__(
        self,
        head: Head,
        watcher: Watcher,
        max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
        headers: Mapping[str, str] = {},
    ) -> None:
        self.head = head
        # Whether the connection can take another request afterwards; known once the answer has begun.
        wishes = [wish.lower() for wish in _listed(head.headers.get_all("Connection", ()))]
        self.keep_alive = head.keep_alive and head.version >= "HTTP/1.1" and "close" not in wishes
        self.status: int | None = None
        # For the log: which answer, and what it took.
        self.id = "-"
        self.summary = ""
        # What asks every second how the server is: of success the log says nothing.
        self.is_probe = False
        # The client's own name for the request, or one of ours.
        self._given_id: str | None = None
        self.name_request(head.headers.get("X-Request-Id"))
        self._headers = headers
        self._watcher = watcher
        self._began_at = time.monotonic()
        self._is_chunked = False
        if head.version < "HTTP/1.1":
            del head.headers["Expect"]  # a word that older peers do not know (RFC 9110, 10.1.1)
        self._body = Body(head.headers, head.stream, self._invite, max_body_bytes)

    def body(self) -> bytes:
        return self._body.read()

    def name_request(self, id: str | None) -> None:
        """The client's name for this request, which the answer's header and the log repeat; the first counts (K1)."""
        if self._given_id is None and id is not None and _REQUEST_ID.fullmatch(id):
            self._given_id = id

    def watched(self, on_gone: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
        """Within the `with`, `on_gone` is called when the client leaves (K33)."""
        return self._watcher.watch(self.head.socket, on_gone)

    def send_json(self, status: int, value: Any, headers: Mapping[str, str] = {}) -> None:
        self._send_body(status, "application/json", to_json(value).encode("utf-8", "replace"), headers)

    def send_text(self, type: str, text: str) -> None:
        self._send_body(200, type, text.encode(), {})

    def send_nothing(self, headers: Mapping[str, str]) -> None:
        self._send_head(204, headers)

    def _send_body(self, status: int, type: str, body: bytes, headers: Mapping[str, str]) -> None:
        headers = {"Content-Type": type, "Content-Length": str(len(body)), **headers}
        self._send_head(status, headers, b"" if self.head.method == "HEAD" else body)

    def start_stream(self) -> None:
        """The status line of an event stream; chunked where the client knows that, else until we close."""
        self._is_chunked = self.head.version >= "HTTP/1.1"
        framing = {"Transfer-Encoding": "chunked"} if self._is_chunked else {}
        # The last one keeps nginx from holding back events.
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        self._send_head(200, {**headers, **framing})

    def send_events(self, chunks: list[str], *, is_last: bool = False) -> None:
        """Writes events at once, in one piece; the last ones close the stream."""
        self._send_piece(b"".join(map(sse.encode, chunks)), is_last)

    def send_comment(self) -> None:
        """Shows that the stream lives, to proxies and to clients that wait only so long."""
        self._send_piece(sse.comment(), False)

    def _send_piece(self, payload: bytes, is_last: bool) -> None:
        if self._is_chunked:
            framed = b"%x\r\n%b\r\n" % (len(payload), payload) if payload else b""
            payload = framed + (b"0\r\n\r\n" if is_last else b"")
        self._send(payload)

    def _send(self, payload: bytes) -> None:
        # A timeout is for all that is sent at once: a slow reader of something large must not be taken for a dead one.
        for start in range(0, len(payload), SEND_BYTES):
            self.head.socket.sendall(payload[start : start + SEND_BYTES])

    def run(self, route: Callable[[Exchange], None]) -> None:
        """Answers by `route`, whatever happens in it."""
        try:
            route(self)
        except errors.ApiError as error:
            self._answer_error(error)
        except (PeerGone, OSError):
            self._leave()
        except Exception:
            log.exception("%s failed", printable(f"{self.head.method} {self.head.path}"[:MAX_LOGGED_CHARS]))
            self._answer_error(errors.InferenceError(errors.INTERNAL_ERROR))

    def _answer_error(self, error: errors.ApiError) -> None:
        if self.status is not None:
            # Something was sent already: only the end of the connection can say that it is not whole.
            self._leave()
            return
        self.summary = printable(error.message)[:MAX_LOGGED_CHARS]
        try:
            self.send_json(error.status, error.body(), error.headers())
        except (PeerGone, OSError):
            self._leave()

    def _leave(self) -> None:
        self.status = CLIENT_GONE
        self.keep_alive = False

    def log(self) -> None:
        """One line; none for a probe that has nothing to tell: all is well, or the model is still being loaded."""
        if self.is_probe and self.status in (200, errors.ModelLoading.status):
            return
        seconds = time.monotonic() - self._began_at
        what = printable(f"{self.head.method} {self.head.path}"[:MAX_LOGGED_CHARS])
        given = f" [{self._given_id}]" if self._given_id else ""
        log.info("%s %s %s %.3f s: %s%s", self.id, self.status, what, seconds, self.summary or "-", given)

    def _invite(self) -> None:
        self.head.socket.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _send_head(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        # What the client still sends is read first: closing before that would reset the connection, and
        # the client would lose the answer.
        self._body.drain()
        self.status = status
        self.keep_alive = self.keep_alive and self._body.is_read
        lines = [
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            "Server: localchat",
            f"Date: {formatdate(usegmt=True)}",
            f"X-Request-Id: {self._given_id or 'req-' + uuid.uuid4().hex}",
            *(f"{name}: {value}" for name, value in {**headers, **self._headers}.items()),
        ]
        if not self.keep_alive:
            lines.append("Connection: close")
        self._send("\r\n".join([*lines, "", ""]).encode("latin-1") + body)


def linger(sock: socket.socket) -> None:
    """Ends our side and reads on for a moment, so that the peer gets to see what we said last."""
    deadline = time.monotonic() + LINGER_S
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
        while (left_s := deadline - time.monotonic()) > 0:
            sock.settimeout(left_s)
            if not sock.recv(65536):
                return


def printable(text: str) -> str:
    """Without characters that could forge a line of the log or steer a terminal."""
    return text.translate(_CONTROL_CHARACTERS)
