"""One HTTP request and its response on a socket: JSON, text, or a stream of events. Independent of paths and models."""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import Message
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

from ..core import errors
from ..core.json_text import json_bytes
from .body import Body, PeerGone, Readable, list_of
from .disconnects import DisconnectWatcher, has_disconnected, is_writable
from .logs import NO_MEMORY
from .settings import DEFAULT_MAX_BODY_BYTES

log = logging.getLogger("localchat.server")

# Before the server closes a connection, it reads and discards what the client still sends, for this many seconds.
# Closing a connection with unread bytes resets it, and the client could lose the response.
LINGER_S = 2.0
# The same for a request without a valid key. This is short, so that such requests do not occupy threads.
UNAUTHORIZED_LINGER_S = 0.05

# The client's id of a request is copied to headers and the log, so an id with other characters is ignored.
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,200}")

# Limit of each part of a log line that a client chooses.
MAX_LOGGED_CHARS = 200

# Logged as the status if the client did not get a whole response (nginx uses this number).
CLIENT_GONE = 499

# Bytes of one `sendall`. The client must read them within --write-timeout, which is the timeout of the socket.
SEND_BYTES = 64 * 1024
# Seconds after which a stream whose client reads nothing loses its slot, if other requests wait for a slot.
STALL_S = 1.0

_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:",
    "Cache-Control": "no-store",
}

# A target that begins with scheme and host, as proxies send it (RFC 9112, 3.2.2).
_ABSOLUTE = re.compile(r"(?i)https?://([^/?#]*)")
_CONTROL_CHARACTERS = {c: f"\\x{c:02x}" for c in (*range(0x20), *range(0x7F, 0xA0))}


@dataclass(frozen=True)
class Head:
    """A request without its body, and the connection that it arrived on."""

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

    @property
    def host(self) -> str | None:
        """`host[:port]` of the request; an absolute target overrides the Host header (RFC 9112, 3.2.2)."""
        absolute = _ABSOLUTE.match(self.target)
        return absolute[1] if absolute else self.headers.get("Host")


