"""The chat client: requests over a socket, answers as typed events.

The only module beside `aio` that opens a connection. Bytes go through `sse` and `wire`, which know no
sockets. To vendor the client, copy sse.py, events.py, wire.py and client.py into a package folder of
yours, side by side, and import Client from there; they need the standard library only. Or take all
four as one file: python -m localchat.vendor. What waits for nothing (Caller, CallState, Answer) is shared
with the asynchronous client.

Two rules shape this module: every wait has its own limit, set before it, so that nothing that comes in drops
can outlast a clock; and whatever waits can be woken from another thread, by `shutdown` of its socket.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, overload
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
    ResponseReader,
    build_request,
    cut,
    is_whole_answer,
    parse_embeddings,
    parse_error,
    parse_frame,
    parse_models,
)

if TYPE_CHECKING:  # It costs as much to import as the whole client, and is loaded by the first request that needs it.
    import ssl

    from .conversation import Conversation
    from .tools import AnyTool, ToolRun


DEFAULT_BASE_URL = "http://127.0.0.1:8080/v1"

READ_BYTES = 65536
_HEAD_BYTES = 1024
# What an error says is worth some waiting, but not the whole time that an answer may take.
MAX_ERROR_BYTES = 65536
ERROR_BODY_S = 5.0
_MAX_JSON_BYTES = 256 * 1024 * 1024
MAX_IDLE_CONNECTIONS = 8
# How often the wait for a host's addresses looks for a cancel.
_LOOK_S = 0.02
# Windows cannot interrupt a wait for the network: there Ctrl-C is looked for between short ones.
_STEP_S = 0.2 if os.name == "nt" else None
_MAX_REDIRECTS = 5

# What HTTP calls a token.
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

_JSON_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
_LENGTHS = re.compile(r"maximum context length is (\d{1,9}) tokens.*?(?:requested|resulted in)\D{0,20}(\d{1,9}) tokens")

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
        self._total_end: float | None = None
        self._finish_end: float | None = None
        self._event_end: float | None = None
        self._event_kind = "first"
        self._rests_from = 0.0

    def start(self) -> None:
        """The call begins, unless it has: it may take several requests."""
        self._total_end = self._total_end or _after(self._timeout.total)

    def finish(self, complete: bool) -> None:
        """Once all that matters has come, what is left gets little time, whatever keeps the connection busy."""
        self._finish_end = (self._finish_end or _after(_AFTER_FINISH_S)) if complete else None

    def sent(self) -> None:
        """The request is on its way."""
        self._event_end, self._event_kind, self._rests_from = _after(self._timeout.first), "first", 0.0

    def event(self) -> None:
        """Something that carries meaning has come."""
        self._event_end, self._event_kind = _after(self._timeout.stall), "stall"

    def connecting(self) -> tuple[float | None, str]:
        """Seconds left to connect, and the kind of the limit that ends first."""
        return self._least(self._timeout.connect, "connect", None, "")

    def rest(self) -> None:
        """A read is over. Until the next one it is not the server who is slow."""
        self._rests_from = time.monotonic()

    def reading(self) -> tuple[float | None, str]:
        """Seconds left for one read, and the kind of the limit that ends first."""
        if self._event_end is not None and self._rests_from:
            self._event_end += time.monotonic() - self._rests_from
        self._rests_from = 0.0
        silence = self._timeout.idle if self._event_kind == "stall" else None
        return self._least(silence, "idle", self._event_end, self._event_kind)

    def at_most(self, seconds: float) -> float:
        """These seconds, or what is left of the whole call if that is less."""
        return seconds if self._total_end is None else min(seconds, self._total_end - time.monotonic())

    def _least(self, seconds: float | None, kind: str, end: float | None, end_kind: str) -> tuple[float | None, str]:
        """The shortest of a limit from now on, one that ends at a time, and the total."""
        now = time.monotonic()
        for until, its_kind in ((end, end_kind), (self._total_end, "total"), (self._finish_end, "total")):
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
    def authority(self) -> str:
        """Host and port, as a tunnel is asked for."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def host_header(self) -> str:
        return self.authority.rpartition(":")[0] if self.port == PORTS[self.scheme] else self.authority

    @property
    def shown(self) -> str:
        """For messages: where we connect to."""
        return self.socket_path or f"{self.host}:{self.port}"

    def target(self, path: str) -> str:
        return self.path + path + ("?" + self.query if self.query else "")

    def peer(self, proxy: str | None) -> tuple[str, int]:
        """The host and the port to connect to."""
        return (self.host, self.port) if proxy is None else _read_proxy(proxy)[:2]

    def same_origin(self, target: str, location: str) -> str | None:
        """Where `location` leads from `target`; None if that is another scheme, host or port."""
        origin = f"{self.scheme}://{self.host_header}"
        try:
            parts = urlsplit(urljoin(origin + target, location))
            named = parts.scheme, parts.hostname, parts.port or PORTS.get(parts.scheme)
        except ValueError:  # This is no address at all.
            return None
        if named != self[:3]:
            return None
        path = _quoted(parts.path) or "/"
        return path + ("?" + _quoted(parts.query) if parts.query else "")


