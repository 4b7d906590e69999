"""A call over blocking sockets. It blocks the thread that reads, and any other thread can cancel it."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ConnectError, IncompleteStream, LocalChatError, NotFoundError
from .call import DRAIN_BYTES, DRAIN_S, ERROR_BODY_S, MAX_ERROR_BYTES, CallState, StaleConnection
from .failures import add_model_names, connect_message, is_unknown_model, no_response_message
from .network import find_proxy
from .settings import Settings
from .sockets import Connection, Connector, Pool, shut
from .timeouts import Timeout, timed_out


class Call(CallState):
    """A call over blocking sockets.

    `cancel` may be called from any thread. Only the thread that reads may call the other methods; it is also the only
    one that closes the connection.
    """

    def __init__(
        self,
        settings: Settings,
        pool: Pool,
        timeout: Timeout,
        max_retries: int,
        send: Callable[[Call], None] | None = None,
    ) -> None:
        super().__init__(settings, timeout, max_retries)
        self._pool = pool
        # Sends the request; None after `open` has called it.
        self._send = send
        self._connection: Connection | None = None
        # For `cancel`: wakes the wait before a retry.
        self._woken = threading.Event()
        # For `cancel`: the socket, set before an operation blocks on it. The lock prevents `cancel` from waking the
        # socket after it was returned to the pool, where another call may use it.
        self._lock = threading.RLock()
        self._sock: socket.socket | None = None
        self._process = os.getpid()

    def cancel(self) -> None:
        """Stop the call at once, from any thread. The thread that reads gets Cancelled and closes the connection."""
        with self._lock:
            self.is_cancelled = True
            self._woken.set()
            if self._sock is not None and self._process == os.getpid():  # After a fork the parent uses the socket.
                # close() would not wake a thread that reads; it would wait for the next byte as well.
                with contextlib.suppress(OSError):  # The socket is not connected any more, so no thread waits for it.
                    shut(self._sock)

    def open(self) -> None:
        """Send the request, if this was not done before."""
        send, self._send = self._send, None
        if send is not None:
            send(self)

    def send(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> None:
        """Send a request and receive the head of the response, with retries.

        Raises:
            ConnectError, TimedOut, StatusError, ProtocolError, IncompleteStream, Cancelled.
        """
        self.prepare(method, path, body, headers)
        try:
            self._send_with_retries()
        except NotFoundError as error:
            if is_unknown_model(error, path):
                self.limit_to_explanation()
                with contextlib.suppress(LocalChatError):  # Without the list, the error stays as it is.
                    add_model_names(self.settings, error, self.fetch("GET", "models", None, headers))
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
            self._woken.wait(delay)

    def fetch(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> bytes:
        """Send a request and return the whole body of the response."""
        try:
            self.send(method, path, body, headers)
            raw = bytearray()
            while not self.all_read:
                raw += self.read()
                self.check_size(len(raw))
            return bytes(raw)
        finally:
            self.release()

    def read(self, at_most_s: float | None = None) -> bytes:
        """The next bytes of the body, perhaps none; `all_read` is set at the end.

        Args:
            at_most_s: Seconds to wait, in place of the timeouts.

        Raises:
            IncompleteStream: The body was cut.
            TimedOut, Cancelled, ProtocolError.
        """
        connection, received = self._connection, self.take_received()
        if received or connection is None or self.ended:
            return received
        try:
            data = self._receive(connection, at_most_s)
        except OSError as error:
            self.check_cancelled(error)
            raise IncompleteStream(f"the connection broke: {error or type(error).__name__}") from error
        return self.take_body(data)

    def _receive(self, connection: Connection, at_most_s: float | None = None) -> bytes:
        limit, kind = self.deadlines.reading() if at_most_s is None else (at_most_s, "idle")
        try:
            data = connection.receive(limit)
        except socket.timeout:
            raise timed_out(kind) from None
        self.deadlines.pause()
        self.check_cancelled()  # A cancel ends the connection, which must not look like the end of the response.
        return data

    def drain(self, n_bytes: int = DRAIN_BYTES, seconds: float = DRAIN_S) -> bytes:
        """Read the rest of the body within these limits and return it, then release the connection."""
        raw, end = b"", time.monotonic() + self.deadlines.at_most(seconds)
        with contextlib.suppress(LocalChatError):  # The rest is not required.
            while len(raw) < n_bytes and time.monotonic() < end and not self.all_read:
                raw += self.read(max(end - time.monotonic(), 0.001))
        self.release()
        return raw[:n_bytes]

    def release(self) -> None:
        """Return the connection to the pool if it can be reused; close it otherwise."""
        with self._lock:
            connection = self._connection
            if connection is not None and self.reusable and not self.is_cancelled:
                self._connection = self._sock = None
                self._pool.give(connection)
            self._drop()

    def _drop(self) -> None:
        """Close the connection and the socket."""
        with self._lock:
            for closable in (self._connection, self._sock):
                if closable is not None:
                    closable.close()
            self._connection = self._sock = None

    def _send_once(self) -> None:
        try:
            self._exchange(self._pool.take() or self._connect())
        except StaleConnection:
            # The server closed the idle connection at the same time. This does not count as a try.
            self._drop()
            self._exchange(self._connect())
        if self.redirect():
            self.drain()
            self._send_once()
        elif not 200 <= self.status < 300:
            raise self.status_error(self.drain(MAX_ERROR_BYTES, ERROR_BODY_S))

    def _exchange(self, connection: Connection) -> None:
        """Send the request over a connection and receive the head of the response."""
        self._connection = connection
        self._watch(connection.sock)
        reused, connection.used = connection.used, True
        request = self.begin(connection.proxy)
        limit, kind = self.deadlines.reading()
        try:
            try:
                connection.send(request, limit)
            except socket.timeout:
                raise timed_out(kind) from None
            except (BrokenPipeError, ConnectionResetError):
                if reused:
                    raise
                # A server may respond before it has read the whole request (413); the response can be read.
            while not self.take_head(self._receive(connection)):
                pass
        except OSError as error:
            self.check_cancelled(error)
            if reused and not self._response.begun:
                raise StaleConnection from error
            raise ConnectError(no_response_message(self.settings, error)) from error

    def _connect(self) -> Connection:
        settings = self.settings
        limit, kind = self.deadlines.connecting()
        proxy = find_proxy(settings.address, settings.proxy)
        connector = Connector(settings, proxy, limit, self._watch)
        try:
            transport = settings.transport
            sock = connector.connect() if transport is None else transport.connect(connector.connect)
        except socket.timeout:
            raise timed_out(kind) from None
        except (OSError, UnicodeError) as error:
            raise ConnectError(connect_message(settings, error, proxy)) from error
        return Connection(sock, proxy if settings.address.scheme == "http" else None)

    def _watch(self, sock: socket.socket | None) -> None:
        """Set the socket that `cancel` wakes, before an operation blocks on it. Raise Cancelled after a cancel."""
        if sock is not None:
            with self._lock:
                self._sock, self._process = sock, os.getpid()
        self.check_cancelled()
