"""The chat client: requests over http.client, answers as typed events.

The only module of the client that opens a connection. Bytes go through `sse` and `wire`, which know no
sockets. To vendor the client, copy sse.py, events.py, wire.py and client.py into a package folder of
yours, side by side, and import Client from there; they need the standard library only.

Three rules of http.client shape this module: bodies are read with read1, since line reading hides a cut
between chunks; the socket is kept before getresponse, since only `shutdown` on it wakes a reader in
another thread; and a timeout is set before each read, since none can be read past.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import random
import select
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from .events import (
    BadRequestError,
    Cancelled,
    ConnectError,
    ErrorEvent,
    IncompleteStream,
    LocalChatError,
    NotFoundError,
    ProtocolError,
    Reply,
    StatusError,
    StreamError,
    StreamEvent,
    TimedOut,
    UnprocessableError,
)
from .sse import ServerSentEvent, SSEDecoder, SSEError
from .wire import (
    Accumulator,
    Prompt,
    build_request,
    cut,
    is_whole_answer,
    parse_error,
    parse_frame,
    parse_models,
)

if TYPE_CHECKING:  # http.client and ssl cost 15 to 25 ms to import: they are loaded by the first request.
    import http.client
    import ssl

__all__ = ["Client", "Stream", "Timeout", "chat"]

DEFAULT_BASE_URL = "http://127.0.0.1:8080/v1"

_READ_BYTES = 65536
_HEAD_BYTES = 1024
_MAX_ERROR_BYTES = 65536
_MAX_JSON_BYTES = 256 * 1024 * 1024
_MAX_IDLE_CONNECTIONS = 8

# After [DONE] the rest is read, usually five bytes, so that the connection can be used again.
_DRAIN_S = 0.1
_DRAIN_BYTES = 65536

# After the finish reason only usage and [DONE] can follow; some servers send neither and do not close.
_AFTER_FINISH_S = 5.0

# Delays between tries, in seconds, and the longest Retry-After that is obeyed.
_FIRST_DELAY_S = 0.5
_MAX_DELAY_S = 8.0
_MAX_RETRY_AFTER_S = 120.0
_RETRIED_STATUSES = frozenset({408, 409, 429})


@dataclass(frozen=True)
class Timeout:
    """Limits in seconds; None means no limit.

    Attributes:
        connect: Until the connection is made.
        first: From the request to the first event. A local server may load a model and read a long prompt.
        idle: Between two reads of bytes, after the first event.
        stall: Between two events that carry something. Keep-alive comments satisfy `idle`, not this.
        total: The whole call, with its retries.
    """

    connect: float | None = 5.0
    first: float | None = 600.0
    idle: float | None = 120.0
    stall: float | None = 600.0
    total: float | None = None

    @classmethod
    def of(cls, value: Timeout | float | None) -> Timeout:
        """One number sets `idle`; None keeps the defaults."""
        if isinstance(value, Timeout):
            return value
        return cls() if value is None else cls(idle=float(value))


class _Clocks:
    """What is left of each limit. All times are of time.monotonic."""

    def __init__(self, timeout: Timeout) -> None:
        self._timeout = timeout
        self._total_end = _after(timeout.total)
        self._event_end: float | None = None
        self._event_kind = "first"
        self.finished = False

    def sent(self) -> None:
        """The request is on its way."""
        self._event_end, self._event_kind = _after(self._timeout.first), "first"

    def event(self) -> None:
        """Something that carries meaning has come."""
        self._event_end, self._event_kind = _after(self._timeout.stall), "stall"

    def connecting(self) -> tuple[float | None, str]:
        """Seconds left to connect, and the kind of the limit that ends first."""
        return self._least(self._timeout.connect, "connect", None, "")

    def reading(self) -> tuple[float | None, str]:
        """Seconds left for one read, and the kind of the limit that ends first."""
        silence = self._timeout.idle if self._event_kind == "stall" else None
        if self.finished:
            silence = _AFTER_FINISH_S if silence is None else min(silence, _AFTER_FINISH_S)
        return self._least(silence, "idle", self._event_end, self._event_kind)

    def total_left(self) -> float | None:
        """Seconds left of the whole call."""
        return None if self._total_end is None else self._total_end - time.monotonic()

    def _least(self, seconds: float | None, kind: str, end: float | None, end_kind: str) -> tuple[float | None, str]:
        """The shortest of a limit from now on, one that ends at a time, and the total."""
        now = time.monotonic()
        for until, its_kind in ((end, end_kind), (self._total_end, "total")):
            if until is not None and (seconds is None or until - now < seconds):
                seconds, kind = until - now, its_kind
        if seconds is not None and seconds <= 0:
            raise _timed_out(kind)
        return seconds, kind


def _after(seconds: float | None) -> float | None:
    """When a limit that begins now ends."""
    return None if seconds is None else time.monotonic() + seconds


_LIMIT_MEANING = {
    "connect": "no connection",
    "first": "no first event",
    "idle": "no further bytes",
    "stall": "bytes, but no event that carries anything",
    "total": "no complete answer",
}


def _timed_out(kind: str) -> TimedOut:
    meaning = _LIMIT_MEANING[kind]
    return TimedOut(f"{meaning} within the limit Timeout.{kind}; raise it if this is expected", kind=kind)


# Addresses


@dataclass(frozen=True)
class _Address:
    """Where a base URL points. `socket_path` is set for unix sockets, and then host is only a name."""

    scheme: str
    host: str
    port: int
    path: str
    query: str = ""
    socket_path: str | None = None

    @property
    def host_header(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def shown(self) -> str:
        """For messages: where we connect to."""
        return self.socket_path or f"{self.host}:{self.port}"

    def target(self, path: str) -> str:
        return self.path + path + ("?" + self.query if self.query else "")


_PORTS = {"http": 80, "https": 443}


def _parse_base_url(text: str) -> _Address:
    """http, https, unix:/path/to/socket, or http+unix://%2Fpath%2Fto%2Fsocket/v1."""
    if text.startswith("unix:"):
        path = "/" + text[len("unix:") :].lstrip("/")
        return _Address("http", "localhost", 80, "/v1", socket_path=path)
    parts = urlsplit(text if "://" in text else "http://" + text)
    if parts.scheme == "http+unix":
        return _Address("http", "localhost", 80, _clean(parts.path), parts.query, unquote(parts.netloc))
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError(f"the base URL must begin with http://, https:// or unix:, not {cut(text, 60)!r}")
    if "@" in parts.netloc:
        raise ValueError("the base URL must not hold a user or a password: use api_key")
    port = parts.port or _PORTS[parts.scheme]
    return _Address(parts.scheme, parts.hostname, port, _clean(parts.path), _quoted(parts.query))