PORTS = {"http": 80, "https": 443}


def _parse_base_url(text: str) -> Address:
    """http, https, unix:/path/to/socket, or http+unix://%2Fpath%2Fto%2Fsocket/v1."""
    if text.startswith(("unix:", "http+unix:")) and not hasattr(socket, "AF_UNIX"):
        raise ValueError("the base URL names a unix socket, which Python does not have on this system")
    if text.startswith("unix:"):
        path = "/" + text[len("unix:") :].lstrip("/")
        return Address("http", "localhost", 80, "/v1", socket_path=path)
    parts = urlsplit(text if "://" in text else "http://" + text)
    if parts.scheme == "http+unix":
        return Address("http", "localhost", 80, _clean(parts.path), _quoted(parts.query), unquote(parts.netloc))
    if parts.scheme not in PORTS or not parts.hostname:
        raise ValueError(f"the base URL must begin with http://, https:// or unix:, not {cut(text, 60)!r}")
    if "@" in parts.netloc:
        raise ValueError("the base URL must not hold a user or a password: use api_key")
    host = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode("ascii")
    if not host.isprintable() or " " in host:
        raise ValueError(f"the base URL has a host that cannot be: {cut(host, 60)!r}")
    port = parts.port or PORTS[parts.scheme]
    return Address(parts.scheme, host, port, _clean(parts.path), _quoted(parts.query))


def _clean(path: str) -> str:
    """The prefix of all paths; many people paste the whole address of the chat endpoint."""
    return _quoted(path.rstrip("/")).removesuffix("/chat/completions")


def _quoted(text: str) -> str:
    """What is quoted already stays; blanks and the like, which would end the request line, are quoted."""
    return quote(text, safe="/?%:@!$&'()*+,;=~")


def _is_loopback(host: str) -> bool:
    """Whether this is the same machine; the address of no interface, which servers print, leads there too."""
    return host in ("localhost", "::1", "0.0.0.0", "::") or host.endswith(".localhost") or host.startswith("127.")


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


def _read_proxy(proxy: str) -> tuple[str, int, str]:
    """Host, port, and the value of Proxy-Authorization, if there is one."""
    try:
        parts = urlsplit(proxy if "://" in proxy else "http://" + proxy)
        host, port = parts.hostname, parts.port or 80
    except ValueError:  # It quotes what may be a part of the password.
        raise OSError("the proxy's URL cannot be read: a / in a password is written %2F") from None
    if parts.scheme != "http" or not host:
        raise OSError(f"only http:// proxies are supported, not {parts.scheme}://; set no_proxy to avoid it")
    if parts.username is None:
        return host, port, ""
    import base64

    secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return host, port, "Basic " + base64.b64encode(secret).decode()


def _proxy_headers(proxy: str) -> dict[str, str]:
    secret = _read_proxy(proxy)[2]
    return {"Proxy-Authorization": secret} if secret else {}


def tunnel_request(address: Address, proxy: str) -> bytes:
    """What asks a proxy for a tunnel to the server."""
    headers = {"Host": address.authority, **_proxy_headers(proxy)}
    return _head_bytes(f"CONNECT {address.authority} HTTP/1.1", headers)


def take_tunnel(response: ResponseReader, data: bytes) -> bool:
    """Whether the tunnel is open, by what the proxy has said so far, these bytes included.

    Raises:
        OSError: It refuses.
    """
    try:
        response.feed(data)
    except ProtocolError as error:
        raise OSError(f"the proxy refused the tunnel: {error}") from error
    if not data or response.status // 100 not in (0, 2):
        raise OSError(f"the proxy refused the tunnel: {response.status or 'it closed the connection'}")
    return response.status > 0


def _head_bytes(line: str, headers: Mapping[str, str]) -> bytes:
    """The head of a request. Nothing in it can end a line: `_check_header` has seen to that."""
    return "\r\n".join([line, *(f"{name}: {value}" for name, value in headers.items()), "", ""]).encode("ascii")


# Connections


_contexts: dict[Any, Any] = {}


