"""The streamable HTTP transport: each message is a POST, whose response has messages of the server as JSON or events.

A thread of its own runs each request, with the client's HTTP/1.1 and its rules: TLS, proxies, limits, masked secrets,
and no redirects. Servers before revision 2026-07-28 may have sessions, streams that can be resumed, and a stream of
messages that belong to no request.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ..errors import Cancelled, IncompleteStream, LocalChatError, ProtocolError, StatusError, TimedOut
from ..reply.reported_errors import parse_error
from ..sse import SSEDecoder, SSEError
from ..transport.call import Call, CallOptions
from ..transport.failures import retry_delay
from ..transport.settings import Settings, check_headers
from ..transport.sockets import Driver, Pool, run_blocking, start_thread
from ..transport.timeouts import Timeout, TotalDeadline
from .headers import message_headers
from .messages import MAX_MESSAGE_BYTES, Json, MCPError, NotAMessage, failure, reported_failure
from .revisions import VERSION_KEY
from .session import Outgoing, Session, log

# The wait before a stream that ended is resumed, if the server sent no time for it (`retry`). It doubles with each
# failed connection in a row, up to the maximum.
_RESUME_S = 1.0
_MAX_RESUME_S = 30.0
_MIN_RETRY_S, _MAX_RETRY_S = 0.1, 3600.0  # The limits of the time that a server may send.
_LONG_S = 5.0  # A stream without events that stays open longer is in order: the server has nothing to report.
_MAX_FAILURES = 5  # The limit of connections in a row that bring no event and are shorter than `_LONG_S`.
_MAX_REQUESTS = 256  # The limit of requests in flight.
_CLOSE_S = 2.0  # The limit of the request that ends a session.

_INITIALIZED_NOTIFICATION: Json = {"jsonrpc": "2.0", "method": "notifications/initialized"}


class HTTPTransport:
    """Sends messages to a URL.

    Args:
        name: The name of the server, for errors and the log.
        url: The URL of the server.
        timeout: Only the timeout of connecting is used: a request has that of its session.
        options: headers, proxy, verify, as for a Client.
    """

    begins_with_discover = True  # A server without it responds with an error, and nothing is lost.

    def __init__(self, name: str, url: str, timeout: Timeout, options: Mapping[str, Any]) -> None:
        self.legacy_revision = ""  # For the headers of requests.
        self._name = name
        self._settings = Settings(base_url=url, api_key="", **options)
        self._path = urlsplit(url).path or "/"  # With a slash at its end, which a base URL does not have.
        self._timeout = Timeout(None, connect=timeout.connect)
        self._pool = Pool()
        self._session: Any = None
        self._drivers: set[Driver] = set()  # Those of the requests in flight.
        self._is_closed = False
        # The session of the server: its id, None if it has none; and the request that began it, which begins it again.
        self._session_id: str | None = None
        self._initialize_message: Json | None = None
        self._lock = threading.Lock()  # One thread at a time begins a session.
        # The driver and the stream of the messages that belong to no request, None before `listen`.
        self._listener: Driver | None = None
        self._listener_stream: _EventStream | None = None

    @property
    def is_listening(self) -> bool:
        return self._listener_stream is not None and self._listener_stream.is_connected

    def start(self, session: Session) -> None:
        self._session = session

    def send(self, outgoing: Outgoing) -> None:
        if len(self._drivers) >= _MAX_REQUESTS:  # A server can request as many responses.
            outgoing.settle(self._error(f"{_MAX_REQUESTS} requests are in flight"))
            return
        driver = Driver()
        outgoing.stop = driver.cancel
        self._run(driver, lambda: self._deliver(outgoing, driver))

    def listen(self) -> None:
        """Receive the messages that belong to no request, if the server has a stream for them."""
        self._listener = driver = Driver()
        self._listener_stream = stream = _EventStream()

        def listen() -> None:
            try:
                run_blocking(self._listen(driver, stream))
            except (LocalChatError, NotAMessage, SSEError, ValueError) as error:
                log.debug("%s: no messages outside of responses: %s", self._name, self._session.shown(str(error)))

        self._run(driver, listen)

    def close(self) -> None:
        """End all requests and the session."""
        self._is_closed = True
        if self._session is not None:
            self._session.end(self._error("it was closed"))
        for driver in list(self._drivers):
            driver.cancel()
        if self._session_id is not None:
            with contextlib.suppress(LocalChatError):
                run_blocking(self._end_session())
        self._pool.close()

    def _run(self, driver: Driver, function: Callable[[], object]) -> None:
        """Run a function in a thread, whose operations `driver` performs."""

        def run() -> None:
            try:
                function()
            finally:
                self._drivers.discard(driver)
                if self._is_closed:
                    self._pool.close()

        self._drivers.add(driver)
        if self._is_closed:
            driver.cancel()
        start_thread(run)

    def _deliver(self, outgoing: Outgoing, driver: Driver) -> None:
        """Send a message, and receive what comes back. Runs in a thread."""
        try:
            run_blocking(self._post(outgoing, driver))
            if outgoing.is_request:
                outgoing.settle(self._error("the response has no result"))
            else:
                outgoing.settle({})
        except Exception as error:  # It is raised by the thread that waits for the outcome.
            outgoing.settle(self._as_error(error))

    def _as_error(self, error: Exception) -> Exception:
        """The error for what went wrong with a request."""
        if isinstance(error, TimedOut):  # Of connecting.
            return TimedOut(f"MCP server {self._name}: {error}", kind=error.kind)
        if isinstance(error, MCPError) or not isinstance(error, (LocalChatError, NotAMessage, SSEError)):
            return error
        self._settings.secrets({}).mask_error(error)
        if isinstance(error.__cause__, (ConnectionRefusedError, FileNotFoundError)):
            return self._error(f"nothing listens on {self._settings.address.shown}: is the server started?", error)
        if isinstance(error, StatusError):
            return self._status_error(error)
        return self._error(self._session.shown(str(error)), error)

    def _status_error(self, error: StatusError) -> MCPError:
        with contextlib.suppress(ValueError, LookupError, TypeError, RecursionError):
            reported = json.loads(error.body)["error"]
            if isinstance(reported, dict):
                return reported_failure(self._name, reported, self._session.shown, error.status)
        reason = self._session.shown(parse_error(error.body).message)
        if 300 <= error.status < 400:
            location = self._session.shown(error.headers.get("location", ""))
            reason = f"it redirects to {location}, which is not followed: use that URL if you trust it"
        elif error.status in (401, 403):
            reason = f"{reason}; is the key in the headers right?"
        return self._error(f"status {error.status}: {reason}", error, status=error.status)

    def _error(self, reason: str, cause: Exception | None = None, **attributes: Any) -> MCPError:
        error = failure(self._name, reason, **attributes)
        error.__cause__ = cause
        return error

    # Requests. The coroutines run in threads, and call each other in this order: `_post`, then `_send_message` for a
    # request, then `_receive` for the response, with `_receive_json` or `_receive_events`, and `_resume` for the rest
    # of a stream that ended too early.

    def _call(
        self,
        driver: Driver,
        headers: Mapping[str, str],
        timeout: Timeout | None = None,
        is_repeatable: bool = True,
    ) -> Call:
        check_headers(headers)
        options = CallOptions(timeout or self._timeout, TotalDeadline(None), 0, headers, is_repeatable)
        return Call(self._settings, self._pool, driver, options)

    def _state_headers(self) -> dict[str, str]:
        """The headers with the revision and the session, of servers before revision 2026-07-28."""
        headers = {"MCP-Protocol-Version": self.legacy_revision} if self.legacy_revision else {}
        return {**headers, "Mcp-Session-Id": self._session_id} if self._session_id is not None else headers

    async def _post(self, outgoing: Outgoing, driver: Driver) -> None:
        """Send a message and receive its response.

        If the server refuses the message since the session has ended, begin a new session and send the message again.
        A message that the server has accepted is never sent again: a tool would run twice.
        """
        message = outgoing.message
        revision = message.get("params", {}).get("_meta", {}).get(VERSION_KEY)
        if revision is not None:
            headers = {"MCP-Protocol-Version": revision, **message_headers(message), **outgoing.headers}
            call = await self._send_message(driver, message, headers)
        elif message.get("method") == "initialize":
            self._initialize_message = message
            call = await self._send_message(driver, message, {})
        else:
            call = await self._send_in_session(driver, message)
        await self._receive(driver, call, outgoing, is_resumable=revision is None)

    async def _send_in_session(self, driver: Driver, message: Json) -> Call:
        """Like `_send_message`, in the session of a server before revision 2026-07-28."""
        session_id = self._session_id
        try:
            return await self._send_message(driver, message, self._state_headers())
        except StatusError as error:
            if error.status != 404 or session_id is None:
                raise
            await self._renew_session(driver, session_id)
            return await self._send_message(driver, message, self._state_headers())

    async def _renew_session(self, driver: Driver, ended_id: str) -> None:
        """Begin a new session in place of one that has ended, unless another thread has done that."""
        with self._lock:
            if self._session_id != ended_id or self._initialize_message is None:
                return
            log.info("%s: the server ended the session; a new one begins", self._name)
            outgoing = Outgoing(self._initialize_message, {})
            call = await self._send_message(driver, outgoing.message, {})
            await self._receive(driver, call, outgoing)
            outgoing.settle(self._error("the response to initialize has no result"))  # No effect if it had one.
            result = outgoing.outcome
            if not isinstance(result, dict) or result.get("protocolVersion") != self.legacy_revision:
                raise ProtocolError("the new session has another revision of the protocol")
            call = await self._send_message(driver, _INITIALIZED_NOTIFICATION, self._state_headers())
            call.release()
        self._session.n_tool_changes += 1
        if self._listener is not None:
            self._listener.cancel()
            self.listen()

    async def _end_session(self) -> None:
        call = self._call(Driver(), self._state_headers(), Timeout(_CLOSE_S))
        await call.fetch("DELETE", self._path, None)

    def _take_session_id(self, session_id: str | None) -> None:
        if session_id and not _is_header_value(session_id):
            raise ProtocolError("the id of the session has characters that a header cannot have")
        self._session_id = session_id or None

    async def _send_message(self, driver: Driver, message: Json, headers: Mapping[str, str]) -> Call:
        """Send a message and receive the head of the response. The caller releases the call."""
        call = self._call(driver, headers, is_repeatable=message.get("method") != "tools/call")
        try:
            await call.send("POST", self._path, message)
            if message.get("method") == "initialize":  # Before its result lets the program send another one.
                self._take_session_id(call.headers.get("mcp-session-id"))
        except BaseException:
            call.release()
            raise
        return call

    async def _receive(self, driver: Driver, call: Call, outgoing: Outgoing, is_resumable: bool = True) -> None:
        """Receive the response to a message, if it has one."""
        stream = _EventStream(is_resumable)
        try:
            if outgoing.is_request and _is_stream(call):
                await self._receive_events(call, stream, outgoing)
            elif outgoing.is_request:
                await self._receive_json(call, outgoing)
        except IncompleteStream:
            if not stream.can_be_resumed:
                raise
        finally:
            call.release()
        if stream.can_be_resumed:
            await self._resume(driver, stream, outgoing)

    async def _receive_json(self, call: Call, outgoing: Outgoing) -> None:
        body = bytearray()
        while not call.all_read:
            body += await call.read()
            if len(body) > MAX_MESSAGE_BYTES:
                raise NotAMessage(f"a message has more than {MAX_MESSAGE_BYTES} bytes")
        if body:
            try:
                text = body.decode()
            except UnicodeDecodeError as error:
                raise NotAMessage(f"the response is no text: {bytes(body[:20])!r}") from error
            self._session.receive(text, outgoing)

    async def _receive_events(self, call: Call, stream: _EventStream, outgoing: Outgoing | None) -> None:
        """Give the events of a connection to the session, until it ends or the response has come."""
        decoder = SSEDecoder(MAX_MESSAGE_BYTES)
        try:
            while not call.all_read:
                for event in decoder.feed(await call.read()):
                    stream.n_events += 1
                    if event.data and event.event == "message":
                        self._session.receive(event.data, outgoing)
                if outgoing is not None and outgoing.is_settled:
                    await call.drain()
                    return
        finally:
            if _is_header_value(decoder.last_id):  # With another one, a stream cannot be resumed.
                stream.last_id = decoder.last_id or stream.last_id
            if decoder.reconnection_ms is not None:
                stream.retry_s = min(max(decoder.reconnection_ms / 1000, _MIN_RETRY_S), _MAX_RETRY_S)

    async def _resume(self, driver: Driver, stream: _EventStream, outgoing: Outgoing) -> None:
        """Receive the rest of a response on further connections. Raises IncompleteStream if they bring nothing."""
        while not outgoing.is_settled:
            await self._wait_to_resume(driver, stream)
            await self._receive_connection(driver, stream, outgoing)

    async def _listen(self, driver: Driver, stream: _EventStream) -> None:
        """Receive the messages that belong to no request, on one connection after another, until an error."""
        while True:
            await self._receive_connection(driver, stream, None)
            await self._wait_to_resume(driver, stream)

    async def _wait_to_resume(self, driver: Driver, stream: _EventStream) -> None:
        n_failures = stream.n_failures
        if n_failures == _MAX_FAILURES:
            raise IncompleteStream(f"the stream ended, and {n_failures} tries to resume it brought nothing")
        default_s = min(_RESUME_S * 2**n_failures, _MAX_RESUME_S)
        with contextlib.suppress(ConnectionAbortedError):  # It was cancelled.
            await driver.sleep(default_s if stream.retry_s is None else stream.retry_s)

    async def _receive_connection(self, driver: Driver, stream: _EventStream, outgoing: Outgoing | None) -> None:
        """Receive a stream on one further connection. A failure that may be temporary is counted."""
        if driver.is_cancelled:
            raise Cancelled("the stream was closed")
        n_events, begin_s = stream.n_events, time.monotonic()
        resume_headers = {"Last-Event-ID": stream.last_id} if stream.last_id else {}
        call = self._call(driver, {**self._state_headers(), **resume_headers})
        try:
            await call.send("GET", self._path, None)
            if not _is_stream(call):
                raise ProtocolError("the response to a GET is no stream of events")
            if outgoing is None:  # Changes before this connection were not reported.
                self._session.n_tool_changes += 1
                stream.is_connected = True
            await self._receive_events(call, stream, outgoing)
        except LocalChatError as error:
            if retry_delay(error, stream.n_failures, _MAX_FAILURES) is None:
                raise
            log.debug("%s: a stream ended: %s", self._name, self._session.shown(str(error)))
        finally:
            stream.is_connected = False
            call.release()
        has_made_progress = stream.n_events > n_events or time.monotonic() - begin_s > _LONG_S
        stream.n_failures = 0 if has_made_progress else stream.n_failures + 1


@dataclass
class _EventStream:
    """A stream of events, which several connections may bring one after another."""

    is_resumable: bool = True  # Whether the revision of the protocol lets streams be resumed.
    is_connected: bool = False  # Whether a connection brings it now; only for the messages that belong to no request.
    n_events: int = 0
    n_failures: int = 0  # How many of its last connections have failed.
    last_id: str = ""  # The id of its last event; empty if events have none.
    retry_s: float | None = None  # The time that the server sent, to wait before the next connection.

    @property
    def can_be_resumed(self) -> bool:
        return self.is_resumable and self.last_id != ""


def _is_header_value(text: str) -> bool:
    return text.isascii() and text.isprintable()


def _is_stream(call: Call) -> bool:
    return call.headers.get("content-type", "").partition(";")[0].strip().lower() == "text/event-stream"