def _clean(path: str) -> str:
    """The prefix of all paths; many people paste the whole address of the chat endpoint."""
    path = _quoted(path.rstrip("/"))
    return path[: -len("/chat/completions")] if path.endswith("/chat/completions") else path


def _quoted(text: str) -> str:
    """What is quoted already stays; blanks and the like, which http.client refuses, are quoted."""
    return quote(text, safe="/?%:@!$&'()*+,;=~")


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host.endswith(".localhost") or host.startswith("127.") or host == "::1"


# Proxies


def _find_proxy(address: _Address, proxy: str | bool | None) -> str | None:
    """The proxy to use. None looks into the environment, False means never.

    Loopback and unix sockets never go through a proxy, whatever the environment says: it could not
    reach them.
    """
    if address.socket_path or _is_loopback(address.host) or proxy is False:
        return None
    if isinstance(proxy, str):
        return proxy
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    import urllib.request  # Late: it costs 3 ms.

    proxies = urllib.request.getproxies()
    if _is_excluded(address.host, address.port, proxies.get("no", "")):
        return None
    return proxies.get(address.scheme) or proxies.get("all") or None


def _is_excluded(host: str, port: int, no_proxy: str) -> bool:
    """Whether `no_proxy` names this host: by name, by suffix, with a port, or as a network (CIDR)."""
    for entry in (item.strip().lower() for item in no_proxy.split(",")):
        name, _, named_port = entry.rpartition(":") if entry.count(":") == 1 else (entry, "", "")
        if named_port and named_port != str(port):
            continue
        name = name.lstrip("*").lstrip(".") if name != "*" else name
        if name and (name == "*" or host == name or host.endswith("." + name) or _in_network(host, name)):
            return True
    return False


def _in_network(host: str, network: str) -> bool:
    if "/" not in network:
        return False
    import ipaddress

    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network, strict=False)
    except ValueError:  # A host name, or an entry that is no network.
        return False


def _proxy_address(proxy: str) -> tuple[str, int]:
    parts = urlsplit(proxy if "://" in proxy else "http://" + proxy)
    if parts.scheme != "http" or not parts.hostname:
        raise OSError(f"only http:// proxies are supported, not {parts.scheme}://; set no_proxy to avoid it")
    return parts.hostname, parts.port or 80


def _proxy_headers(proxy: str | None) -> dict[str, str]:
    parts = urlsplit(proxy or "")
    if parts.username is None:
        return {}
    import base64

    secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return {"Proxy-Authorization": "Basic " + base64.b64encode(secret).decode()}


def _open_tunnel(sock: socket.socket, address: _Address, proxy: str) -> None:
    import http.client

    where = f"{address.host}:{address.port}"
    lines = [f"CONNECT {where} HTTP/1.1", f"Host: {where}"]
    lines += [f"{name}: {value}" for name, value in _proxy_headers(proxy).items()]
    sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("ascii"))
    response = http.client.HTTPResponse(sock, method="CONNECT")
    try:
        response.begin()
        if response.status != 200:
            raise OSError(f"the proxy refused the tunnel: {response.status} {response.reason}")
    finally:
        response.close()


# Connections


_contexts: dict[Any, Any] = {}


def _tls_context(verify: Any) -> ssl.SSLContext:
    """A context costs 20 ms to build, so each is built once. `verify` may be a bool, a path or a context."""
    import ssl

    if isinstance(verify, ssl.SSLContext):
        return verify
    if verify not in _contexts:
        context = ssl.create_default_context(cafile=None if isinstance(verify, bool) else verify)
        if verify is False:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif verify is True and not context.get_ca_certs() and os.name != "nt":
            _load_certifi(context)
        _contexts[verify] = context
    return _contexts[verify]  # type: ignore[no-any-return]  # The cache is untyped: ssl is not loaded yet.