class Exchange:
    """Reads one request and writes its response. `headers` are added to every response, including errors."""

    def __init__(
        self,
        head: Head,
        watcher: DisconnectWatcher,
        max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
        headers: Mapping[str, str] = {},
    ) -> None:
        self.head = head
        # Whether the connection can take another request; final once the response has begun.
        options = [option.lower() for option in list_of(head.headers.get_all("Connection", ()))]
        self.keep_alive = head.keep_alive and head.version >= "HTTP/1.1" and "close" not in options
        self.status: int | None = None
        # For the log: the id of the response, and its number of tokens and speeds, or the error.
        self.id = "-"
        self.summary = ""
        # Called with True when the client has not read a stream for `STALL_S`, and with False when it reads again.
        self.on_stall: Callable[[bool], None] = lambda is_stalled: None
        # Encodes an error in the format of the interface that the request uses.
        self.error_body: Callable[[errors.ApiError], Any] = errors.ApiError.body
        # Encodes an error as an HTML page, for the home page in a browser; None: `error_body` applies.
        self.error_page: Callable[[errors.ApiError], str] | None = None
        # The headers of the response that repeat the id of the request.
        self.id_headers: tuple[str, ...] = ("X-Request-Id",)
        # The path after the prefix, for an endpoint that serves all paths with that prefix.
        self.tail = ""
        # Whether monitoring polls this endpoint, so that successes are not logged.
        self.is_probe = False
        # The client's id of the request; None: the response gets a new id.
        self._given_id: str | None = None
        self.name_request(head.headers.get("X-Request-Id"))
        self._headers = headers
        self._watcher = watcher
        self._began_at = time.monotonic()
        self._linger_s = LINGER_S
        self._is_chunked = False
        if head.version < "HTTP/1.1":
            del head.headers["Expect"]  # HTTP/1.0 has no "100 Continue" (RFC 9110, 10.1.1)
        self._body = Body(head.headers, head.stream, self._send_continue, max_body_bytes)

    def body(self) -> bytes:
        """The body of the request.

        Raises:
            ApiError, PeerGone: As `Body.read` does.
        """
        return self._body.read()

    def name_request(self, id: str | None) -> None:
        """Set the client's id of this request, for the log and a header. Only the first valid id is used."""
        if self._given_id is None and id is not None and _REQUEST_ID.fullmatch(id):
            self._given_id = id

    def watched(self, on_disconnect: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
        """Within the `with`, call `on_disconnect` when the client closes the connection."""
        return self._watcher.watch(self.head.socket, on_disconnect)

    def has_disconnected(self) -> bool:
        """Whether the client has closed the connection."""
        return has_disconnected(self.head.socket) is True

    def send_json(self, status: int, value: Any, headers: Mapping[str, str] = {}) -> None:
        self._send_body(status, "application/json", json_bytes(value), headers)

    def send_text(self, type: str, text: str, headers: Mapping[str, str] = {}) -> None:
        self._send_body(200, type, text.encode(), headers)

    def send_page(self, status: int, page: str, headers: Mapping[str, str] = {}) -> None:
        """Send a page of HTML that runs no scripts and loads nothing."""
        self._send_body(status, "text/html; charset=utf-8", page.encode(), {**_PAGE_HEADERS, **headers})

    def send_nothing(self, headers: Mapping[str, str]) -> None:
        self._send_head(204, headers)

    def _send_body(self, status: int, type: str, body: bytes, headers: Mapping[str, str]) -> None:
        headers = {"Content-Type": type, "Content-Length": str(len(body)), **headers}
        self._send_head(status, headers, b"" if self.head.method == "HEAD" else body)

    def start_stream(self, content_type: str) -> None:
        """Send the head of a stream. It is chunked, or for HTTP/1.0 ends with the connection."""
        self._is_chunked = self.head.version >= "HTTP/1.1"
        framing = {"Transfer-Encoding": "chunked"} if self._is_chunked else {}
        # X-Accel-Buffering keeps nginx from buffering events.
        headers = {"Content-Type": content_type, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        self._send_head(200, {**headers, **framing})

    def send_part(self, payload: bytes, *, is_last: bool = False) -> None:
        """Send a part of a stream. The last one ends the stream."""
        if self._is_chunked:
            framed = b"%x\r\n%b\r\n" % (len(payload), payload) if payload else b""
            payload = framed + (b"0\r\n\r\n" if is_last else b"")
        # `sendall` would not show that the client stops reading within a long part.
        is_stalled, unsent = False, memoryview(payload)
        while unsent:
            if not is_stalled and not is_writable(self.head.socket, STALL_S):
                is_stalled = True
                self.on_stall(True)
            unsent = unsent[self.head.socket.send(unsent) :]
        if is_stalled:
            self.on_stall(False)

    def _send(self, payload: bytes) -> None:
        # The timeout of the socket applies to each `sendall`, so a large body is sent in several.
        for start in range(0, len(payload), SEND_BYTES):
            self.head.socket.sendall(payload[start : start + SEND_BYTES])

    def run(self, route: Callable[[Exchange], None]) -> None:
        """Call `route`, which sends the response. If `route` raises an error, send an error response."""
        try:
            route(self)
        except errors.ApiError as error:
            self._send_error(error)
        except (PeerGone, OSError):
            self._set_incomplete()
        except MemoryError:
            log.error("%s failed: %s", self._request_line, NO_MEMORY)
            self._send_error(errors.InferenceError(NO_MEMORY))
        except Exception:
            log.exception("%s failed", self._request_line)
            self._send_error(errors.InferenceError(errors.INTERNAL_ERROR))

    def _send_error(self, error: errors.ApiError) -> None:
        if self.status is not None:
            # The response has begun, so closing the connection is the only way to show that it is incomplete.
            self._set_incomplete()
            return
        if isinstance(error, errors.Unauthorized):
            self._linger_s = UNAUTHORIZED_LINGER_S
        if isinstance(error, errors.ShuttingDown):
            self.keep_alive = False
        self.summary = printable(error.message)[:MAX_LOGGED_CHARS]
        try:
            if self.error_page is not None:
                self.send_page(error.status, self.error_page(error), error.headers())
            else:
                self.send_json(error.status, self.error_body(error), error.headers())
        except (PeerGone, OSError):
            self._set_incomplete()

    def _set_incomplete(self) -> None:
        self.status = CLIENT_GONE
        self.keep_alive = False

    @property
    def seconds(self) -> float:
        """Seconds since the head of the request arrived."""
        return time.monotonic() - self._began_at

    @property
    def _request_line(self) -> str:
        """The method and path, for the log."""
        return printable(f"{self.head.method} {self.head.path}"[:MAX_LOGGED_CHARS])

    def log(self) -> None:
        """Write one line to the log; none for a probe that succeeds or finds the model still loading."""
        if self.is_probe and self.status in (200, errors.ModelLoading.status):
            return
        request, seconds = self._request_line, self.seconds
        given = f" [{self._given_id}]" if self._given_id else ""
        fields = {
            "id": self.id,
            "status": self.status,
            "request": request,
            "seconds": round(seconds, 3),
            "summary": self.summary,
            "request_id": self._given_id,
        }
        text = "%s %s %s %.3f s: %s%s"
        log.info(text, self.id, self.status, request, seconds, self.summary or "-", given, extra={"fields": fields})

    def _send_continue(self) -> None:
        self.head.socket.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _send_head(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        self._body.skip(self._linger_s)  # see LINGER_S
        self.status = status
        self.keep_alive = self.keep_alive and self._body.is_read
        request_id = self._given_id or "req-" + uuid.uuid4().hex
        lines = [
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            "Server: localchat",
            f"Date: {formatdate(usegmt=True)}",
            *(f"{name}: {request_id}" for name in self.id_headers),
            *(f"{name}: {value}" for name, value in {**headers, **self._headers}.items()),
        ]
        if not self.keep_alive:
            lines.append("Connection: close")
        self._send("\r\n".join([*lines, "", ""]).encode("latin-1") + body)


def linger(sock: socket.socket) -> None:
    """Shut down writing, and read and discard for up to `LINGER_S`."""
    deadline = time.monotonic() + LINGER_S
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
        while (left_s := deadline - time.monotonic()) > 0:
            sock.settimeout(left_s)
            if not sock.recv(65536):
                return


def printable(text: str) -> str:
    """The text without control characters, which could forge a line of the log or control a terminal."""
    return text.translate(_CONTROL_CHARACTERS)
