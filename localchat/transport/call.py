"""One call: its requests, tries, timeouts and responses, as coroutines. No I/O.

The coroutines await only the operations of a driver. Those of `aio_sockets` wait in an event loop. Those of `sockets`
block and never suspend, so that `sockets.run_blocking` can run the coroutines without an event loop.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ..errors import Cancelled, ConnectError, IncompleteStream, LocalChatError, ProtocolError, StreamError, TimedOut
from ..reply.reported_errors import find_error, parse_error
from .addresses import Proxy, find_proxy, known_addresses
from .failures import connect_message, retry_delay, status_error
from .http1 import Inflate, ResponseReader, check_codings, request_head
from .secrets import Secrets
from .settings import Settings
from .sockets import Pool
from .timeouts import Deadlines, Timeout, TotalDeadline, timed_out

# The limits of the body of an error, and of the rest of a body after [DONE], which is read to reuse the connection.
MAX_DRAINED_BYTES = 65536
ERROR_BODY_S = 5.0
DRAIN_S = 0.1


def _encode(body: Any) -> bytes:
    """The body of a request as JSON. Raises TypeError or ValueError if it is not JSON."""
    try:
        return json.dumps(body, allow_nan=False).encode("ascii")
    except TypeError as error:
        raise TypeError(f"the request is not JSON: {error}; bytes go to images= or audio=, a set into a list") from None
    except ValueError as error:
        raise ValueError(f"the request is not JSON, which has neither NaN nor infinity: {error}") from None
    except RecursionError:
        raise ValueError("the request is nested too deeply to be sent as JSON") from None


class CallOptions(NamedTuple):
    """The options of a call that its requests have in common."""

    timeout: Timeout
    total: TotalDeadline
    max_retries: int
    headers: Mapping[str, str]  # Added to those of the client.


class Call:
    """One call, which may send several requests, such as one for the list of models. A driver performs operations.

    Secrets are masked in every error that a method raises.
    """

    def __init__(self, settings: Settings, pool: Pool, driver: Any, options: CallOptions) -> None:
        self.settings = settings
        self.driver = driver
        self.deadlines = Deadlines(options.timeout, options.total)
        self._pool = pool
        self._options = options
        self._proxy: Proxy | None = None  # The proxy of the newest connection.
        self._connection: Any = None
        # The current request.
        self._method = self._target = ""
        self._headers: dict[str, str] = {}
        self._body = b""
        # Its response. The status is 0 before the head is received.
        self.status = 0
        self.headers: dict[str, str] = {}
        self.warning = ""  # A defect of the head that was repaired; empty if there is none.
        self._response = ResponseReader()
        self._inflate: Inflate | None = None
        self._early_body = b""  # The part of the body that was received with the head and has not been read.

    @property
    def secrets(self) -> Secrets:
        """The secrets that this call sends."""
        proxy = {} if self._proxy is None else self._proxy.headers
        return self.settings.secrets({**self._options.headers, **proxy})

    async def send(self, method: str, path: str, body: Any) -> None:
        """Send a request and receive the head of the response, with retries. A `body` of None sends no body."""
        self._method, self._target = method, self.settings.address.target(path)
        self.status, self.headers, self.warning = 0, {}, ""
        self._body = b"" if body is None else _encode(body)
        self._headers = self.settings.request_headers(self._options.headers, body is not None)
        if body is not None or method.upper() in ("POST", "PUT", "PATCH"):  # These always have a body; it may be empty.
            self._headers["Content-Length"] = str(len(self._body))
        for tries in itertools.count():
            shown = self._target.partition("?")[0], self.settings.address.shown
            self._log("%s %s to %s: %d bytes, try %d", method, *shown, len(self._body), tries + 1)
            try:
                with self._masked():
                    await self._send_once()
                return
            except LocalChatError as error:
                self._drop()
                self.check_cancelled(error)
                delay = retry_delay(error, tries, self._options.max_retries)
                if delay is None or self.deadlines.total.at_most(delay) < delay:
                    raise
                if self.settings.on_retry is not None:
                    self.settings.on_retry(tries + 1, delay, error)
            await self.wait(self.driver.sleep, delay)

    async def fetch(self, method: str, path: str, body: Any) -> bytes:
        """Send a request and return the whole body of the response."""
        try:
            await self.send(method, path, body)
            raw = bytearray()
            with self._masked():
                while not self.all_read:
                    raw += await self.read()
                    self.check_size(len(raw))
            return bytes(raw)
        finally:
            self.release()

    async def fetch_json(self, what: str, method: str, path: str, body: Any) -> Any:
        """Send a request and return the parsed body. An error that it is not JSON begins with `what`."""
        raw = await self.fetch(method, path, body)
        with self._masked():
            try:
                parsed = json.loads(raw)
                is_error = isinstance(parsed, dict) and "data" not in parsed and find_error(parsed) is not None
                reported = parse_error(parsed) if is_error else None
            except (ValueError, RecursionError) as error:
                head = self.secrets.shown(raw[:MAX_DRAINED_BYTES].decode("utf-8", "replace"))
                raise ProtocolError(f"the {what} not JSON: {head}", head=head) from error
            if reported is not None:
                raise StreamError(reported.message, error_type=reported.error_type, code=reported.code)
        return parsed

    async def read(self) -> bytes:
        """The next bytes of the body, perhaps none; `all_read` is set at the end. Its errors may have secrets."""
        data, self._early_body = self._early_body, b""
        if not data and self._response.framing_error:
            raise ProtocolError(self._response.framing_error)
        if not data and not self._response.ended:
            try:
                received = await self._receive()
            except TimedOut:  # It is an OSError too.
                raise
            except OSError as error:
                raise IncompleteStream(f"the connection broke: {error or type(error).__name__}") from error
            if not received:
                self._response.feed_end()
            data = self._response.feed(received)
        return data if self._inflate is None else self._inflate.feed(data)

    @property
    def all_read(self) -> bool:
        """Whether the body has been read to its end."""
        return self._response.ended and not self._early_body

    async def drain(self, seconds: float = DRAIN_S) -> bytes:
        """Read the rest of the body within these limits and return it, then release the connection."""
        raw = b""
        self.deadlines.end_within(seconds)
        with contextlib.suppress(LocalChatError):  # The rest is not required.
            while len(raw) < MAX_DRAINED_BYTES and not self.all_read:
                raw += await self.read()
        self.release()
        return raw[:MAX_DRAINED_BYTES]

    def release(self) -> None:
        """Return the connection to the pool if it can be reused; close it otherwise."""
        response, connection = self._response, self._connection
        is_reusable = response.ended and response.keeps_alive and not response.surplus and not self.driver.is_cancelled
        if connection is not None and is_reusable:
            self._connection = None
            self._pool.give(connection)
        self._drop()

    async def wait(self, operation: Callable[..., Awaitable[Any]], limit: float | None, *arguments: Any) -> Any:
        """Return the result of a method of the driver. Raises OSError, or Cancelled if the call was cancelled."""
        self.check_cancelled()
        try:
            return await operation(limit, *arguments)
        except OSError as error:
            self.check_cancelled(error)
            raise

    def check_cancelled(self, cause: BaseException | None = None) -> None:
        if self.driver.is_cancelled:
            raise Cancelled("the stream was closed") from cause

    @contextlib.contextmanager
    def _masked(self) -> Iterator[None]:
        """Mask the secrets in an error that the block raises."""
        try:
            yield
        except LocalChatError as error:
            self.secrets.mask_error(error)
            raise

    def check_size(self, n_bytes: int) -> None:
        """Raise ProtocolError if a body of `n_bytes` exceeds `max_bytes` of the client."""
        limit = self.settings.max_bytes
        if n_bytes > limit:
            raise ProtocolError(f"the response has more than {limit} bytes; Client(max_bytes=...) raises this limit")

    async def _send_once(self) -> None:
        self._connection = self._pool.take()
        is_reused = self._connection is not None
        if not is_reused:
            await self._connect()
        try:
            status = await self._request()
        except ConnectError:
            if not is_reused or self._response.begun:
                raise
            # The server closed the idle connection before it responded. Only the request on a new one counts as a try.
            self._drop()
            await self._connect()
            status = await self._request()
        self._log("status %d", status)
        self._inflate = None
        codings = [coding for coding in self._response.values("content-encoding") if coding != "identity"]
        if not 200 <= status < 300:
            raw = await self.drain(ERROR_BODY_S)
            with contextlib.suppress(ProtocolError):  # The header may be wrong.
                raw = Inflate(MAX_DRAINED_BYTES).feed(raw)[:MAX_DRAINED_BYTES] if check_codings(codings) else raw
            raise status_error(self.settings, status, self.headers, raw.decode("utf-8", "replace"))
        transfer = ",".join(sorted({*self._response.values("transfer-encoding")} - {"identity"}))
        if transfer not in ("", "chunked"):
            raise ProtocolError(f"the server uses the transfer encoding {transfer!r}, which the client did not offer")
        coding = check_codings(codings)
        if coding:
            self._inflate = Inflate(self.settings.max_bytes)
        elif codings:
            self.warning = f"the server names the content coding {', '.join(codings)}, which is none: read as it is"

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    __del__ = _drop  # For a stream that the program did not close.

    def _log(self, message: str, *values: object) -> None:
        """Log at level DEBUG to the logger `localchat.client`, if the program has imported logging."""
        logging = sys.modules.get("logging")
        if logging is not None:
            logging.getLogger("localchat.client").debug(message, *values)

    async def _connect(self) -> None:
        """Connect to the server, with TLS for https, or to the proxy."""
        settings = self.settings
        self.deadlines.begin("connect")
        try:
            self._proxy = find_proxy(settings.address, settings.proxy)
            self._connection = await self._open(self._proxy)
            if settings.address.scheme == "https":
                await self._start_tls(self._proxy)
            else:
                self._connection.proxy = self._proxy
        except TimedOut:  # It is an OSError too.
            raise
        except (OSError, ValueError, RuntimeError, ProtocolError, IncompleteStream) as error:
            raise ConnectError(connect_message(settings, error, self._proxy)) from error

    async def _open(self, proxy: Proxy | None) -> Any:
        """Try the addresses of the host, one after another."""
        address = self.settings.address
        if address.socket_path:
            candidates: list[Any] = [(socket.AF_UNIX, socket.SOCK_STREAM, 0, "", address.socket_path)]
        else:
            host, port = (address.host, address.port) if proxy is None else (proxy.host, proxy.port)
            candidates = known_addresses(host, port) or await self._timed(self.driver.look_up, host, port)
        failure: Exception = OSError(f"{address.host} has no address")
        for number, where in enumerate(candidates):
            left, timeout_name = self.deadlines.left()  # Divided, so that one dead address leaves time for the next.
            share = None if left is None else left / (len(candidates) - number)
            try:
                return await self.wait(self.driver.connect, share, where)
            except socket.timeout:
                failure = timed_out(timeout_name)
            except OSError as error:
                # That the host refuses the connection says more than that this machine has no IPv6, for example.
                failure = failure if isinstance(failure, ConnectionRefusedError) else error
        raise failure

    async def _start_tls(self, proxy: Proxy | None) -> None:
        address = self.settings.address
        if proxy is not None:
            headers = {"Host": address.authority, **proxy.headers}
            status = await self._exchange(request_head(f"CONNECT {address.authority} HTTP/1.1", headers))
            if status // 100 != 2:
                # A busy proxy may allow it later.
                raise (OSError if status >= 500 else ProtocolError)(f"it refused the tunnel with status {status}")
        context = await self._timed(self.driver.read_files, self.settings.tls_context)
        await self._timed(self.driver.start_tls, self._connection, context, address.host)

    async def _timed(self, operation: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        """Let the driver perform an operation within the timeouts, and return its result."""
        limit, timeout_name = self.deadlines.left()
        try:
            return await self.wait(operation, limit, *arguments)
        except socket.timeout:
            raise timed_out(timeout_name) from None

    async def _request(self) -> int:
        """Send the request, receive the head of the response, and return the status."""
        target, headers, proxy = self._target, self._headers, self._connection.proxy
        if proxy is not None:  # A request to a proxy names the whole URL.
            target, headers = f"http://{self.settings.address.host_header}{target}", {**headers, **proxy.headers}
        self.deadlines.begin("first")
        try:
            return await self._exchange(request_head(f"{self._method} {target} HTTP/1.1", headers) + self._body)
        except TimedOut:  # It is an OSError too.
            raise
        except (OSError, ProtocolError) as error:
            error_class = ProtocolError if isinstance(error, ProtocolError) else ConnectError
            reason = str(error) or type(error).__name__
            raise error_class(f"no response from {self.settings.address.shown}: {reason}") from error

    async def _exchange(self, request: bytes) -> int:
        """Send bytes, receive the head of the response to them, and return the status."""
        self._response, self._early_body = ResponseReader(self._method != "HEAD"), b""
        # A server may respond before it has read the whole request (413); the response can be read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await self._timed(self.driver.write, self._connection, request)
        while not self._response.status:
            data = await self._receive()
            if not data and not self._response.begun:
                raise ConnectionResetError("the connection was closed")
            if not data:
                self._response.feed_end()
            self._early_body = self._response.feed(data)
        self.status, self.headers = self._response.status, self._response.headers
        return self.status

    async def _receive(self) -> bytes:
        data: bytes = await self._timed(self.driver.read, self._connection)
        self.deadlines.pause()
        self.check_cancelled()  # A cancel ends the connection, which would look like the end of the response.
        return data