def _load_certifi(context: ssl.SSLContext) -> None:
    """Where the system has no certificates (some macOS builds), take those of certifi, if it is there."""
    with contextlib.suppress(ImportError):
        context.load_verify_locations(importlib.import_module("certifi").where())


class _Connection:
    """One connection to the server, with the http.client object on it."""

    def __init__(self, address: _Address, sock: socket.socket, proxy: str | None) -> None:
        self.sock = sock
        import http.client

        # Set if requests have to be addressed to a proxy; a tunnel through one is like no proxy.
        self.proxy = proxy
        self.used = False
        self.process = os.getpid()
        self.http = http.client.HTTPConnection(address.host, address.port)
        self.http.sock = sock
        self.http.auto_open = 0  # Never reconnect by itself, without our clocks.
        self._limit: float | None = -1.0
        # What http.client raises when the connection breaks, timeouts apart.
        self.errors = (OSError, http.client.HTTPException)

    def set_limit(self, seconds: float | None) -> None:
        """The longest wait for the next bytes. Each change is a system call, so most are saved."""
        if seconds != self._limit:
            self._limit = seconds
            self.sock.settimeout(seconds)

    def is_stale(self) -> bool:
        """An idle connection that can be read from has been closed by the server."""
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(self.sock, select.POLLIN | select.POLLHUP)
            return bool(poll.poll(0))
        return bool(select.select([self.sock], [], [], 0)[0])

    def close(self) -> None:
        self.http.close()
        self.sock.close()

    def __del__(self) -> None:
        self.sock.close()  # Of a client that was dropped and never closed.


