"""One request and its response on a connection: JSON, text, or a stream. Independent of paths and models."""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from email.utils import formatdate
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from ..core import errors
from ..core.server_options import Options
from ..core.text import json_bytes, printable
from .incoming import Incoming, decompressed, has_body, list_of, read_body

log = logging.getLogger("localchat.server")

# Before the server closes a connection, it reads and discards what the client still sends, until the client is silent
# for this many seconds, for ten times as long at most. Closing a connection with unread bytes resets it, and the client
# could lose the response. Meanwhile the client occupies a thread, even one without a key or beyond the limit.
LINGER_S = 0.5

# The client's id of a request is copied to headers and the log, so an id with other characters is ignored.
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,200}")
# A target, which begins with scheme and host if a proxy sends it (RFC 9112, 3.2.2).
_TARGET = re.compile(r"(?:(?i:https?)://(?P<host>[^/?#]*))?(?P<path>[^?]*)\??(?P<query>.*)")
MAX_LOGGED_CHARS = 200  # Limit of each part of a log line that a client chooses.
CLIENT_GONE = 499  # Logged as the status if the client did not get a whole response (nginx uses this number).

SEND_BYTES = 64 * 1024  # Bytes of one `send`, to which the timeout of the socket applies.


class ClientGoneError(Exception):
    """The client has disconnected, or does not read. Only errors of its own socket mean that."""


@dataclass(frozen=True)
class Routing:
    """What the path and the headers of a request decide, before it is checked."""

    route: str = "other"  # The path of the endpoint, for the metrics.
    path_end: str = ""  # What follows the path of an endpoint that serves all paths below it.
    # Makes the body of an error response, in the format of the interface.
    error_body: Callable[[errors.ApiError], Any] = errors.ApiError.body
    cors_headers: Mapping[str, str] = field(default_factory=dict)  # Of the response, also of an error.


