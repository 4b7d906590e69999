"""One call: its requests, with retries, and their responses, as coroutines. No I/O.

The coroutines await only the operations of a driver. Those of `aio_sockets` wait in an event loop. Those of `sockets`
block and never suspend, so that `sockets.run_blocking` can run the coroutines without an event loop.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ..errors import ConnectError, IncompleteStream, LocalChatError, ProtocolError, StreamError, TimedOut
from ..reply.reported_errors import parse_error, read_report
from .addresses import Proxy, find_proxy
from .connecting import connect
from .exchange import Exchange
from .failures import connect_message, no_response_message, retry_delay, status_error
from .http1 import Inflate, check_codings, request_head
from .operations import AnyConnection, AnyDriver, Operations
from .secrets import Secrets
from .settings import Settings
from .sockets import Pool
from .timeouts import Deadlines, Timeout, TotalDeadline

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
    # Whether the server may carry out the request twice. If so, it is sent again if the server closes a reused
    # connection before its response begins; if not, it gets a new connection.
    is_repeatable: bool = True


class Call:
    """One call, which may send several requests, one after another, such as one for the list of models.

    `send` sends a request and receives the head of the response; then `read` returns the body, until `all_read` is set;
    `release` ends the use of the connection. Secrets are masked in every error that a method raises, except `read`;
    `drain` raises none.

    Args:
        settings: The settings of the client.
        pool: The idle connections of the client.
        driver: The Driver or AsyncDriver that performs the operations of this call.
        options: The options that the requests have in common.
    """

    # The connection of the current request. A default, since Ctrl-C may end `__init__` before the finalizer needs it.
    _connection: AnyConnection | None = None

    def __init__(self, settings: Settings, pool: Pool, driver: AnyDriver, options: CallOptions) -> None:
        self.settings = settings
        self.driver = driver
        self.deadlines = Deadlines(options.timeout, options.total)
        self._pool = pool
        self._options = options
        self._operations = Operations(driver, self.deadlines)
        # The current request.
        self._method = self._target = ""
        self._request_headers: dict[str, str] = {}
        self._request_body = b""
        # Its response.
        self.status = 0  # 0 before the head is received.
        self.headers: dict[str, str] = {}
        self.warning = ""  # A defect of the head that was repaired; empty if there is none.
        self._inflate: Inflate | None = None  # Decompresses the body; None if it is not compressed.
        # The exchange of request and response on the connection. None before the first and after the last.
        self._exchange: Exchange | None = None
        self._proxy: Proxy | None = None  # The proxy that was used last, whose headers have a password.

    @property
    def secrets(self) -> Secrets:
        """The secrets that this call sends."""
        proxy = {} if self._proxy is None else self._proxy.headers
        return self.settings.secrets({**self._options.headers, **proxy})

    async def send(self, method: str, path: str, body: Any) -> None:
        """Send a request and receive the head of the response, with retries. A `body` of None sends no body."""
        self._method, self._target = method, self.settings.address.target(path)
        self.status, self.headers, self.warning = 0, {}, ""
        self._request_body = b"" if body is None else _encode(body)
        self._request_headers = self.settings.request_headers(self._options.headers, body is not None)
        if body is not None or method.upper() in ("POST", "PUT", "PATCH"):  # These always have a body; it may be empty.
            self._request_headers["Content-Length"] = str(len(self._request_body))
        for tries in itertools.count():
            shown = self._target.partition("?")[0], self.settings.address.shown
            self._log("%s %s to %s: %d bytes, try %d", method, *shown, len(self._request_body), tries + 1)
            try:
                with self._masked():
                    await self._send_once()
                return
            except LocalChatError as error:
                self._drop()
                self._operations.check_cancelled(error)
                delay = retry_delay(error, tries, self._options.max_retries)
                if delay is None or self.deadlines.total.at_most(delay) < delay:
                    raise
                if self.settings.on_retry is not None:
                    self.settings.on_retry(tries + 1, delay, error)
            await self._operations.run_within(delay, self.driver.sleep)

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

    async def fetch_json(self, method: str, path: str, body: Any) -> Any:
        """Send a request and return the parsed body.

        Raises:
            ProtocolError: The body is not JSON.
            StreamError: The body reports an error, although the status is a success.
        """
        raw = await self.fetch(method, path, body)
        with self._masked():
            try:
                parsed = json.loads(raw)
                is_error = isinstance(parsed, dict) and "data" not in parsed and read_report(parsed).error is not None
                reported = parse_error(parsed) if is_error else None
            except (ValueError, RecursionError) as error:
                head = self.secrets.shown(raw[:MAX_DRAINED_BYTES].decode("utf-8", "replace"))
                raise ProtocolError(f"the response to {method} {path} is not JSON: {head}", head=head) from error
            if reported is not None:
                raise StreamError(reported.message, error_type=reported.error_type, code=reported.code)
        return parsed

    async def read(self) -> bytes:
        """The next bytes of the body, perhaps none; `all_read` is set at the end.

        The caller masks the secrets in its errors: it is called for each piece.
        """
        exchange, inflate = self._exchange, self._inflate
        data = b"" if exchange is None else await exchange.read()
        if inflate is None:
            return data
        if exchange is not None and exchange.all_read and not data:
            inflate.feed_end()
        return inflate.feed(data)

    async def read_files(self, function: Callable[[], Any]) -> Any:
        """The result of a function that reads files, which an event loop lets a thread call."""
        return await self._operations.run_within(None, self.driver.read_files, function)

    @property
    def all_read(self) -> bool:
        """Whether the body has been read to its end. A compressed body that ends too early has no end."""
        if self._exchange is None:
            return True
        return self._exchange.all_read and (self._inflate is None or self._inflate.is_whole)

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
        exchange, connection = self._exchange, self._connection
        is_reusable = exchange is not None and exchange.leaves_connection and not self.driver.is_cancelled
        if connection is not None and is_reusable:
            self._connection = None
            self._pool.give(connection)
        self._drop()

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
        """Send the request once, and receive the head of the response."""
        # A server may close an idle connection while a request is sent. Whether it has read the request is not known:
        # only a request that may be carried out twice is sent on one.
        idle = self._pool.take() if self._options.is_repeatable else None
        self._connection = idle
        connection = await self._connect() if idle is None else idle
        try:
            exchange = await self._exchange_heads(connection)
        except ConnectError:
            response_has_begun = self._exchange is not None and self._exchange.response.has_begun
            if idle is None or response_has_begun:
                raise
            self._drop()  # Only the request on a new connection counts as a try.
            exchange = await self._exchange_heads(await self._connect())
        self._log("status %d", self.status)
        await self._check_head(exchange)

    async def _check_head(self, exchange: Exchange) -> None:
        """Raise the error of a status, or of a coding that cannot be read; prepare to decompress the body."""
        self._inflate = None
        codings = [coding for coding in exchange.response.values("content-encoding") if coding != "identity"]
        if not 200 <= self.status < 300:
            raw = await self.drain(ERROR_BODY_S)
            with contextlib.suppress(ProtocolError):  # The header may be wrong.
                raw = Inflate(MAX_DRAINED_BYTES).feed(raw)[:MAX_DRAINED_BYTES] if check_codings(codings) else raw
            raise status_error(self.settings, self.status, self.headers, raw.decode("utf-8", "replace"))
        transfer = ",".join(sorted({*exchange.response.values("transfer-encoding")} - {"identity"}))
        if transfer not in ("", "chunked"):
            raise ProtocolError(f"the server uses the transfer encoding {transfer!r}, which the client did not offer")
        coding = check_codings(codings)
        if coding:
            self._inflate = Inflate(self.settings.max_bytes)
        elif codings:
            self.warning = f"the server names the content coding {', '.join(codings)}, which is none: read as it is"

    def _drop(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    __del__ = _drop  # For a stream that the program did not close.

    def _log(self, message: str, *values: object) -> None:
        """Log at level DEBUG to the logger `localchat.client`, if the program has imported logging."""
        logging = sys.modules.get("logging")
        if logging is not None:
            logging.getLogger("localchat.client").debug(message, *values)

    async def _connect(self) -> AnyConnection:
        """Make a new connection. Raises ConnectError or TimedOut."""
        settings = self.settings
        self.deadlines.begin("connect")
        try:
            self._proxy = find_proxy(settings.address, settings.proxy)
            connection = self._connection = await connect(settings, self._operations, self._proxy)
            return connection
        except TimedOut:  # It is an OSError too.
            raise
        except (OSError, ValueError, RuntimeError, ProtocolError, IncompleteStream) as error:
            raise ConnectError(connect_message(settings, error, self._proxy)) from error

    async def _exchange_heads(self, connection: AnyConnection) -> Exchange:
        """Send the request on the connection, and receive the head of the response."""
        target, headers, proxy = self._target, self._request_headers, connection.proxy
        if proxy is not None:  # A request to a proxy names the whole URL.
            self._proxy = proxy  # An earlier call may have made the connection.
            target, headers = f"http://{self.settings.address.host_header}{target}", {**headers, **proxy.headers}
        self.deadlines.begin("first")
        self._exchange = exchange = Exchange(self._operations, connection, self._method != "HEAD")
        try:
            await exchange.send(request_head(f"{self._method} {target} HTTP/1.1", headers) + self._request_body)
        except TimedOut:  # It is an OSError too.
            raise
        except (OSError, ProtocolError) as error:
            error_class = ProtocolError if isinstance(error, ProtocolError) else ConnectError
            raise error_class(no_response_message(self.settings, error)) from error
        self.status, self.headers = exchange.response.status, exchange.response.headers
        return exchange