def _addresses(host: str, port: int) -> list[Any]:
    """IPv4 first for localhost: where nothing listens on ::1, trying it first costs Windows 2 s."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    if _is_loopback(host):
        found.sort(key=lambda info: info[0] != socket.AF_INET)
    return found


# Bytes to payloads


# How an event stream begins. "error:" is no field of the standard, but old llama.cpp servers use it.
_SSE_BEGINNINGS = (b"data:", b":", b"event:", b"id:", b"retry:", b"error:")
_BOM = b"\xef\xbb\xbf"


class _Frames:
    """The payloads of an answer, whatever its form: event stream, lines of JSON, or one JSON body.

    The first bytes decide, since servers lie in Content-Type. `feed` and `end` raise ProtocolError if
    the answer is neither of the three.
    """

    def __init__(self, content_type: str) -> None:
        self._content_type = content_type
        self._head = b""
        self._held = bytearray()
        self._sse = SSEDecoder(sentinel="[DONE]", fields_as_events=("error",))
        # None until known; "sse", "lines" (of JSON) or "json" (one body over several lines).
        self._kind: str | None = None
        # How many JSON documents came, outside an event stream.
        self.documents = 0

    @property
    def head(self) -> str:
        """How the answer begins, for messages."""
        return cut(self._head.decode("utf-8", "replace"))

    def feed(self, chunk: bytes) -> Iterator[ServerSentEvent]:
        """The payloads that these bytes complete."""
        if self._kind is None:
            self._head = (self._head + chunk).lstrip(b" \t\r\n")
            self._kind = self._sniff(self._head.replace(_BOM, b"", 1))
            if self._kind is None:
                return
            chunk, self._head = self._head, self._head[:_HEAD_BYTES]
        yield from self._feed_sse(chunk) if self._kind == "sse" else self._feed_json(chunk)

    def end(self) -> Iterator[ServerSentEvent]:
        """What was complete but for its line end (K39). A tail that is cut is not handed out."""
        if self._kind is None and self._head:
            raise self._refusal()
        if self._kind == "sse":
            yield from (frame for frame in self._sse.flush() if _is_whole(frame.data))
            return
        text = self._held.decode("utf-8", "replace").strip()
        if _is_whole(text):
            yield self._document(bytes(self._held))
        elif text.endswith(("}", "]")):
            raise ProtocolError(f"the answer is not JSON: {self.head}", head=self.head)

    def _sniff(self, head: bytes) -> str | None:
        if not head:
            return None
        if head[:1] in b"{[":
            return "lines"
        if head.startswith(_SSE_BEGINNINGS):
            return "sse"
        if "event-stream" in self._content_type.lower() and head[:1] != b"<":
            return "sse"
        if not any(beginning.startswith(head) for beginning in _SSE_BEGINNINGS):
            raise self._refusal()
        return None

    def _refusal(self) -> ProtocolError:
        what = "HTML: is the base URL right, or is /v1 missing?" if self.head.startswith("<") else ""
        what = what or f"{self._content_type or 'of no content type'}."
        return ProtocolError(f"this is no chat answer but {what} It begins: {self.head}", head=self.head)

    def _feed_sse(self, chunk: bytes) -> Iterator[ServerSentEvent]:
        try:
            yield from self._sse.feed(chunk)
        except SSEError as error:
            yield from error.events
            raise ProtocolError(f"the answer cannot be read: {error}", head=self.head) from error

    def _feed_json(self, chunk: bytes) -> Iterator[ServerSentEvent]:
        self._held += chunk
        if len(self._held) > _MAX_JSON_BYTES:
            raise ProtocolError(f"a JSON body of more than {_MAX_JSON_BYTES} bytes", head=self.head)
        if self._kind == "json" or b"\n" not in chunk:
            return
        *lines, tail = bytes(self._held).split(b"\n")
        lines = [line for line in lines if line.strip()]
        if lines and not self.documents and not _is_whole(lines[0].decode("utf-8", "replace")):
            self._kind = "json"  # The first line is no JSON of its own: one body over many lines.
            return
        self._held = bytearray(tail)
        yield from (self._document(line) for line in lines)

    def _document(self, raw: bytes) -> ServerSentEvent:
        self.documents += 1
        return ServerSentEvent(data=raw.decode("utf-8", "replace").lstrip("\ufeff"))


def _is_whole(text: str) -> bool:
    """Whether this is [DONE] or complete JSON: what is cut is neither."""
    text = text.strip().lstrip("\ufeff")
    if text == "[DONE]":
        return True
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


# Calls


class _StaleConnection(Exception):
    """A reused connection turned out to be closed before any byte of an answer."""


class _Call:
    """One request: its connection, clocks, retries and cancellation.

    `cancel` may be called from any thread; everything else belongs to the thread that reads, which is
    the only one that closes anything.
    """

    def __init__(
        self,
        client: Client,
        method: str,
        path: str,
        timeout: Timeout,
        send: Callable[[_Call], None] | None = None,
    ) -> None:
        # What is asked. `send` makes the request when it is wanted; it is set once and called once.
        self._client = client
        self._send = send
        self._method = method
        self._path = path
        self._timeout = timeout
        self._body: bytes | None = None
        self._headers: dict[str, str] = {}
        self.clocks = _Clocks(timeout)
        # What has come.
        self.status = 0
        self.headers: dict[str, str] = {}
        self.ended = False
        self.succeeded = False
        self._response: http.client.HTTPResponse | None = None
        self._inflate: Any = None
        self._connection: _Connection | None = None
        # What another thread needs to cancel. The socket is here before anything waits on it.
        self._cancelled = threading.Event()
        self._sock: socket.socket | None = None

    def cancel(self) -> None:
        """Stop at once: whoever waits for the network gets Cancelled, and closes. From any thread."""
        self._cancelled.set()
        sock = self._sock
        if sock is not None:
            # close() would not wake a reader in another thread: it would wait for the next byte itself.
            with contextlib.suppress(OSError):  # Not connected any more: then nobody waits.
                sock.shutdown(socket.SHUT_RDWR)

    def open(self) -> None:
        """Send the request, unless that has been done."""
        send, self._send = self._send, None
        if send is not None:
            send(self)

    def send(self, body: Mapping[str, Any] | None, headers: Mapping[str, str]) -> None:
        """Send the request and take the status, with retries.

        Raises:
            ConnectError, TimedOut, StatusError, ProtocolError, Cancelled.
        """
        self._body = None if body is None else json.dumps(body).encode("ascii")
        self._headers = self._client._request_headers(headers)
        self.clocks = _Clocks(self._timeout)
        tries = 0
        while True:
            try:
                self._send_once()
                return
            except LocalChatError as error:
                self._drop()
                self.check_cancelled(error)
                delay = self._client._retry_delay(error, tries)
                if delay is None:
                    raise
                tries += 1
                self._client._report_retry(tries, delay, error)
            self._wait(delay)

    def read(self, at_most_s: float | None = None) -> bytes:
        """The next bytes of the body, perhaps none; `ended` tells the proper end.

        Args:
            at_most_s: Instead of the clocks: for bytes that are welcome but not needed.

        Raises:
            IncompleteStream: The body was cut.
            TimedOut, Cancelled, ProtocolError.
        """
        response, connection = self._response, self._connection
        if response is None or connection is None or self.ended:
            return b""
        limit, kind = self.clocks.reading() if at_most_s is None else (at_most_s, "idle")
        try:
            connection.set_limit(limit)
            data = response.read1(_READ_BYTES)
        except socket.timeout:
            raise _timed_out(kind) from None
        except connection.errors as error:
            self.check_cancelled(error)
            raise IncompleteStream(f"the connection broke: {error or type(error).__name__}") from error
        if not data:
            self.check_cancelled()  # The end may be our own doing.
            if response.length:
                raise IncompleteStream(f"the connection ended {response.length} bytes too early")
        if not data or response.length == 0:
            response.close()  # With a length, http.client forgets to, and then refuses the next request.
            self.ended = True
        return data if self._inflate is None else self._unpack(data)

    def drain(self) -> None:
        """Read what follows the last event, within short limits, so that the connection can be reused."""
        end, left = time.monotonic() + _DRAIN_S, _DRAIN_BYTES
        try:
            while left > 0 and not self.ended and time.monotonic() < end:
                left -= len(self.read(_DRAIN_S))
        except LocalChatError:
            self.ended = False  # The answer is complete, only its connection is of no further use.
        self.release()

    def release(self) -> None:
        """Give the connection back if the body was read to its end, close it otherwise."""
        connection = self._connection
        if connection is not None and self.ended and not self._cancelled.is_set():
            self._response = self._connection = self._sock = None
            self._client._checkin(connection)
        self._drop()

    def check_cancelled(self, cause: BaseException | None = None) -> None:
        """What goes wrong after a cancel goes wrong because of it."""
        if self._cancelled.is_set():
            raise Cancelled("the stream was closed") from cause

    def mask_error(self, error: LocalChatError) -> None:
        """Take the key out of an error: some servers repeat it in theirs."""
        mask = self._client._mask
        error.args = tuple(mask(item) if isinstance(item, str) else item for item in error.args)
        if isinstance(error, ProtocolError):
            error.head = mask(error.head)

    def mask_payload(self, payload: dict[str, Any]) -> dict[str, Any]:
        """The same for a payload that reports an error; an answer is left as it is."""
        if not (payload.get("error") or "detail" in payload or payload.get("object") == "error"):
            return payload
        masked: dict[str, Any] = json.loads(self._client._mask(json.dumps(payload)))
        return masked

    def _drop(self) -> None:
        """Close everything."""
        if self._response is not None:
            self._response.close()
        for closable in (self._connection, self._sock):
            if closable is not None:
                closable.close()
        self._response = self._connection = self._sock = None

    def _wait(self, delay: float) -> None:
        left = self.clocks.total_left()
        if left is not None and left < delay:
            raise _timed_out("total")
        self._cancelled.wait(delay)

    def _send_once(self) -> None:
        try:
            self._exchange(self._adopt(self._client._checkout() or self._connect()))
        except _StaleConnection:
            # The server closed an idle connection just as we wrote to it: no try is lost by that.
            self._drop()
            self._exchange(self._adopt(self._connect()))
        self._check_encoding()
        if not 200 <= self.status < 300:
            self._raise_status()

    def _adopt(self, connection: _Connection) -> _Connection:
        self._connection, self._sock = connection, connection.sock
        self.check_cancelled()
        return connection

    def _exchange(self, connection: _Connection) -> None:
        """Request out, status and headers in."""
        reused, connection.used = connection.used, True
        self.clocks.sent()
        limit, kind = self.clocks.reading()
        try:
            connection.set_limit(limit)
            target, headers = self._client._request_line(self._path, connection.proxy)
            try:
                connection.http.request(self._method, target, self._body, {**self._headers, **headers})
            except (BrokenPipeError, ConnectionResetError):
                if reused:
                    raise
                # A server may answer before it has read everything (413), and the answer is still there.
            response = connection.http.getresponse()
        except socket.timeout:
            raise _timed_out(kind) from None
        except connection.errors as error:
            if reused and isinstance(error, OSError) and not self._cancelled.is_set():
                raise _StaleConnection from error
            raise ConnectError(self._client._broken(error)) from error
        self._response = response
        self.ended = False
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}

    def _connect(self) -> _Connection:
        import http.client

        client, address = self._client, self._client._address
        limit, kind = self.clocks.connecting()
        deadline = _after(limit)
        proxy = _find_proxy(address, client._proxy)
        try:
            sock = self._open_socket(proxy, deadline)
            if address.scheme == "https":
                sock = self._start_tls(sock, proxy, deadline)
        except socket.timeout:
            raise _timed_out(kind) from None
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            raise ConnectError(client._unreachable(error, proxy)) from error
        return _Connection(address, sock, proxy if address.scheme == "http" else None)

    def _open_socket(self, proxy: str | None, deadline: float | None) -> socket.socket:
        address = self._client._address
        if address.socket_path:
            sock = self._watch(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            sock.settimeout(_left(deadline))
            sock.connect(address.socket_path)
            return sock
        host, port = (address.host, address.port) if proxy is None else _proxy_address(proxy)
        failure = OSError(f"{host} has no address")
        candidates = _addresses(host, port)
        for number, (family, kind, protocol, _, where) in enumerate(candidates):
            sock = self._watch(socket.socket(family, kind, protocol))
            try:
                left = _left(deadline)  # Shared out, so that one dead address leaves time for the next.
                sock.settimeout(None if left is None else left / (len(candidates) - number))
                sock.connect(where)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return sock
            except OSError as error:
                sock.close()
                failure = error
        raise failure

    def _watch(self, sock: socket.socket) -> socket.socket:
        """Let `cancel` know the socket before anything waits on it."""
        self._sock = sock
        self.check_cancelled()
        return sock

    def _start_tls(self, sock: socket.socket, proxy: str | None, deadline: float | None) -> socket.socket:
        address = self._client._address
        if proxy is not None:
            sock.settimeout(_left(deadline))
            _open_tunnel(sock, address, proxy)
        context = _tls_context(self._client._verify)
        # The handshake waits, so the new socket has to be known before.
        wrapped = context.wrap_socket(sock, server_hostname=address.host, do_handshake_on_connect=False)
        self._watch(wrapped)
        wrapped.settimeout(_left(deadline))
        wrapped.do_handshake()
        return wrapped

    def _check_encoding(self) -> None:
        transfer = self.headers.get("transfer-encoding", "").strip().lower()
        content = self.headers.get("content-encoding", "").strip().lower()
        self._inflate = None
        if transfer not in ("", "identity", "chunked"):
            raise ProtocolError(f"the server uses the transfer encoding {transfer!r}, which we did not offer")
        if content in ("gzip", "x-gzip", "deflate"):
            import zlib

            self._inflate = zlib.decompressobj(wbits=47)
        elif content not in ("", "identity"):
            raise ProtocolError(f"the server compresses with {content!r}, which we did not offer")

    def _unpack(self, data: bytes) -> bytes:
        import zlib

        try:
            unpacked: bytes = self._inflate.decompress(data)
        except zlib.error as error:
            raise ProtocolError(f"the compressed answer is damaged: {error}") from error
        return unpacked

    def _raise_status(self) -> None:
        raw = b""
        try:
            while len(raw) < _MAX_ERROR_BYTES and not self.ended:
                raw += self.read()
        except LocalChatError:
            self.ended = False  # What there is of the body has to do.
        self.release()
        raise self._client._status_error(self.status, self.headers, raw.decode("utf-8", "replace"), self._path)


def _left(deadline: float | None) -> float | None:
    """Seconds until a deadline, as the socket's timeout."""
    left = None if deadline is None else deadline - time.monotonic()
    if left is not None and left <= 0:
        raise socket.timeout
    return left