class Exchange:
    """A request and its response. Belongs to the thread of the connection.

    `run` calls the function that responds. It reads the body with `read`, and sends the response with one of
    `send_json`, `send` and `send_head`, or with `start_stream` and `send_part`.
    """

    def __init__(
        self, method: str, target: str, version: str, headers: Message, stream: Incoming, options: Options
    ) -> None:
        self.method = method
        parts = _TARGET.match(target)
        assert parts is not None, "every text matches"
        self.path, self.query = parts["path"], dict(parse_qsl(parts["query"]))
        # `host[:port]`. A host in the target overrides the header.
        self.host: str | None = headers.get("Host") if parts["host"] is None else parts["host"]
        self.version = version
        self.headers = headers
        self.socket = stream.socket
        # Whether the connection can take another request; final once the response has begun.
        self.keep_alive = version >= "HTTP/1.1" and "close" not in list_of(headers, "Connection")
        self.status: int | None = None  # That of the response; None: the response has not begun.
        self.routing = Routing()
        # For the log.
        self.response_id = "-"
        self.summary = ""  # The number of tokens and the speeds, or the error.
        self.closing = contextlib.ExitStack()  # Closed at the end of the exchange, such as the use of a model.
        # Ends a stream that has begun with an error; None: the response is no stream. A `Stream` sets it.
        self.fail_stream: Callable[[errors.ApiError], None] | None = None
        self._client_request_id: str | None = None  # The client's id of the request; None: the response gets a new id.
        self.name_request(headers.get("X-Request-Id"))
        self._stream = stream
        # Whether the body is still unread: if so, the connection cannot take another request.
        self._has_body = has_body(headers)
        self._options = options
        self._began_at = time.monotonic()
        self._is_chunked = False

    @property
    def wants_page(self) -> bool:
        """Whether a browser asks for the chat page. curl and programs accept no HTML."""
        return self.path == "/" and "text/html" in (self.headers.get("Accept") or "")

    @property
    def seconds(self) -> float:
        """Seconds since the head of the request arrived."""
        return time.monotonic() - self._began_at

    def name_request(self, id: str | None) -> None:
        """Set the client's id of this request, for the log and a header. Only the first valid id is used."""
        if self._client_request_id is None and id is not None and _REQUEST_ID.fullmatch(id):
            self._client_request_id = id

    def read(self) -> bytes:
        """The body of the request; see `read_body` and `decompressed`."""
        max_bytes = self._options.max_body_bytes
        try:
            body = read_body(self._stream, self.version, self.headers, max_bytes)
        except OSError as error:
            raise ClientGoneError from error
        self._has_body = False
        return decompressed(body, self.headers, max_bytes)

    def send_json(self, status: int, value: Any, headers: Mapping[str, str] = {}) -> None:
        self.send("application/json", json_bytes(value), headers, status)

    def send(self, type: str, body: bytes, headers: Mapping[str, str] = {}, status: int = 200) -> None:
        headers = {"Content-Type": type, "Content-Length": str(len(body)), **headers}
        self.send_head(status, headers, b"" if self.method == "HEAD" else body)

    def start_stream(self, content_type: str) -> None:
        """Send the head of a stream. It is chunked, or for HTTP/1.0 ends with the connection."""
        self._is_chunked = self.version >= "HTTP/1.1"
        framing = {"Transfer-Encoding": "chunked"} if self._is_chunked else {}
        # X-Accel-Buffering keeps nginx from buffering events.
        headers = {"Content-Type": content_type, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        self.send_head(200, {**headers, **framing})

    def send_part(self, payload: bytes, *, is_last: bool = False) -> None:
        """Send a part of a stream. The last one ends the stream."""
        if self._is_chunked:
            payload = b"%x\r\n%b\r\n" % (len(payload), payload) if payload else b""
            payload += b"0\r\n\r\n" if is_last else b""
        if is_last:
            self.fail_stream = None  # Nothing may follow the last part.
        self._send(payload)

    def send_continue(self) -> None:
        """Send the interim response 100, which clients ignore while they wait for the response (RFC 9110, 15.2)."""
        if self.version >= "HTTP/1.1":  # HTTP/1.0 has no interim responses.
            self._send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def send_head(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        self.status = status
        self.socket.settimeout(self._options.write_timeout_s)
        self.keep_alive = self.keep_alive and not self._has_body
        request_id = self._client_request_id or "req-" + uuid.uuid4().hex
        lines = [
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            "Server: localchat",
            f"Date: {formatdate(usegmt=True)}",
            f"X-Request-Id: {request_id}",
            f"Request-Id: {request_id}",  # Anthropic's name
            *(f"{name}: {value}" for name, value in {**headers, **self.routing.cors_headers}.items()),
            *([] if self.keep_alive else ["Connection: close"]),
        ]
        self._send("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    def _send(self, payload: bytes) -> None:
        unsent = memoryview(payload)
        try:
            while unsent:
                unsent = unsent[self.socket.send(unsent[:SEND_BYTES]) :]
        except OSError as error:
            raise ClientGoneError from error

    def run(self, respond: Callable[[Exchange], None]) -> None:
        """Call `respond`, which sends the response. If it raises an error, send an error response."""
        try:
            with self.closing:
                respond(self)
        except errors.ApiError as error:
            self._send_error(error)
        except ClientGoneError:
            self._set_incomplete()
        except BaseException as error:
            short = errors.out_of_resources(error)
            log.error("%s failed: %s", self._request_line, short or "internal error", exc_info=short is None)
            self._send_error(short or errors.InferenceError(errors.INTERNAL_ERROR))

    def _send_error(self, error: errors.ApiError) -> None:
        self.summary = printable(error.message)[:MAX_LOGGED_CHARS]
        if isinstance(error, errors.ShuttingDown):
            self.keep_alive = False
        try:
            if self.status is None:
                self.send_json(error.status, self.routing.error_body(error), error.headers())
            elif self.fail_stream is not None:
                self.fail_stream(error)
            else:
                # Closing the connection is the only way to show that the response is incomplete.
                self._set_incomplete()
        except ClientGoneError:
            self._set_incomplete()

    def _set_incomplete(self) -> None:
        self.status = CLIENT_GONE
        self.keep_alive = False

    @property
    def _request_line(self) -> str:
        """The method and path, for the log."""
        return printable(f"{self.method} {self.path}"[:MAX_LOGGED_CHARS])

    def log(self) -> None:
        client_request_id = f" [{self._client_request_id}]" if self._client_request_id else ""
        summary = f"{self.summary or '-'}{client_request_id}"
        log.info("%s %s %s %.3f s: %s", self.response_id, self.status, self._request_line, self.seconds, summary)

    def linger(self) -> None:
        """Shut down writing, and read and discard what the client sends; see `LINGER_S`."""
        deadline = time.monotonic() + 10 * LINGER_S
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
            self.socket.settimeout(LINGER_S)
            while time.monotonic() < deadline and self.socket.recv(65536):
                pass
