"""A call over blocking sockets: it waits in the caller's thread and can be cancelled from any other."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from .call import DRAIN_BYTES, DRAIN_S, ERROR_BODY_S, MAX_ERROR_BYTES, CallState, StaleConnection
from .errors import Cancelled, ConnectError, IncompleteStream, LocalChatError, NotFoundError
from .failures import add_names, broken, unreachable, wants_names
from .network import find_proxy
from .settings import Settings
from .sockets import Connection, Connector, Pool, shut
from .timeouts import Timeout, timed_out


class Call(CallState):
    """A call over sockets that wait.

    `cancel` may be called from any thread; everything else belongs to the thread that reads, which is
    the only one that closes anything.
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
        # Makes the request when it is wanted; it is set once and called once.
        self._send = send
        self._connection: Connection | None = None
        # What another thread needs to cancel. The socket is here before anything waits on it; the lock keeps it
        # here meanwhile, or the cancel could hit another call that has the connection by now.
        self._cancelled = threading.Event()
        self.is_cancelled = self._cancelled.is_set
        self._lock = threading.RLock()
        self._sock: socket.socket | None = None
        self._process = os.getpid()

    def cancel(self) -> None:
        """Stop at once, from any thread: the thread that waits for the network gets Cancelled, and closes."""
        with self._lock:
            self._cancelled.set()
            if self._sock is not None and self._process == os.getpid():  # After a fork it is the parent's.
                # close() would not wake a reader in another thread: it would wait for the next byte itself.
                with contextlib.suppress(OSError):  # Not connected any more, so no thread waits.
                    shut(self._sock)

    def open(self) -> None:
        """Send the request, unless that has been done."""
        send, self._send = self._send, None
        if send is not None:
            send(self)

    def send(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> None:
        """Send a request and take the status, with retries.

        Raises:
            ConnectError, TimedOut, StatusError, ProtocolError, IncompleteStream, Cancelled.
        """
        self.prepare(method, path, body, headers)
        try:
            self._send_with_retries()
        except NotFoundError as error:
            if wants_names(error, path):
                self.limit_to_explanation()
                with contextlib.suppress(LocalChatError):  # This only serves to explain.
                    add_names(self.settings, error, self.fetch("GET", "models", None, headers))
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

    def fetch(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> bytes:
        """The whole body of an answer that is no chat."""
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
            at_most_s: Seconds, in place of the timeouts: for bytes that are useful but not needed.

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

    def _receive(self, connection: Connection, at_most_s: float | None = None) -> bytes:
        limit, kind = self.deadlines.reading() if at_most_s is None else (at_most_s, "idle")
        try:
            data = connection.receive(limit)
        except socket.timeout:
            raise timed_out(kind) from None
        self.deadlines.pause()
        self.check_cancelled()  # The end, and what comes with it, may be our own doing.
        return data

    def drain(self, n_bytes: int = DRAIN_BYTES, seconds: float = DRAIN_S) -> bytes:
        """Read the rest of the body within these limits, and give the connection back if that was all of it."""
        raw, end = b"", time.monotonic() + self.deadlines.at_most(seconds)
        with contextlib.suppress(LocalChatError):  # What matters has come.
            while len(raw) < n_bytes and time.monotonic() < end and not self.all_read:
                raw += self.read(max(end - time.monotonic(), 0.001))
        self.release()
        return raw[:n_bytes]

    def release(self) -> None:
        """Give the connection back if the body was read to its end, close it otherwise."""
        with self._lock:
            connection = self._connection
            if connection is not None and self.reusable and not self.is_cancelled():
                self._connection = self._sock = None
                self._pool.give(connection)
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
            self._exchange(self._pool.take() or self._connect())
        except StaleConnection:
            # The server closed an idle connection just as we wrote to it: no try is lost by that.
            self._drop()
            self._exchange(self._connect())
        if self.redirect():
            self.drain()
            self._send_once()
        elif not 200 <= self.status < 300:
            raise self.status_error(self.drain(MAX_ERROR_BYTES, ERROR_BODY_S))

    def _exchange(self, connection: Connection) -> None:
        """Request out, status and headers in."""
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
                # A server may answer before it has read everything (413), and the answer is still there.
            while not self.take_head(self._receive(connection)):
                pass
        except OSError as error:
            self.check_cancelled(error)
            if reused and not self._response.begun:
                raise StaleConnection from error
            raise ConnectError(broken(self.settings, error)) from error

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
            raise ConnectError(unreachable(settings, error, proxy)) from error
        return Connection(sock, proxy if settings.address.scheme == "http" else None)

    def _watch(self, sock: socket.socket | None) -> None:
        """Let `cancel` know a socket before anything waits on it."""
        if sock is not None:
            with self._lock:
                self._sock, self._process = sock, os.getpid()
        self.check_cancelled()