# The public face


class Stream:
    """One answer under way: iterate it for events, or `text` for text; leave the `with` to cancel.

    The request is sent by entering the `with`, or by the first step without one. `reply` is what has
    come so far, also after an error. A stream that is dropped closes its connection.
    """

    def __init__(self, call: _Call, accumulator: Accumulator) -> None:
        self._call = call
        self._accumulator = accumulator
        self._opened = False
        # A generator that knew this object would keep it alive, and the connection with it.
        self._events = _events(call, accumulator)

    def __enter__(self) -> Stream:
        self._open()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[StreamEvent]:
        return self

    def __next__(self) -> StreamEvent:
        if not self._opened:
            self._open()
        event = next(self._events, None)
        if event is None:
            if not self._call.succeeded:
                self._call.check_cancelled()
            raise StopIteration
        return event

    @property
    def text(self) -> Iterator[str]:
        """The pieces of the first choice's text, as they come."""
        for event in self:
            if event.type == "content_delta" and event.choice_index == 0:
                yield event.delta

    @property
    def reply(self) -> Reply:
        """What has come so far; whole after the last event."""
        return _reply(self._call, self._accumulator)

    def close(self) -> None:
        """Cancel, from any thread, at once. The server sees the connection close and stops generating."""
        self._call.cancel()
        with contextlib.suppress(ValueError):  # Another thread is in it: it is awake now, and closes.
            self._events.close()

    def _open(self) -> None:
        """Send the request, if that has not been done: the generator's first step."""
        if not self._opened:
            self._opened = True
            next(self._events, None)


