"""A call over asyncio. The methods and their order are those of `blocking_call`."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from ..errors import ConnectError, IncompleteStream, LocalChatError, NotFoundError
from .aio_sockets import AnyConnection, AsyncPool, ReplayedConnection, abandon, connect
from .call import DRAIN_BYTES, DRAIN_S, ERROR_BODY_S, MAX_ERROR_BYTES, CallState, StaleConnection
from .failures import add_model_names, connect_message, is_unknown_model, no_response_message
from .network import find_proxy
from .settings import Settings
from .timeouts import Timeout, timed_out


class AsyncCall(CallState):
    """A call over asyncio. Only the tasks of one event loop may use it."""

    def __init__(
        self,
        settings: Settings,
        pool: AsyncPool,
        timeout: Timeout,
        max_retries: int,
        send: Callable[[AsyncCall], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(settings, timeout, max_retries)
        self._pool = pool
        # Sends the request; None after `open` has called it.
        self._send = send
        self._connection: AnyConnection | None = None
        # For `cancel`: wakes the wait for a connection or before a retry.
        self._woken: asyncio.Future[None] | None = None

    def cancel(self) -> None:
        """Stop the call at once, from any task of the loop. The task that reads gets Cancelled."""
        self.is_cancelled = True
        if self._connection is not None:
            self._connection.close()
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def open(self) -> None:
        """Send the request, if this was not done before."""
        send, self._send = self._send, None
        if send is not None:
            await send(self)

    async def send(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> None:
        """Send a request and receive the head of the response, with retries."""
        self.prepare(method, path, body, headers)
        try:
            await self._send_with_retries()
        except NotFoundError as error:
            if is_unknown_model(error, path):
                self.limit_to_explanation()
                with contextlib.suppress(LocalChatError):  # Without the list, the error stays as it is.
                    add_model_names(self.settings, error, await self.fetch("GET", "models", None, headers))
                self.check_cancelled(error)
            raise

    async def _send_with_retries(self) -> None:
        while True:
            try:
                await self._send_once()
                return
            except LocalChatError as error:
                self._drop()
                self.check_cancelled(error)
                delay = self.next_delay(error)
            await self._wait_for((), delay)

    async def _wait_for(self, tasks: Collection[asyncio.Task[Any]], seconds: float | None) -> None:
        """Wait until a task is done, the time has passed, or the call is cancelled."""
        self._woken = asyncio.get_running_loop().create_future()
        await asyncio.wait([*tasks, self._woken], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        self.check_cancelled()

    async def fetch(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> bytes:
        """Send a request and return the whole body of the response."""
        try:
            await self.send(method, path, body, headers)
            raw = bytearray()
            while not self.all_read:
                raw += await self.read()
                self.check_size(len(raw))
            return bytes(raw)
        finally:
            self.release()

    async def read(self, at_most_s: float | None = None) -> bytes:
        """The next bytes of the body, perhaps none; `all_read` is set at the end."""
        connection, received = self._connection, self.take_received()
        if received or connection is None or self.ended:
            if self._inflate.has_more:
                await asyncio.sleep(0)  # Let other tasks run while a long response is inflated.
            return received
        try:
            data = await self._receive(connection, at_most_s)
        except OSError as error:
            self.check_cancelled(error)
            raise IncompleteStream(f"the connection broke: {error or type(error).__name__}") from error
        return self.take_body(data)

    async def _receive(self, connection: AnyConnection, at_most_s: float | None = None) -> bytes:
        limit, kind = self.deadlines.reading() if at_most_s is None else (at_most_s, "idle")
        data = await connection.read(limit, kind)
        self.deadlines.pause()
        self.check_cancelled()  # A cancel ends the connection, which must not look like the end of the response.
        return data

    async def drain(self, n_bytes: int = DRAIN_BYTES, seconds: float = DRAIN_S) -> bytes:
        """Read the rest of the body within these limits and return it, then release the connection."""
        raw, end = b"", time.monotonic() + self.deadlines.at_most(seconds)
        with contextlib.suppress(LocalChatError):  # The rest is not required.
            while len(raw) < n_bytes and time.monotonic() < end and not self.all_read:
                raw += await self.read(max(end - time.monotonic(), 0.001))
        self.release()
        return raw[:n_bytes]

    def release(self) -> None:
        """Return the connection to the pool if it can be reused; close it otherwise."""
        connection = self._connection
        if connection is not None and self.reusable and not self.is_cancelled:
            self._connection = None
            self._pool.give(connection)
        self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    async def _send_once(self) -> None:
        try:
            await self._exchange(self._pool.take() or await self._connect())
        except StaleConnection:
            # The server closed the idle connection at the same time. This does not count as a try.
            self._drop()
            await self._exchange(await self._connect())
        if self.redirect():
            await self.drain()
            await self._send_once()
        elif not 200 <= self.status < 300:
            raise self.status_error(await self.drain(MAX_ERROR_BYTES, ERROR_BODY_S))

    async def _exchange(self, connection: AnyConnection) -> None:
        """Send the request over a connection and receive the head of the response."""
        self._connection = connection
        self.check_cancelled()
        reused, connection.used = connection.used, True
        try:
            connection.write(self.begin(connection.proxy))
            while not self.take_head(await self._receive(connection)):
                pass
        except OSError as error:
            self.check_cancelled(error)
            if reused and not self._response.begun:
                raise StaleConnection from error
            raise ConnectError(no_response_message(self.settings, error)) from error

    async def _connect(self) -> AnyConnection:
        settings = self.settings
        tape = None if settings.transport is None else settings.transport.tape()
        if tape is not None and settings.transport.is_replay:
            return ReplayedConnection(tape)
        limit, kind = self.deadlines.connecting()
        proxy = find_proxy(settings.address, settings.proxy)
        # Before Python 3.12, asyncio.wait_for may lose a cancel or the connection if both happen at the same time.
        connecting = asyncio.ensure_future(connect(settings, proxy, limit, tape))
        try:
            await self._wait_for([connecting], limit)
            if not connecting.done():
                raise timed_out(kind)
            return connecting.result()
        except BaseException as error:
            connecting.add_done_callback(abandon)
            connecting.cancel()
            if isinstance(error, socket.timeout):
                raise timed_out(kind) from None
            if isinstance(error, (OSError, UnicodeError)):
                raise ConnectError(connect_message(settings, error, proxy)) from error
            raise
