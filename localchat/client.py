"""The chat client: requests over http.client, answers as typed events.

The only module beside `aio` that opens a connection. Bytes go through `sse` and `wire`, which know no
sockets. To vendor the client, copy sse.py, events.py, wire.py and client.py into a package folder of
yours, side by side, and import Client from there; they need the standard library only. Or take all
four as one file: python -m localchat.vendor. What waits for nothing (Caller, CallState, Answer) is shared
with the asynchronous client.

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
import select
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload
from urllib.parse import quote, unquote, urljoin, urlsplit

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
    changed,
)
from .sse import ServerSentEvent, SSEDecoder, SSEError
from .wire import (
    Accumulator,
    Prompt,
    build_request,
    cut,
    is_whole_answer,
    parse_embeddings,
    parse_error,
    parse_frame,
    parse_models,
)

if TYPE_CHECKING:  # http.client and ssl cost 15 to 25 ms to import: they are loaded by the first request.
    import http.client
    import ssl

    from .conversation import Conversation
    from .tools import AnyTool, ToolRun


DEFAULT_BASE_URL = "http://127.0.0.1:8080/v1"

READ_BYTES = 65536
_HEAD_BYTES = 1024
MAX_ERROR_BYTES = 65536
_MAX_JSON_BYTES = 256 * 1024 * 1024
MAX_IDLE_CONNECTIONS = 8
_MAX_REDIRECTS = 5

# After [DONE] the rest is read, usually five bytes, so that the connection can be used again.
DRAIN_S = 0.1
DRAIN_BYTES = 65536

# After the finish reason only usage and [DONE] can follow; some servers send neither and do not close.
_AFTER_FINISH_S = 5.0

# Delays between tries, in seconds, and the longest Retry-After that is obeyed.
_FIRST_DELAY_S = 0.5
_MAX_DELAY_S = 8.0
_MAX_RETRY_AFTER_S = 120.0
_RETRIED_STATUSES = frozenset({408, 409, 429})


class Timeout(NamedTuple):
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


class Clocks:
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
            raise timed_out(kind)
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


def timed_out(kind: str) -> TimedOut:
    meaning = _LIMIT_MEANING[kind]
    return TimedOut(f"{meaning} within the limit Timeout.{kind}; raise it if this is expected", kind=kind)


# Addresses


class Address(NamedTuple):
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
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def shown(self) -> str:
        """For messages: where we connect to."""
        return self.socket_path or f"{self.host}:{self.port}"

    def target(self, path: str) -> str:
        return self.path + path + ("?" + self.query if self.query else "")

    def peer(self, proxy: str | None) -> tuple[str, int]:
        """The host and the port to connect to."""
        return (self.host, self.port) if proxy is None else _proxy_address(proxy)

    def same_origin(self, target: str, location: str) -> str | None:
        """Where `location` leads from `target`; None if that is another scheme, host or port."""
        origin = f"{self.scheme}://{self.host_header}"
        parts = urlsplit(urljoin(origin + target, location))
        if (parts.scheme, parts.hostname, parts.port or PORTS.get(parts.scheme)) != self[:3]:
            return None
        path = _quoted(parts.path) or "/"
        return path + ("?" + _quoted(parts.query) if parts.query else "")


PORTS = {"http": 80, "https": 443}


def _parse_base_url(text: str) -> Address:
    """http, https, unix:/path/to/socket, or http+unix://%2Fpath%2Fto%2Fsocket/v1."""
    if text.startswith("unix:"):
        path = "/" + text[len("unix:") :].lstrip("/")
        return Address("http", "localhost", 80, "/v1", socket_path=path)
    parts = urlsplit(text if "://" in text else "http://" + text)
    if parts.scheme == "http+unix":
        return Address("http", "localhost", 80, _clean(parts.path), parts.query, unquote(parts.netloc))
    if parts.scheme not in PORTS or not parts.hostname:
        raise ValueError(f"the base URL must begin with http://, https:// or unix:, not {cut(text, 60)!r}")
    if "@" in parts.netloc:
        raise ValueError("the base URL must not hold a user or a password: use api_key")
    port = parts.port or PORTS[parts.scheme]
    return Address(parts.scheme, parts.hostname, port, _clean(parts.path), _quoted(parts.query))


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