def _reply(call: _Call, accumulator: Accumulator) -> Reply:
    headers = dict(call.headers)
    return replace(accumulator.reply(), request_id=headers.get("x-request-id"), headers=headers)


def _events(call: _Call, accumulator: Accumulator) -> Generator[StreamEvent | None, None, None]:
    """All that happens in a stream: open and yield None; read, finish, and give the connection back."""
    try:
        call.open()
        yield None
        yield from _read_events(call, accumulator)
        call.succeeded = True
    except (StreamError, IncompleteStream, ProtocolError, TimedOut, Cancelled) as error:
        error.partial = _reply(call, accumulator)
        call.mask_error(error)
        raise
    finally:
        call.release()


def _read_events(call: _Call, accumulator: Accumulator) -> Iterator[StreamEvent]:
    frames = _Frames(call.headers.get("content-type", ""))
    done = whole = over = False
    cause: LocalChatError | None = None
    while not (done or over or accumulator.error):
        try:
            data = call.read()
        except (IncompleteStream, TimedOut) as error:
            # Once the finish reason is there nothing that matters is missing.
            if isinstance(error, TimedOut) and not accumulator.complete:
                raise
            data, cause = b"", error
        over = cause is not None or (call.ended and not data)
        for frame in frames.end() if over else frames.feed(data):
            payload = parse_frame(frame.event, frame.data)
            if isinstance(payload, dict):
                call.clocks.event()
                whole = frames.documents == 1 and is_whole_answer(payload)
                yield from accumulator.add(call.mask_payload(payload))
            done = payload is True
            if done or accumulator.error:
                break
        call.clocks.finished = accumulator.complete
    if done:
        call.drain()
    try:
        yield from accumulator.finish(done or whole)
    except IncompleteStream as error:
        if frames.documents and not accumulator.started:
            raise ProtocolError(f"this JSON is no chat answer: {frames.head}", head=frames.head) from None
        message = str(error) if cause is None else f"{error} ({cause})"
        raise IncompleteStream(message) from cause