def tls_context(verify: Any) -> ssl.SSLContext:
    """A context costs 20 ms to build, so each is built once. `verify` may be a bool, a path or a context."""
    import ssl

    if isinstance(verify, ssl.SSLContext):
        return verify
    if verify not in _contexts:
        try:
            context = ssl.create_default_context(cafile=None if isinstance(verify, bool) else verify)
        except OSError as error:
            raise ValueError(f"verify must name a file of certificates, not {verify!r}: {error}") from error
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
    """One connection to the server."""

    def __init__(self, sock: socket.socket, proxy: str | None) -> None:
        self.sock = sock
        # Set if requests have to be addressed to a proxy; a tunnel through one is like no proxy.
        self.proxy = proxy
        self.used = False
        self.process = os.getpid()
        self._limit: float | None = -1.0

    def send(self, data: bytes, seconds: float | None) -> None:
        self._set_limit(seconds)
        self.sock.sendall(data)

    def receive(self, seconds: float | None) -> bytes:
        """The next bytes, nothing at the end."""
        if _STEP_S is None:
            self._set_limit(seconds)
            return self.sock.recv(READ_BYTES)
        end = _after(seconds)
        while True:
            left = _left(end)
            self._set_limit(_STEP_S if left is None else min(left, _STEP_S))
            with contextlib.suppress(socket.timeout):
                return self.sock.recv(READ_BYTES)

    def _set_limit(self, seconds: float | None) -> None:
        """The longest wait that follows. Each change is a system call, so most are saved."""
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
        self.sock.close()

    __del__ = close  # Of a client that was dropped and never closed.