def find_proxy(address: Address, proxy: str | bool | None) -> str | None:
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


def tunnel_request(address: Address, proxy: str) -> bytes:
    """What asks a proxy for a tunnel to the server."""
    where = f"{address.host}:{address.port}"
    lines = [f"CONNECT {where} HTTP/1.1", f"Host: {where}"]
    lines += [f"{name}: {value}" for name, value in _proxy_headers(proxy).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


def _open_tunnel(sock: socket.socket, address: Address, proxy: str) -> None:
    import http.client

    sock.sendall(tunnel_request(address, proxy))
    response = http.client.HTTPResponse(sock, method="CONNECT")
    try:
        response.begin()
        if response.status != 200:
            raise OSError(f"the proxy refused the tunnel: {response.status} {response.reason}")
    finally:
        response.close()


# Connections


_contexts: dict[Any, Any] = {}


def tls_context(verify: Any) -> ssl.SSLContext:
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

    def __init__(self, address: Address, sock: socket.socket, proxy: str | None) -> None:
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
        if self.sock.fileno() < 0:
            return True
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


def addresses(host: str, port: int) -> list[Any]:
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

    def feed(self, chunk: bytes) -> Iterable[ServerSentEvent]:
        """The payloads that these bytes complete."""
        if self._kind is None:
            self._head = (self._head + chunk).lstrip(b" \t\r\n")
            self._kind = self._sniff(self._head)
            if self._kind is None:
                return ()
            chunk, self._head = self._head, self._head[:_HEAD_BYTES]
        return self._feed_sse(chunk) if self._kind == "sse" else self._feed_json(chunk)

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
        elif text.endswith(("}", "]")) and (_fault_at(text) or 0) < len(text):
            raise ProtocolError(f"the answer is not JSON: {self.head}", head=self.head)

    def _sniff(self, head: bytes) -> str | None:
        if _BOM.startswith(head[: len(_BOM)]):
            head = head[len(_BOM) :]
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

    def _feed_sse(self, chunk: bytes) -> Iterable[ServerSentEvent]:
        try:
            return self._sse.feed(chunk)
        except SSEError as error:
            return self._fail(error)

    def _fail(self, error: SSEError) -> Iterator[ServerSentEvent]:
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
    return text == "[DONE]" or _fault_at(text) is None


def _fault_at(text: str) -> int | None:
    """Where this stops being JSON, None if it does not. JSON that is cut has its fault at the very end."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.pos
    except (ValueError, RecursionError):  # A number or a nesting beyond what Python reads.
        return 0
    return None


# What clients have in common


class Question(NamedTuple):
    """One call of `chat` or `stream`: what the body is made of, and what stays here."""

    prompt: Prompt
    stream: bool
    accumulator: Accumulator
    timeout: Timeout
    system: str | None
    model: str | None
    headers: Mapping[str, str]
    options: Mapping[str, Any]


class Caller:
    """What all clients have in common: how they were set up, and every decision that waits for nothing.
    The arguments are described at Client.
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
        follow_redirects: bool = False,
        record: str | os.PathLike[str] | None = None,
        transport: Any = None,
    ) -> None:
        self.base_url = base_url or os.environ.get("OPENAI_BASE_URL") or DEFAULT_BASE_URL
        self.address = _parse_base_url(self.base_url)
        self._key = _clean_key(os.environ.get("OPENAI_API_KEY", "") if api_key is None else api_key)
        self._model = model or os.environ.get("LOCALCHAT_MODEL") or None
        self.timeout = Timeout.of(timeout)
        self._max_retries = max_retries
        self._on_retry = on_retry
        self._headers = dict(headers or {})
        self.proxy = proxy
        self.verify = verify
        self.follow_redirects = follow_redirects
        self.transport = transport
        if record is not None:
            self.transport = _companion("record").Recorder(record, secret=self._key)
        # Learned from the server.
        self._found_model: str | None = None
        self._takes_stream_options = True
        self._set_up()

    def _set_up(self) -> None:
        """What a client of its kind has besides."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.base_url!r})"

    # Requests.

    def request_headers(self, extra: Mapping[str, str]) -> dict[str, str]:
        headers = {
            "Host": self.address.host_header,
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

    def request_line(self, target: str, proxy: str | None) -> tuple[str, dict[str, str]]:
        """Target and additional headers; a proxy for http wants the whole address."""
        if proxy is None:
            return target, {}
        return f"http://{self.address.host_header}{target}", _proxy_headers(proxy)

    def question(self, prompt: Prompt, stream: bool, options: Mapping[str, Any]) -> Question:
        """Options of a call to what is sent and what is ours."""
        sent = dict(options)
        prompt = _with_media(prompt, sent)
        if _wants_value(sent.get("response_format")):
            sent["response_format"] = _companion("schema").response_format(sent["response_format"])
        timeout, n = sent.pop("timeout", None), sent.get("n")
        accumulator = Accumulator(n if isinstance(n, int) else 1, sent.pop("think_tags", "auto"))
        return Question(
            prompt,
            stream,
            accumulator,
            self.timeout if timeout is None else Timeout.of(timeout),
            sent.pop("system", None),
            sent.pop("model", None),
            sent.pop("extra_headers", None) or {},
            sent,
        )

    def body_for(self, asked: Question, model: str | None) -> dict[str, Any]:
        """The body of a chat request."""
        body = build_request(asked.prompt, model=model, system=asked.system, stream=asked.stream, options=asked.options)
        if not self._takes_stream_options:
            body.pop("stream_options", None)
        return body

    def completion_for(self, asked: Question, model: str | None) -> dict[str, Any]:
        """The body of a request for /completions: it has a prompt where the other has messages."""
        if asked.system is not None:
            raise ValueError("a completion has no system message: put it into the prompt")
        body = self.body_for(asked._replace(prompt=[]), model)
        del body["messages"]
        return {**body, "prompt": asked.prompt}

    def embedding_for(self, asked: Question, texts: Sequence[str], model: str | None) -> dict[str, Any]:
        """The body of a request for /embeddings."""
        body = {**asked.options, "model": model, "input": texts}
        return {name: value for name, value in body.items() if value is not None}

    def read_vectors(self, raw: bytes, n_texts: int) -> list[list[float]]:
        """The vectors of an answer of /embeddings."""
        try:
            return parse_embeddings(json.loads(raw), n_texts)
        except ValueError as error:
            raise self.not_json("embeddings are", raw) from error

    def with_value(self, reply: Reply, target: Any) -> Reply:
        """The reply with `parsed` in it, if its `response_format` said what it holds.

        Raises:
            DoesNotFit: It holds something else.
        """
        return changed(reply, parsed=_companion("schema").read_reply(target, reply)) if _wants_value(target) else reply

    def without_stream_options(self, body: dict[str, Any], error: StatusError) -> dict[str, Any]:
        """Some old servers refuse stream_options: then once more without, and never again with them.

        Raises:
            StatusError: This error, if it is about something else.
        """
        if "stream_options" not in body or "stream_options" not in error.body:
            raise error
        self._takes_stream_options = False
        return {name: value for name, value in body.items() if name != "stream_options"}

    # Retries.

    def retry_delay(self, error: LocalChatError, tries: int) -> float | None:
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
        import random

        return min(_FIRST_DELAY_S * 2.0**tries, _MAX_DELAY_S) * (1 - 0.25 * random.random())

    def report_retry(self, tries: int, delay: float, error: LocalChatError) -> None:
        if self._on_retry is not None:
            self._on_retry(tries, delay, error)

    # Errors, in words that say what to do.

    def unreachable(self, error: Exception, proxy: str | None) -> str:
        if proxy is not None:
            return f"no connection to {self.address.shown} through the proxy: {error}"
        if isinstance(error, (ConnectionRefusedError, FileNotFoundError)):
            return (
                f"nothing listens on {self.address.shown}: start a server there "
                "(python -m localchat.server) or set OPENAI_BASE_URL"
            )
        if isinstance(error, socket.gaierror):
            return f"the host {self.address.host!r} is not known: {error}"
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return (
                f"the certificate of {self.address.shown} is not trusted: name the CA with verify=PATH or "
                f"SSL_CERT_FILE ({error})"
            )
        if "WRONG_VERSION_NUMBER" in str(error):
            return f"{self.address.shown} does not speak TLS: use http:// ({error})"
        return f"no connection to {self.address.shown}: {error}"

    def broken(self, error: Exception) -> str:
        reason = str(error) or type(error).__name__
        return f"{self.address.shown} gave no answer: {cut(self._mask(reason))}"

    def status_error(self, status: int, headers: Mapping[str, str], body: str) -> StatusError:
        body = self._mask(body)
        headers = {name: self._mask(value) for name, value in headers.items()}
        said = parse_error(body)
        hint = self._status_hint(status, headers, said)
        message = f"{status} from {self.address.shown}: {said.message}" + (f" ({hint})" if hint else "")
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

    def read_models(self, raw: bytes) -> list[str]:
        """The names in an answer of /models."""
        try:
            return parse_models(json.loads(raw))
        except ValueError as error:
            raise self.not_json("list of models is", raw) from error

    def not_json(self, what: str, raw: bytes) -> ProtocolError:
        head = self._mask(cut(raw.decode("utf-8", "replace")))
        return ProtocolError(f"the {what} not JSON: {head}", head=head)

    def _status_hint(self, status: int, headers: Mapping[str, str], said: ErrorEvent) -> str:
        """What to do about it, if that can be told."""
        if 300 <= status < 400:
            return f"it redirects to {headers.get('location', 'nowhere')}: use that as the base URL"
        if status in (401, 403):
            return "set OPENAI_API_KEY or pass api_key" if not self._key else "is the API key right?"
        if status in (404, 405) and not self.address.path:
            return "is /v1 missing in the base URL?"
        return _too_many_tokens(said.raw)

    @staticmethod
    def wants_names(error: StatusError, path: str) -> bool:
        """Whether the server does not know the model, so that the names of those on offer would help."""
        said = f"{error.code} {error}".lower()
        return error.status == 404 and path != "/models" and "model" in said

    @staticmethod
    def add_names(error: StatusError, names: list[str]) -> None:
        names = [name for name in names if name not in str(error)]
        if names:
            error.args = (f"{error} (it offers {', '.join(names[:20])})",)

    # The key must not get into messages: some servers repeat it in theirs.

    def mask_error(self, error: LocalChatError) -> None:
        """Take the key out of an error."""
        error.args = tuple(self._mask(item) if isinstance(item, str) else item for item in error.args)
        if isinstance(error, ProtocolError):
            error.head = self._mask(error.head)

    def mask_payload(self, payload: dict[str, Any]) -> dict[str, Any]:
        """The same for a payload that reports an error; an answer is left as it is."""
        if not (payload.get("error") or "detail" in payload or payload.get("object") == "error"):
            return payload
        masked: dict[str, Any] = json.loads(self._mask(json.dumps(payload)))
        return masked

    def _mask(self, text: str) -> str:
        return text.replace(self._key, "***") if len(self._key) > 3 else text


# Calls


class StaleConnection(Exception):
    """A reused connection turned out to be closed before any byte of an answer."""


class CallState:
    """What there is to know of one request while it is made: what is asked, its clocks, tries and status.

    The calls of the client and of the asynchronous client add what waits for the network.
    """

    def __init__(self, caller: Caller, method: str, path: str, timeout: Timeout) -> None:
        # What is asked.
        self.caller = caller
        self.method = method
        self.path = path
        self.target = caller.address.target(path)
        self.body: bytes | None = None
        self.request_headers: dict[str, str] = {}
        self._timeout = timeout
        self._tries = 0
        self._redirects = 0
        self.clocks = Clocks(timeout)
        # What has come.
        self.status = 0
        self.headers: dict[str, str] = {}
        self.ended = False
        self.succeeded = False
        self._inflate: Any = None

    def prepare(self, body: Mapping[str, Any] | None, headers: Mapping[str, str]) -> None:
        """Set what is sent, and start the clocks."""
        self.body = None if body is None else json.dumps(body).encode("ascii")
        self.request_headers = self.caller.request_headers(headers)
        self.clocks = Clocks(self._timeout)
        self._tries = 0

    def next_delay(self, error: LocalChatError) -> float:
        """Seconds to wait before the next try.

        Raises:
            LocalChatError: This error, if there is to be no other try, or the total is too short for it.
        """
        delay = self.caller.retry_delay(error, self._tries)
        if delay is None:
            raise error
        self._tries += 1
        self.caller.report_retry(self._tries, delay, error)
        left = self.clocks.total_left()
        if left is not None and left < delay:
            raise timed_out("total")
        return delay

    def take_head(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        """The status and the headers have come.

        Raises:
            ProtocolError: The body is packed in a way that was not offered.
        """
        self.ended = False
        self.status = status
        self.headers = {name.lower(): value for name, value in headers}
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

    def unpack(self, data: bytes) -> bytes:
        """A piece of the body as it was before the server compressed it."""
        if self._inflate is None:
            return data
        import zlib

        try:
            unpacked: bytes = self._inflate.decompress(data)
        except zlib.error as error:
            raise ProtocolError(f"the compressed answer is damaged: {error}") from error
        return unpacked

    def redirect(self) -> bool:
        """Whether to ask again elsewhere on the same server, with the same body; sets the target."""
        if self.status not in (307, 308) or not self.caller.follow_redirects or self._redirects >= _MAX_REDIRECTS:
            return False
        target = self.caller.address.same_origin(self.target, self.headers.get("location", ""))
        if target is None:
            return False
        self._redirects += 1
        self.target = target
        return True

    def status_error(self, raw: bytes) -> StatusError:
        """The error for a status other than 2xx, with what could be read of the body."""
        body = raw.decode("utf-8", "replace")
        return self.caller.status_error(self.status, self.headers, body)


class _Call(CallState):
    """A request over http.client.

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
        super().__init__(client, method, path, timeout)
        self._client = client
        # Makes the request when it is wanted; it is set once and called once.
        self._send = send
        self._response: http.client.HTTPResponse | None = None
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
        self.prepare(body, headers)
        while True:
            try:
                self._send_once()
                return
            except LocalChatError as error:
                self._drop()
                self.check_cancelled(error)
                delay = self.next_delay(error)
            self._cancelled.wait(delay)

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
            data = response.read1(READ_BYTES)
        except socket.timeout:
            raise timed_out(kind) from None
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
        return self.unpack(data)

    def drain(self) -> None:
        """Read what follows the last event, within short limits, so that the connection can be reused."""
        end, left = time.monotonic() + DRAIN_S, DRAIN_BYTES
        try:
            while left > 0 and not self.ended and time.monotonic() < end:
                left -= len(self.read(DRAIN_S))
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

    def _drop(self) -> None:
        """Close everything."""
        if self._response is not None:
            self._response.close()
        for closable in (self._connection, self._sock):
            if closable is not None:
                closable.close()
        self._response = self._connection = self._sock = None

    def _send_once(self) -> None:
        try:
            self._exchange(self._adopt(self._client._checkout() or self._connect()))
        except StaleConnection:
            # The server closed an idle connection just as we wrote to it: no try is lost by that.
            self._drop()
            self._exchange(self._adopt(self._connect()))
        if self.redirect():
            self._read_error_body()
            self._send_once()
        elif not 200 <= self.status < 300:
            error = self.status_error(self._read_error_body())
            if self.caller.wants_names(error, self.path):
                self.caller.add_names(error, self._client._names_on_offer())
            raise error

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
            target, headers = self.caller.request_line(self.target, connection.proxy)
            try:
                connection.http.request(self.method, target, self.body, {**self.request_headers, **headers})
            except (BrokenPipeError, ConnectionResetError):
                if reused:
                    raise
                # A server may answer before it has read everything (413), and the answer is still there.
            response = connection.http.getresponse()
        except socket.timeout:
            raise timed_out(kind) from None
        except connection.errors as error:
            if reused and isinstance(error, OSError) and not self._cancelled.is_set():
                raise StaleConnection from error
            raise ConnectError(self.caller.broken(error)) from error
        self._response = response
        self.take_head(response.status, response.getheaders())

    def _connect(self) -> _Connection:
        import http.client

        caller, address = self.caller, self.caller.address
        limit, kind = self.clocks.connecting()
        deadline = _after(limit)
        proxy = find_proxy(address, caller.proxy)

        def connect() -> socket.socket:
            sock = self._open_socket(proxy, deadline)
            return self._start_tls(sock, proxy, deadline) if address.scheme == "https" else sock

        try:
            sock = connect() if caller.transport is None else caller.transport.connect(connect)
        except socket.timeout:
            raise timed_out(kind) from None
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            raise ConnectError(caller.unreachable(error, proxy)) from error
        return _Connection(address, sock, proxy if address.scheme == "http" else None)

    def _open_socket(self, proxy: str | None, deadline: float | None) -> socket.socket:
        address = self.caller.address
        if address.socket_path:
            sock = self._watch(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            sock.settimeout(_left(deadline))
            sock.connect(address.socket_path)
            return sock
        host, port = address.peer(proxy)
        failure = OSError(f"{host} has no address")
        candidates = addresses(host, port)
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
        address = self.caller.address
        if proxy is not None:
            sock.settimeout(_left(deadline))
            _open_tunnel(sock, address, proxy)
        context = tls_context(self.caller.verify)
        # The handshake waits, so the new socket has to be known before.
        wrapped = context.wrap_socket(sock, server_hostname=address.host, do_handshake_on_connect=False)
        self._watch(wrapped)
        wrapped.settimeout(_left(deadline))
        wrapped.do_handshake()
        return wrapped

    def _read_error_body(self) -> bytes:
        raw = b""
        try:
            while len(raw) < MAX_ERROR_BYTES and not self.ended:
                raw += self.read()
        except LocalChatError:
            self.ended = False  # What there is of the body has to do.
        self.release()
        return raw


def _left(deadline: float | None) -> float | None:
    """Seconds until a deadline, as the socket's timeout."""
    left = None if deadline is None else deadline - time.monotonic()
    if left is not None and left <= 0:
        raise socket.timeout
    return left


# Answers


ANSWER_ERRORS = (StreamError, IncompleteStream, ProtocolError, TimedOut, Cancelled)


class Answer:
    """One answer while its bytes come in: bytes to events, and whether it ends as it should. No I/O.

    Feed it until it is `over`, then take what `finish` yields. `done` says that the end mark has come, so
    that what follows may be read only to use the connection again.
    """

    def __init__(self, call: CallState, accumulator: Accumulator) -> None:
        self._call = call
        self._accumulator = accumulator
        self._frames = _Frames(call.headers.get("content-type", ""))
        self._whole = False
        self._cause: LocalChatError | None = None
        self.done = False
        self.over = False

    def feed(self, data: bytes) -> Iterator[StreamEvent]:
        """The next bytes; none and the end of the body make it over."""
        ended = self._call.ended and not data
        return self._take(self._frames.end() if ended else self._frames.feed(data), ended)

    def cut(self, error: LocalChatError) -> Iterator[StreamEvent]:
        """Reading failed. Once the finish reason is there nothing that matters is missing."""
        if isinstance(error, TimedOut) and not self._accumulator.complete:
            raise error
        self._cause = error
        return self._take(self._frames.end(), True)

    def finish(self) -> Iterator[StreamEvent]:
        """The events of the end, or the error that there is instead."""
        try:
            yield from self._accumulator.finish(self.done or self._whole)
        except IncompleteStream as error:
            head = self._frames.head
            if self._frames.documents and not self._accumulator.started:
                raise ProtocolError(f"this JSON is no chat answer: {head}", head=head) from None
            message = str(error) if self._cause is None else f"{error} ({self._cause})"
            raise IncompleteStream(message) from self._cause

    def _take(self, frames: Iterable[ServerSentEvent], ended: bool) -> Iterator[StreamEvent]:
        accumulator, clocks = self._accumulator, self._call.clocks
        for frame in frames:
            payload = parse_frame(frame.event, frame.data)
            if isinstance(payload, dict):
                clocks.event()
                self._whole = self._frames.documents == 1 and is_whole_answer(payload)
                yield from accumulator.add(self._call.caller.mask_payload(payload))
            self.done = payload is True
            if self.done or accumulator.error:
                ended = True
                break
        clocks.finished = accumulator.complete
        self.over = ended


def ended_by(error: LocalChatError, call: CallState, accumulator: Accumulator) -> list[StreamEvent]:
    """An error ends the answer: put what has come into it, and return the events that were held back."""
    held = accumulator.flush()
    if isinstance(error, ANSWER_ERRORS):
        error.partial = reply_of(call, accumulator)
    call.caller.mask_error(error)
    return [] if isinstance(error, Cancelled) else held


def reply_of(call: CallState, accumulator: Accumulator) -> Reply:
    """What has come so far."""
    headers = dict(call.headers)
    return changed(accumulator.reply(), request_id=headers.get("x-request-id"), headers=headers)


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
        return reply_of(self._call, self._accumulator)

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


def _events(call: _Call, accumulator: Accumulator) -> Generator[StreamEvent | None, None, None]:
    """All that happens in a stream: open and yield None; read, finish, and give the connection back."""
    try:
        call.open()
        yield None
        yield from _read_events(call, accumulator)
        call.succeeded = True
    except ANSWER_ERRORS as error:
        yield from ended_by(error, call, accumulator)
        raise
    finally:
        call.release()


def _read_events(call: _Call, accumulator: Accumulator) -> Iterator[StreamEvent]:
    answer = Answer(call, accumulator)
    while not answer.over:
        try:
            data = call.read()
        except (IncompleteStream, TimedOut) as error:
            yield from answer.cut(error)
        else:
            yield from answer.feed(data)
    if answer.done:
        call.drain()
    yield from answer.finish()


class Client(Caller):
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
        follow_redirects: Whether to follow 307 and 308 on the same server, with the same body. Any other
            redirect is an error that names the target; the key never goes to another server.
        record: A file into which everything sent and received is written, the key masked; see `replay`.
        transport: What connects instead of the client: a `replay(file)`, for tests without a server.
    """

    def _set_up(self) -> None:
        # Idle connections; the last used is the first to be used again.
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._idle: list[_Connection] = []

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
            return self.with_value(answer.reply, options.get("response_format"))

    def stream(self, prompt: Prompt, /, **options: Any) -> Stream:
        """An answer as it comes.

        Args:
            prompt: Text, or a list of messages.
            options: `system` (text before the messages), `model`, `timeout` (as for the client),
                `extra_headers`, and `think_tags` ("auto", "prefilled" or "off": what to do with <think>
                in the content). `images` and `audio` (lists of paths, bytes or URLs) go into the last message.
                `response_format` may also be a type, a schema or "name, age int" (see schema); with `chat` the
                answer is checked and is then `reply.parsed`. Every other name is a member of the request and
                sent as it is.
        """
        return self._start(prompt, True, options)

    def models(self) -> list[str]:
        """The names of the models that the server offers."""
        return self.read_models(self._fetch("GET", "/models", None, {}, self.timeout))

    @overload
    def run(
        self, prompt: Prompt, /, tools: Iterable[AnyTool] = (), *, stream: Literal[False] = False, **options: Any
    ) -> Reply: ...

    @overload
    def run(
        self, prompt: Prompt, /, tools: Iterable[AnyTool] = (), *, stream: Literal[True], **options: Any
    ) -> ToolRun: ...

    def run(
        self, prompt: Prompt, /, tools: Iterable[AnyTool] = (), *, stream: bool = False, **options: Any
    ) -> Reply | ToolRun:
        """The answer of a model that may call functions: they are run and it is asked again until it is done.

        Args:
            prompt: Text, or a list of messages.
            tools: Functions; their annotations and docstrings tell the model what they do.
            stream: Return the run, to be iterated for events, those of the tools' results included.
            options: `max_rounds` (10: how often the model is asked), `on_call` (asked with each ToolCall before it
                runs: False or a text refuses it), `parallel` (calls of one round run in threads), `raise_errors`
                (a tool's exception is raised, not told to the model), and all that `stream` takes, for every round.

        Raises:
            TooManyRounds: The model was still calling functions.
            LocalChatError: As from `chat`.
        """
        home = _companion("tools")
        run: ToolRun = home.start_run(home.ToolRun, self, prompt, tools, **options)
        return run if stream else run.finish()

    def conversation(self, **options: Any) -> Conversation:
        """A list of messages that grows turn by turn; takes what Conversation takes."""
        conversation: Conversation = _companion("conversation").Conversation(self, **options)
        return conversation

    def complete(self, prompt: Any, /, *, stream: bool = True, **options: Any) -> Reply:
        """How a text goes on, without a chat template (/completions). Options are those of `stream`."""
        with self._start(prompt, stream, {"think_tags": "off", **options}, "/completions") as answer:
            for _ in answer:
                pass
            return answer.reply

    @overload
    def embed(self, text: str, /, **options: Any) -> list[float]: ...

    @overload
    def embed(self, text: Sequence[str], /, **options: Any) -> list[list[float]]: ...

    def embed(self, text: str | Sequence[str], /, **options: Any) -> list[float] | list[list[float]]:
        """The vector of a text, or the vectors of several (/embeddings). Options as for `stream`."""
        question = self.question("", False, options)
        texts = [text] if isinstance(text, str) else list(text)
        body = self.embedding_for(question, texts, question.model or self._default_model())
        raw = self._fetch("POST", "/embeddings", body, question.headers, question.timeout)
        vectors = self.read_vectors(raw, len(texts))
        return vectors[0] if isinstance(text, str) else vectors

    def _fetch(
        self, method: str, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str], timeout: Timeout
    ) -> bytes:
        """The whole body of an answer that is no chat."""
        call = _Call(self, method, path, timeout)
        raw = b""
        try:
            call.send(body, headers)
            while not call.ended:
                raw += call.read()
        finally:
            call.release()
        return raw

    def _start(self, prompt: Prompt, stream: bool, options: dict[str, Any], path: str = "/chat/completions") -> Stream:
        question = self.question(prompt, stream, options)
        make_body = self.completion_for if path == "/completions" else self.body_for

        def send(call: _Call) -> None:
            body = make_body(question, question.model or self._default_model())
            try:
                call.send(body, question.headers)
            except (BadRequestError, UnprocessableError) as error:
                call.send(self.without_stream_options(body, error), question.headers)

        return Stream(_Call(self, "POST", path, question.timeout, send), question.accumulator)

    def _default_model(self) -> str | None:
        """The one named, or the first on offer; None if the server does not list any."""
        if self._model is None and self._found_model is None:
            try:
                self._found_model = next(iter(self.models()), None)
            except (NotFoundError, ProtocolError):
                return None  # Many servers hold one model and care neither for its name nor for a list.
        return self._model or self._found_model

    def _names_on_offer(self) -> list[str]:
        try:
            return self.models()
        except LocalChatError:
            return []  # This only serves to explain another error.

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
            if keep and len(self._idle) < MAX_IDLE_CONNECTIONS:
                self._idle.append(connection)
                return
        connection.close()

    def _leave_after_fork(self) -> None:
        """Connections belong to the process that made them, and its lock may be held for ever here."""
        if self._process != os.getpid():
            self._process, self._lock, self._idle = os.getpid(), threading.Lock(), []


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


def _companion(name: str) -> Any:
    """A module of the package that the four files of the client can do without."""
    try:
        return importlib.import_module(f".{name}", __package__)
    except (ImportError, TypeError) as error:  # TypeError: as a single file it has no package at all.
        message = f"this needs localchat's {name}.py, which is not beside the client: install localchat"
        raise ImportError(message) from error


def _with_media(prompt: Prompt, options: dict[str, Any]) -> Prompt:
    """Take images and audio out of the options; a mapping is OpenAI's `audio`, which is about the answer."""
    sources = {
        name: options.pop(name)
        for name in ("images", "audio")
        if options.get(name) is not None and not isinstance(options[name], Mapping)
    }
    with_media: Prompt = _companion("media").attach(prompt, **sources) if sources else prompt
    return with_media


def _wants_value(target: Any) -> bool:
    """Whether a response_format names a type or a schema, not what the protocol itself knows."""
    kinds = ("json_schema", "json_object", "text")
    return target is not None and not (isinstance(target, Mapping) and target.get("type") in kinds)


def chat(prompt: Prompt, /, **options: Any) -> Reply:
    """The whole answer of the server that the environment names; see Client and Client.chat."""
    with Client() as client:
        return client.chat(prompt, **options)