class Client:
    """A chat client. Usable from many threads, and after a fork.

    Args:
        base_url: Up to and with /v1; else OPENAI_BASE_URL, else http://127.0.0.1:8080/v1. A unix socket
            is `unix:/path/to/socket`, or `http+unix://%2Fpath%2Fto%2Fsocket/v1` with a prefix of its own.
        api_key: Else OPENAI_API_KEY; a local server needs none.
        model: Else LOCALCHAT_MODEL, else the first that the server lists.
        timeout: One number for the idle limit in seconds, or a Timeout.
        max_retries: How often a request that got no answer is sent again.
        on_retry: Called before each retry with its number, the delay in seconds and the error.
        headers: Sent with every request.
        proxy: The proxy's URL, or False for none; None takes the environment's.
        verify: True, False, the path of a CA file, or an ssl.SSLContext.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        model: str | None = None,
        *,
        timeout: Timeout | float | None = None,
        max_retries: int = 2,
        on_retry: Callable[[int, float, LocalChatError], object] | None = None,
        headers: Mapping[str, str] | None = None,
        proxy: str | bool | None = None,
        verify: Any = True,
    ) -> None:
        self.base_url = base_url or os.environ.get("OPENAI_BASE_URL") or DEFAULT_BASE_URL
        self._address = _parse_base_url(self.base_url)
        self._key = _clean_key(os.environ.get("OPENAI_API_KEY", "") if api_key is None else api_key)
        self._model = model or os.environ.get("LOCALCHAT_MODEL") or None
        self._timeout = Timeout.of(timeout)
        self._max_retries = max_retries
        self._on_retry = on_retry
        self._headers = dict(headers or {})
        self._proxy = proxy
        self._verify = verify
        # Learned from the server.
        self._found_model: str | None = None
        self._takes_stream_options = True
        # Idle connections; the last used is the first to be used again.
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._idle: list[_Connection] = []

    def __repr__(self) -> str:
        return f"Client({self.base_url!r})"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the idle connections. The client stays usable."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def chat(self, prompt: Prompt, /, *, stream: bool = True, **options: Any) -> Reply:
        """The whole answer. Takes what `stream` takes.

        The answer is streamed on the wire all the same, so that limits and cancellation mean something;
        `stream=False` is for servers that cannot.

        Raises:
            LocalChatError: One of its subclasses; there is no other way to get less than the answer.
        """
        with self._start(prompt, stream, options) as answer:
            for _ in answer:
                pass
            return answer.reply

    def stream(self, prompt: Prompt, /, **options: Any) -> Stream:
        """An answer as it comes.

        Args:
            prompt: Text, or a list of messages.
            options: `system` (text before the messages), `model`, `timeout` (as for the client),
                `extra_headers`, and `think_tags` ("auto", "prefilled" or "off": what to do with <think>
                in the content). Every other name is a member of the request and sent as it is.
        """
        return self._start(prompt, True, options)

    def models(self) -> list[str]:
        """The names of the models that the server offers."""
        call = _Call(self, "GET", "/models", self._timeout)
        try:
            call.send(None, {})
            raw = b""
            while not call.ended:
                raw += call.read()
            return parse_models(json.loads(raw))
        except ValueError as error:
            head = self._mask(cut(raw.decode("utf-8", "replace")))
            raise ProtocolError(f"the list of models is not JSON: {head}", head=head) from error
        finally:
            call.release()

    def _start(self, prompt: Prompt, stream: bool, options: dict[str, Any]) -> Stream:
        system, model = options.pop("system", None), options.pop("model", None)
        headers = options.pop("extra_headers", None) or {}
        timeout = options.pop("timeout", None)
        n = options.get("n")
        accumulator = Accumulator(n if isinstance(n, int) else 1, options.pop("think_tags", "auto"))

        def send(call: _Call) -> None:
            name = model or self._default_model()
            body = build_request(prompt, model=name, system=system, stream=stream, options=options)
            self._send(call, body, headers)

        limits = self._timeout if timeout is None else Timeout.of(timeout)
        return Stream(_Call(self, "POST", "/chat/completions", limits, send), accumulator)

    def _send(self, call: _Call, body: dict[str, Any], headers: Mapping[str, str]) -> None:
        """Some old servers refuse stream_options: then once more without, and never again with them."""
        if not self._takes_stream_options:
            body.pop("stream_options", None)
        try:
            call.send(body, headers)
        except (BadRequestError, UnprocessableError) as error:
            if "stream_options" not in body or "stream_options" not in error.body:
                raise
            self._takes_stream_options = False
            del body["stream_options"]
            call.send(body, headers)

    def _default_model(self) -> str | None:
        """The one named, or the first on offer; None if the server does not list any."""
        if self._model is None and self._found_model is None:
            try:
                self._found_model = next(iter(self.models()), None)
            except (NotFoundError, ProtocolError):
                return None  # Many servers hold one model and care neither for its name nor for a list.
        return self._model or self._found_model

    def _request_headers(self, extra: Mapping[str, str]) -> dict[str, str]:
        headers = {
            "Host": self._address.host_header,
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            "Cache-Control": "no-store",
            "User-Agent": "localchat",
        }
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        headers.update(self._headers, **extra)
        for name, value in headers.items():
            _check_header(name, value)
        return headers

    def _request_line(self, path: str, proxy: str | None) -> tuple[str, dict[str, str]]:
        """Target and additional headers; a proxy for http wants the whole address."""
        target = self._address.target(path)
        if proxy is None:
            return target, {}
        return f"http://{self._address.host_header}{target}", _proxy_headers(proxy)

    # The idle connections.

    def _checkout(self) -> _Connection | None:
        self._leave_after_fork()
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None or not connection.is_stale():
                return connection
            connection.close()

    def _checkin(self, connection: _Connection) -> None:
        self._leave_after_fork()
        with self._lock:
            # http.client lets go of the socket if the server wants to close it after this answer.
            keep = connection.http.sock is not None and connection.process == self._process
            if keep and len(self._idle) < _MAX_IDLE_CONNECTIONS:
                self._idle.append(connection)
                return
        connection.close()

    def _leave_after_fork(self) -> None:
        """Connections belong to the process that made them, and its lock may be held for ever here."""
        if self._process != os.getpid():
            self._process, self._lock, self._idle = os.getpid(), threading.Lock(), []

    # Retries.

    def _retry_delay(self, error: LocalChatError, tries: int) -> float | None:
        """Seconds to wait before the next try, None if there is to be none."""
        after = None
        if isinstance(error, StatusError):
            asked = error.headers.get("x-should-retry")
            retried = error.status in _RETRIED_STATUSES or error.status >= 500
            if not (retried if asked not in ("true", "false") else asked == "true"):
                return None
            after = error.retry_after
        elif not isinstance(error, (ConnectError, TimedOut)) or getattr(error, "kind", "") == "total":
            return None
        if tries >= self._max_retries or (after or 0) > _MAX_RETRY_AFTER_S:
            return None
        if after is not None and after > 0:
            return after
        return min(_FIRST_DELAY_S * 2.0**tries, _MAX_DELAY_S) * (1 - 0.25 * random.random())

    def _report_retry(self, tries: int, delay: float, error: LocalChatError) -> None:
        if self._on_retry is not None:
            self._on_retry(tries, delay, error)

    # Errors, in words that say what to do.

    def _unreachable(self, error: Exception, proxy: str | None) -> str:
        if proxy is not None:
            return f"no connection to {self._address.shown} through the proxy: {error}"
        if isinstance(error, (ConnectionRefusedError, FileNotFoundError)):
            return (
                f"nothing listens on {self._address.shown}: start a server there "
                "(python -m localchat.server) or set OPENAI_BASE_URL"
            )
        if isinstance(error, socket.gaierror):
            return f"the host {self._address.host!r} is not known: {error}"
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return (
                f"the certificate of {self._address.shown} is not trusted: name the CA with verify=PATH or "
                f"SSL_CERT_FILE ({error})"
            )
        if "WRONG_VERSION_NUMBER" in str(error):
            return f"{self._address.shown} does not speak TLS: use http:// ({error})"
        return f"no connection to {self._address.shown}: {error}"

    def _broken(self, error: Exception) -> str:
        reason = str(error) or type(error).__name__
        return f"{self._address.shown} gave no answer: {cut(self._mask(reason))}"

    def _status_error(self, status: int, headers: Mapping[str, str], body: str, path: str) -> StatusError:
        body = self._mask(body)
        said = parse_error(body)
        hint = self._status_hint(status, headers, body, path, said)
        message = f"{status} from {self._address.shown}: {said.message}" + (f" ({hint})" if hint else "")
        return StatusError.class_for(status)(
            message,
            status=status,
            error_type=said.error_type,
            code=said.code,
            param=said.param,
            retry_after=_retry_after(headers),
            request_id=headers.get("x-request-id"),
            headers=headers,
            body=body,
        )

    def _status_hint(self, status: int, headers: Mapping[str, str], body: str, path: str, said: ErrorEvent) -> str:
        """What to do about it, if that can be told."""
        if 300 <= status < 400:
            return f"it redirects to {headers.get('location', 'nowhere')}: use that as the base URL"
        if status in (401, 403):
            return "set OPENAI_API_KEY or pass api_key" if not self._key else "is the API key right?"
        if status == 404 and path != "/models" and "model" in f"{said.code} {said.message}".lower():
            names = [name for name in self._names_on_offer() if name not in said.message]
            return f"it offers {', '.join(names[:20])}" if names else ""
        if status in (404, 405) and not self._address.path:
            return "is /v1 missing in the base URL?"
        return _too_many_tokens(said.raw)

    def _names_on_offer(self) -> list[str]:
        try:
            return self.models()
        except LocalChatError:
            return []  # This only serves to explain another error.

    def _mask(self, text: str) -> str:
        """The key must not get into messages: some servers repeat it in theirs."""
        return text.replace(self._key, "***") if len(self._key) > 3 else text


def _clean_key(key: str) -> str:
    """http.client would print a wrong key in its error, so it is looked at here, and not shown."""
    key = key.strip()
    _check_header("Authorization: is the API key right?", key)
    return key


def _check_header(name: str, value: str) -> None:
    if not value.isascii() or not value.isprintable():
        raise ValueError(f"a header has characters that cannot be sent, a line end say ({name})")


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds, from `retry-after-ms`, or `retry-after` in seconds or as a date."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        return seconds if math.isfinite(seconds) else None
    import email.utils

    date = email.utils.parsedate_tz(headers.get("retry-after", ""))
    return None if date is None else email.utils.mktime_tz(date) - time.time()


def _too_many_tokens(body: Any) -> str:
    """llama.cpp servers give both numbers with a prompt that is too long."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return ""
    tokens, context = error.get("n_prompt_tokens"), error.get("n_ctx")
    if not isinstance(tokens, int) or not isinstance(context, int) or tokens <= context:
        return ""
    return f"{tokens} tokens are {tokens - context} more than the context of {context} holds"


def chat(prompt: Prompt, /, **options: Any) -> Reply:
    """The whole answer of the server that the environment names; see Client and Client.chat."""
    with Client() as client:
        return client.chat(prompt, **options)