def addresses(host: str, port: int) -> list[Any]:
    """IPv4 first for localhost: where nothing listens on ::1, trying it first costs Windows 2 s."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    if _is_loopback(host):
        found.sort(key=lambda info: info[0] != socket.AF_INET)
    return found


def is_known(host: str) -> bool:
    """Whether nobody has to be asked for the address: it is one already, or that of this machine."""
    return ":" in host or host.replace(".", "").isdecimal() or _is_loopback(host)


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
        self.on_retry = on_retry
        self._headers = dict(headers or {})
        self.proxy = proxy
        self.verify = verify
        self.follow_redirects = follow_redirects
        self.transport = transport
        if record is not None:
            self.transport = _companion("record").Recorder(record, self._key, transport)
        # Learned from the server.
        self._found_model: str | None = None
        self._takes_stream_options = True
        self._set_up()

    def _set_up(self) -> None:
        """What a client of its kind has besides."""

    def __repr__(self) -> str:
        """Without the query of the base URL, in which some servers take a key."""
        return f"{type(self).__name__}({self.base_url.partition('?')[0]!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be pickled or copied: it holds a key and connections")

    # Requests.

    def request_headers(self, extra: Mapping[str, str]) -> dict[str, str]:
        headers = {
            "Host": self.address.host_header,
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",
            "Cache-Control": "no-store",
            "User-Agent": "localchat",
        }
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        # By name whatever its case: two headers of one name would leave it to the server which one holds.
        given = [*headers.items(), *self._headers.items(), *extra.items()]
        spelled = {name.lower(): (name, value) for name, value in given}
        for name, value in spelled.values():
            _check_header(name, value)
        return dict(spelled.values())

    def question(self, prompt: Prompt, stream: bool, options: Mapping[str, Any]) -> Question:
        """Options of a call to what is sent and what is ours."""
        sent = dict(options)
        prompt = _with_media(prompt, sent)
        if _wants_value(sent.get("response_format")):
            sent["response_format"] = _companion("schema").response_format(sent["response_format"])
        timeout, headers = sent.pop("timeout", None), sent.pop("extra_headers", None) or {}
        timeout = self.timeout if timeout is None else Timeout.of(timeout)
        accumulator = Accumulator(_n_choices(prompt, sent), sent.pop("think_tags", "auto"))
        system, model = sent.pop("system", None), sent.pop("model", None)
        return Question(prompt, stream, accumulator, timeout, system, model, headers, sent)

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
        given = dict(asked.options)
        given.update(given.pop("extra_body", None) or {})
        body = {"model": model, **given, "input": texts}
        return {name: value for name, value in body.items() if value is not None}

    def read_vectors(self, raw: bytes, n_texts: int) -> list[list[float]]:
        """The vectors of an answer of /embeddings."""
        try:
            return parse_embeddings(json.loads(raw), n_texts)
        except (ValueError, RecursionError) as error:
            raise self.not_json("embeddings are", raw) from error

    def with_value(self, reply: Reply, target: Any) -> Reply:
        """The reply with `parsed` in it, if its `response_format` said what it holds.

        Raises:
            DoesNotFit: It holds something else.
        """
        return changed(reply, parsed=_companion("schema").read_reply(target, reply)) if _wants_value(target) else reply

    def without_stream_options(self, body: dict[str, Any], error: StatusError) -> dict[str, Any]:
        """The body for servers of old that refuse stream_options; whoever sends it with success does so ever after.

        Raises:
            StatusError: This error, if it is about something else.
        """
        if "stream_options" not in body or "stream_options" not in error.body:
            raise error
        return {name: value for name, value in body.items() if name != "stream_options"}

    # Retries.

    def retry_delay(self, error: LocalChatError, tries: int) -> float | None:
        """Seconds to wait before the next try, None if there is to be none."""
        after = None
        if isinstance(error, StatusError):
            asked = error.headers.get("x-should-retry")
            retried = error.status in _RETRIED_STATUSES or (error.status >= 500 and error.status != 501)
            if not (retried if asked not in ("true", "false") else asked == "true"):
                return None
            after = error.retry_after
        elif not isinstance(error, (ConnectError, TimedOut, IncompleteStream)) or getattr(error, "kind", "") == "total":
            return None
        if tries >= self._max_retries or (after or 0) > _MAX_RETRY_AFTER_S:
            return None
        if after is not None and after > 0:
            return after
        import random

        return min(_FIRST_DELAY_S * 2.0**tries, _MAX_DELAY_S) * (1 - 0.25 * random.random())

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
        return f"{self.address.shown} gave no answer: {cut(self._mask(str(error) or type(error).__name__))}"

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
        except (ValueError, RecursionError) as error:
            raise self.not_json("list of models is", raw) from error

    def not_json(self, what: str, raw: bytes) -> ProtocolError:
        head = self._mask(cut(raw.decode("utf-8", "replace")))
        return ProtocolError(f"the {what} not JSON: {head}", head=head)

    def _status_hint(self, status: int, headers: Mapping[str, str], said: ErrorEvent) -> str:
        """What to do about it, if that can be told."""
        if 300 <= status < 400:
            base = re.sub("/(models|embeddings|(chat/)?completions)$", "", headers.get("location", "nowhere"))
            return f"it redirects to {base}: use that as the base URL"
        if status in (401, 403):
            return "set OPENAI_API_KEY or pass api_key" if not self._key else "is the API key right?"
        if status in (404, 405) and not self.address.path:
            return "is /v1 missing in the base URL?"
        return _too_many_tokens(said.raw, said.message)

    @staticmethod
    def wants_names(error: StatusError, path: str) -> bool:
        """Whether the server does not know the model, so that the names of those on offer would help."""
        return path != "/models" and "model" in f"{error.code} {error}".lower()

    def add_names(self, error: StatusError, raw: bytes) -> None:
        """Add the names in a list of models."""
        names = [name for name in self.read_models(raw) if name not in str(error)]
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
        choices = payload.get("choices")
        places = (payload, payload.get("x_groq"), *(choices if isinstance(choices, list) else ()))
        has_error = any(isinstance(place, dict) and place.get("error") for place in places)
        if not (has_error or "detail" in payload or payload.get("object") == "error"):
            return payload
        # Within the texts alone: a key of digits may stand in a number by chance.
        masked = _JSON_TEXT.sub(lambda text: json.dumps(self._mask(json.loads(text[0]))), json.dumps(payload))
        return dict(json.loads(masked))

    def _mask(self, text: str) -> str:
        """JSON writes some characters, / and + say, behind a backslash or by their number."""
        key = "".join(rf"(?:\\?{re.escape(char)}|\\u(?i:{ord(char):04x}))" for char in self._key)
        return re.sub(key, "***", text) if len(self._key) > 3 else text


# Calls


class StaleConnection(Exception):
    """A reused connection turned out to be closed before any byte of an answer."""


class CallState:
    """What there is to know of one call while it is made: what is asked, its clocks, tries and status.

    A call may take several requests, one after the other: the list of models comes before the question. The
    calls of the client and of the asynchronous client add what waits for the network.
    """

    def __init__(self, caller: Caller, timeout: Timeout) -> None:
        self.caller = caller
        self.clocks = Clocks(timeout)
        # What is asked.
        self._method = self._target = ""
        self._body: bytes | None = None
        self._headers: dict[str, str] = {}
        self._tries = self._redirects = 0
        # What has come. `_first` is the piece of the body that came with the head.
        self.status = 0
        self.headers: dict[str, str] = {}
        self.ended = False
        self.succeeded = False
        self._response = ResponseReader()
        self._first = b""
        self._inflate: Any = None

    def prepare(self, method: str, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]) -> None:
        """Set what is sent."""
        self._method, self._target = method, self.caller.address.target(path)
        self._body = None if body is None else json.dumps(body).encode("ascii")
        self._headers = self.caller.request_headers(headers)
        self._tries = self._redirects = 0
        self.status, self.headers = 0, {}
        self.clocks.start()

    def begin(self, proxy: str | None) -> bytes:
        """A new try: what is to be sent. A proxy for http wants the whole address."""
        self.clocks.sent()
        self._response, self._first, self.ended = ResponseReader(), b"", False
        target, headers, body = self._target, self._headers, self._body or b""
        if proxy is not None:
            target = f"http://{self.caller.address.host_header}{target}"
            headers = {**headers, **_proxy_headers(proxy)}
        if self._body is not None:
            headers = {**headers, "Content-Length": str(len(body))}
        return _head_bytes(f"{self._method} {target} HTTP/1.1", headers) + body

    def take_head(self, data: bytes) -> bool:
        """Whether the status and the headers are complete with these bytes.

        Raises:
            ConnectionResetError: There was not one byte of an answer.
            ConnectError: This is no HTTP.
            IncompleteStream: It ends too early.
            ProtocolError: The body is packed in a way that was not offered.
        """
        response = self._response
        if not data:
            if not response.begun:
                raise ConnectionResetError("the server closed the connection")
            response.feed_end()
        try:
            self._first = response.feed(data)
        except ProtocolError as error:
            raise ConnectError(self.caller.broken(error)) from None  # What it quotes may hold the key.
        if response.status:
            self._read_head()
        return response.status > 0

    def take_body(self, data: bytes) -> bytes:
        """What these bytes, or the end of the connection, hold of the body."""
        if not data:
            self._response.feed_end()
        body = self._response.feed(data)
        self.ended = self._response.ended
        return self._unpack(body)

    def take_first(self) -> bytes:
        """What is known of the body without reading.

        Raises:
            ProtocolError: What came cannot be read any further.
        """
        if not self._first and self._response.fault:
            raise ProtocolError(self._response.fault)
        first, self._first = self._first, b""
        return self._unpack(first)

    @property
    def reusable(self) -> bool:
        """Whether another request may be made over the same connection."""
        return self.ended and self._response.keeps_alive and not self._response.rest

    def next_delay(self, error: LocalChatError) -> float:
        """Seconds to wait before the next try.

        Raises:
            LocalChatError: This error, if there is to be no other try, or the total is too short for it.
        """
        delay = self.caller.retry_delay(error, self._tries)
        if delay is None or self.clocks.at_most(delay) < delay:
            raise error
        self._tries += 1
        if self.caller.on_retry is not None:
            self.caller.on_retry(self._tries, delay, error)
        return delay

    def _read_head(self) -> None:
        self.status, self.ended = self._response.status, self._response.ended
        self.headers = dict(self._response.headers)
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
        """A piece of the body as it was before the server compressed it."""
        if self._inflate is None:
            return data
        import zlib

        try:
            return bytes(self._inflate.decompress(data))
        except zlib.error as error:
            raise ProtocolError(f"the compressed answer is damaged: {error}") from error

    def redirect(self) -> bool:
        """Whether to ask again elsewhere on the same server, with the same body; sets the target."""
        if self.status not in (307, 308) or not self.caller.follow_redirects or self._redirects >= _MAX_REDIRECTS:
            return False
        target = self.caller.address.same_origin(self._target, self.headers.get("location", ""))
        if target is None:
            return False
        self._target, self._redirects = target, self._redirects + 1
        return True

    def status_error(self, raw: bytes) -> StatusError:
        """The error for a status other than 2xx, with what could be read of the body."""
        return self.caller.status_error(self.status, self.headers, raw.decode("utf-8", "replace"))


class _Call(CallState):
    """A call over sockets that wait.

    `cancel` may be called from any thread; everything else belongs to the thread that reads, which is
    the only one that closes anything.
    """

    def __init__(self, client: Client, timeout: Timeout, send: Callable[[_Call], None] | None = None) -> None:
        super().__init__(client, timeout)
        self._client = client
        # Makes the request when it is wanted; it is set once and called once.
        self._send = send
        self._connection: _Connection | None = None
        # What another thread needs to cancel. The socket is here before anything waits on it; the lock keeps it
        # here meanwhile, or the cancel could hit another call that has the connection by now.
        self._cancelled = threading.Event()
        self.is_cancelled = self._cancelled.is_set
        self._lock = threading.RLock()
        self._sock: socket.socket | None = None
        self._process = os.getpid()

    def cancel(self) -> None:
        """Stop at once: whoever waits for the network gets Cancelled, and closes. From any thread."""
        with self._lock:
            self._cancelled.set()
            if self._sock is not None and self._process == os.getpid():  # After a fork it is the parent's.
                # close() would not wake a reader in another thread: it would wait for the next byte itself.
                with contextlib.suppress(OSError):  # Not connected any more: then nobody waits.
                    _shut(self._sock)

    def open(self) -> None:
        """Send the request, unless that has been done."""
        send, self._send = self._send, None
        if send is not None:
            send(self)

    def send(self, method: str, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]) -> None:
        """Send a request and take the status, with retries.

        Raises:
            ConnectError, TimedOut, StatusError, ProtocolError, IncompleteStream, Cancelled.
        """
        self.prepare(method, path, body, headers)
        try:
            self._send_with_retries()
        except NotFoundError as error:
            if self.caller.wants_names(error, path):
                with contextlib.suppress(LocalChatError):  # This only serves to explain.
                    self.caller.add_names(error, self.fetch("GET", "/models", None, headers))
                self.check_cancelled(error)
            raise

    def _send_with_retries(self) -> None:
        while True:
            try:
                self._send_once()
                return
            except LocalChatError as error:
                self._drop()
                self.check_cancelled(error)
                delay = self.next_delay(error)
            self._cancelled.wait(delay)

    def fetch(self, method: str, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]) -> bytes:
        """The whole body of an answer that is no chat."""
        try:
            self.send(method, path, body, headers)
            raw = bytearray()
            while not self.ended or self._first:
                raw += self.read()
                check_size(len(raw))
            return bytes(raw)
        finally:
            self.release()

    def read(self, at_most_s: float | None = None) -> bytes:
        """The next bytes of the body, perhaps none; `ended` tells the proper end.

        Args:
            at_most_s: Instead of the clocks: for bytes that are welcome but not needed.

        Raises:
            IncompleteStream: The body was cut.
            TimedOut, Cancelled, ProtocolError.
        """
        connection, first = self._connection, self.take_first()
        if first or connection is None or self.ended:
            return first
        try:
            data = self._receive(connection, at_most_s)
        except OSError as error:
            self.check_cancelled(error)
            raise IncompleteStream(f"the connection broke: {error or type(error).__name__}") from error
        return self.take_body(data)

    def _receive(self, connection: _Connection, at_most_s: float | None = None) -> bytes:
        limit, kind = self.clocks.reading() if at_most_s is None else (at_most_s, "idle")
        try:
            data = connection.receive(limit)
        except socket.timeout:
            raise timed_out(kind) from None
        self.clocks.rest()
        self.check_cancelled()  # The end, and what comes with it, may be our own doing.
        return data

    def drain(self, n_bytes: int = DRAIN_BYTES, seconds: float = DRAIN_S) -> bytes:
        """Read the rest of the body within these limits, and give the connection back if that was all of it."""
        raw, end = b"", time.monotonic() + self.clocks.at_most(seconds)
        with contextlib.suppress(LocalChatError):  # What matters has come.
            while len(raw) < n_bytes and time.monotonic() < end and not (self.ended and not self._first):
                raw += self.read(max(end - time.monotonic(), 0.001))
        self.release()
        return raw

    def release(self) -> None:
        """Give the connection back if the body was read to its end, close it otherwise."""
        with self._lock:
            connection = self._connection
            if connection is not None and self.reusable and not self.is_cancelled():
                self._connection = self._sock = None
                self._client._checkin(connection)
            self._drop()

    def check_cancelled(self, cause: BaseException | None = None) -> None:
        """What goes wrong after a cancel goes wrong because of it."""
        if self.is_cancelled():
            raise Cancelled("the stream was closed") from cause

    def _drop(self) -> None:
        """Close everything."""
        with self._lock:
            for closable in (self._connection, self._sock):
                if closable is not None:
                    closable.close()
            self._connection = self._sock = None

    def _send_once(self) -> None:
        try:
            self._exchange(self._client._checkout() or self._connect())
        except StaleConnection:
            # The server closed an idle connection just as we wrote to it: no try is lost by that.
            self._drop()
            self._exchange(self._connect())
        if self.redirect():
            self.drain()
            self._send_once()
        elif not 200 <= self.status < 300:
            raise self.status_error(self.drain(MAX_ERROR_BYTES, ERROR_BODY_S))

    def _exchange(self, connection: _Connection) -> None:
        """Request out, status and headers in."""
        self._connection = connection
        self._watch(connection.sock)
        reused, connection.used = connection.used, True
        request = self.begin(connection.proxy)
        limit, kind = self.clocks.reading()
        try:
            try:
                connection.send(request, limit)
            except socket.timeout:
                raise timed_out(kind) from None
            except (BrokenPipeError, ConnectionResetError):
                if reused:
                    raise
                # A server may answer before it has read everything (413), and the answer is still there.
            while not self.take_head(self._receive(connection)):
                pass
        except OSError as error:
            self.check_cancelled(error)
            if reused and not self._response.begun:
                raise StaleConnection from error
            raise ConnectError(self.caller.broken(error)) from error

    def _connect(self) -> _Connection:
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
        except (OSError, UnicodeError) as error:
            raise ConnectError(caller.unreachable(error, proxy)) from error
        return _Connection(sock, proxy if address.scheme == "http" else None)

    def _open_socket(self, proxy: str | None, deadline: float | None) -> socket.socket:
        address = self.caller.address
        if address.socket_path:
            sock = self._watch(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            sock.settimeout(_left(deadline))
            sock.connect(address.socket_path)
            return sock
        host, port = address.peer(proxy)
        failure = OSError(f"{host} has no address")
        candidates = self._look_up(host, port, deadline)
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

    def _look_up(self, host: str, port: int, deadline: float | None) -> list[Any]:
        if is_known(host):
            return addresses(host, port)
        # The system's resolver knows no limit and cannot be woken: it is left behind, in a thread of its own.
        outcome: list[Any] = []

        def look_up() -> None:
            try:
                outcome.append(addresses(host, port))
            except (OSError, UnicodeError) as error:
                outcome.append(error)

        thread = threading.Thread(target=look_up, name="localchat-lookup", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(min(_left(deadline) or _LOOK_S, _LOOK_S))
            self.check_cancelled()
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]  # type: ignore[no-any-return]  # It is the list then.

    def _watch(self, sock: socket.socket) -> socket.socket:
        """Let `cancel` know the socket before anything waits on it."""
        with self._lock:
            self._sock, self._process = sock, os.getpid()
        self.check_cancelled()
        return sock

    def _start_tls(self, sock: socket.socket, proxy: str | None, deadline: float | None) -> socket.socket:
        address = self.caller.address
        if proxy is not None:
            self._open_tunnel(sock, proxy, deadline)
        context = tls_context(self.caller.verify)
        # The handshake waits, so the new socket has to be known before.
        wrapped = context.wrap_socket(sock, server_hostname=address.host, do_handshake_on_connect=False)
        self._watch(wrapped)
        wrapped.settimeout(_left(deadline))
        wrapped.do_handshake()
        return wrapped

    def _open_tunnel(self, sock: socket.socket, proxy: str, deadline: float | None) -> None:
        sock.settimeout(_left(deadline))
        sock.sendall(tunnel_request(self.caller.address, proxy))
        response, is_open = ResponseReader(), False
        while not is_open:
            sock.settimeout(_left(deadline))
            data = sock.recv(READ_BYTES)
            self.check_cancelled()
            is_open = take_tunnel(response, data)


def _shut(sock: Any) -> None:
    """Wake whoever waits for a socket. SSLSocket's own way first forgets the encryption: a thread that is
    about to send would then send the key in plain text."""
    shutdown = socket.socket.shutdown if isinstance(sock, socket.socket) else type(sock).shutdown
    shutdown(sock, socket.SHUT_RDWR)


def check_size(n_bytes: int) -> None:
    """Raise ProtocolError if a body is too large to be held."""
    if n_bytes > _MAX_JSON_BYTES:
        raise ProtocolError(f"the answer has more than {_MAX_JSON_BYTES} bytes")


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
        if isinstance(error, (TimedOut, ProtocolError)) and not self._accumulator.complete:
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
                self._whole = self._frames.documents == 1 and is_whole_answer(payload)
                events = accumulator.add(self._call.caller.mask_payload(payload))
                if events or "prompt_progress" in payload:  # Some keep the connection alive with empty pieces.
                    clocks.event()
                yield from events
            self.done = payload is True
            if self.done or accumulator.error:
                ended = True
                break
        clocks.finish(accumulator.complete)
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
    return changed(accumulator.reply(), request_id=call.headers.get("x-request-id"), headers=dict(call.headers))


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
        self._open()
        event, cause = None, None
        try:
            event = next(self._events, None)
        except ValueError as error:  # Perhaps since another thread is closing it just now.
            cause = error
        if self._call.is_cancelled() and not (event is None and self._call.succeeded):
            self.close()
            raise Cancelled("the stream was closed", partial=self.reply) from cause
        if event is None:
            raise cause or StopIteration
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
        except (IncompleteStream, TimedOut, ProtocolError) as error:
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
        return self.read_models(_Call(self, self.timeout).fetch("GET", "/models", None, {}))

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
        call = _Call(self, question.timeout)
        body = self.embedding_for(question, texts, question.model or self._default_model(call, question.headers))
        raw = call.fetch("POST", "/embeddings", body, question.headers)
        vectors = self.read_vectors(raw, len(texts))
        return vectors[0] if isinstance(text, str) else vectors

    def _start(self, prompt: Prompt, stream: bool, options: dict[str, Any], path: str = "/chat/completions") -> Stream:
        question = self.question(prompt, stream, options)
        make_body = self.completion_for if path == "/completions" else self.body_for

        def send(call: _Call) -> None:
            body = make_body(question, question.model or self._default_model(call, question.headers))
            try:
                call.send("POST", path, body, question.headers)
            except (BadRequestError, UnprocessableError) as error:
                call.send("POST", path, self.without_stream_options(body, error), question.headers)
                self._takes_stream_options = False

        return Stream(_Call(self, question.timeout, send), question.accumulator)

    def _default_model(self, call: _Call, headers: Mapping[str, str]) -> str | None:
        """The one named, or the first on offer; None if the server does not list any."""
        if self._model is None and self._found_model is None:
            try:
                self._found_model = next(iter(self.read_models(call.fetch("GET", "/models", None, headers))), None)
            except (StatusError, ProtocolError) as error:
                if getattr(error, "status", 404) not in (404, 405, 501):
                    raise
                return None  # Many servers hold one model and care neither for its name nor for a list.
        return self._model or self._found_model

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
            if connection.process == self._process and len(self._idle) < MAX_IDLE_CONNECTIONS:
                self._idle.append(connection)
                return
        connection.close()

    def _leave_after_fork(self) -> None:
        """Connections belong to the process that made them, and its lock may be held for ever here."""
        if self._process != os.getpid():
            self._process, self._lock, self._idle = os.getpid(), threading.Lock(), []


def _clean_key(key: str) -> str:
    """Keys from files end with a line end. One that cannot be sent is not shown."""
    key = key.strip()
    if not key.isascii() or not key.isprintable():
        raise ValueError("the key has characters that cannot be sent: is the API key right?")
    return key


def _check_header(name: str, value: str) -> None:
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError(f"this is no name of a header: {cut(name, 40)!r}")
    if not isinstance(value, str) or not value.isascii() or not value.isprintable():
        raise ValueError(f"the header {name} is no text, or has characters that cannot be sent, a line end say")


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds, from `retry-after-ms`, or `retry-after` in seconds or as a date."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        return seconds if math.isfinite(seconds) else None
    if "retry-after" not in headers:
        return None
    import email.utils  # Late: it costs some ms.

    date = email.utils.parsedate_tz(headers["retry-after"])
    try:
        return None if date is None else email.utils.mktime_tz(date) - time.time()
    except (ValueError, OverflowError):  # A year beyond the calendar.
        return None


def _too_many_tokens(body: Any, message: str) -> str:
    """By how much a prompt is too long: llama.cpp servers give both numbers, others write them out."""
    error = body.get("error") if isinstance(body, dict) else None
    error = error if isinstance(error, dict) else {}
    written = _LENGTHS.search(message)
    context, tokens = map(int, written.groups()) if written else (error.get("n_ctx"), error.get("n_prompt_tokens"))
    if not isinstance(tokens, int) or not isinstance(context, int) or tokens <= context:
        return ""
    return f"{tokens} tokens are {tokens - context} more than the context of {context} holds"


def _companion(name: str) -> Any:
    """A module of the package that the four files of the client can do without."""
    try:
        return importlib.import_module(f".{name}", __package__)
    except (ImportError, TypeError) as error:  # TypeError: as a single file it has no package at all.
        raise ImportError(f"this needs localchat's {name}.py, which is not beside the client") from error


def _n_choices(prompt: Any, options: Mapping[str, Any]) -> int:
    """How many choices there will be: `n` of a chat, and of each text to be completed."""
    n = {**options, **(options.get("extra_body") or {})}.get("n")
    several = isinstance(prompt, (list, tuple)) and all(isinstance(text, (str, list, tuple)) for text in prompt)
    return (n if isinstance(n, int) else 1) * (max(len(prompt), 1) if several else 1)


def _with_media(prompt: Prompt, options: dict[str, Any]) -> Prompt:
    """Take images and audio out of the options; a mapping is OpenAI's `audio`, which is about the answer."""
    sources = {
        name: options.pop(name)
        for name in ("images", "audio")
        if options.get(name) is not None and not (name == "audio" and isinstance(options[name], Mapping))
    }
    return _companion("media").attach(prompt, **sources) if sources else prompt


def _wants_value(target: Any) -> bool:
    """Whether a response_format names a type or a schema, not what the protocol itself knows."""
    kinds = ("json_schema", "json_object", "text")
    return target is not None and not (isinstance(target, Mapping) and target.get("type") in kinds)


def chat(prompt: Prompt, /, **options: Any) -> Reply:
    """The whole answer of the server that the environment names; see Client and Client.chat."""
    with Client() as client:
        return client.chat(prompt, **options)
