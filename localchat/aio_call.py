"""A call over asyncio: the asynchronous twin of blocking_call, decision for decision."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from .aio_sockets import AnyConnection, AsyncPool, PlayedConnection, abandon, connect
from .call import DRAIN_BYTES, DRAIN_S, ERROR_BODY_S, MAX_ERROR_BYTES, CallState, StaleConnection
from .errors import Cancelled, ConnectError, IncompleteStream, LocalChatError, NotFoundError
from .failures import add_names, broken, unreachable, wants_names
from .network import find_proxy
from .settings import Settings
from .timeouts import Timeout, timed_out


class AsyncCall(CallState):
    """A call over asyncio streams."""

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
        self._send = send
        self._connection: AnyConnection | None = None
        self.is_cancelled = False
        # What `cancel` has to set while something else than bytes is waited for.
        self._woken: asyncio.Future[None] | None = None

    def cancel(self) -> None:
        """Stop at once, from any task of the loop: the task that waits for the network gets Cancelled."""
        self.is_cancelled = True
        if self._connection is not None:
            self._connection.close()
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def check_cancelled(self, cause: BaseException | None = None) -> None:
        """What goes wrong after a cancel goes wrong because of it."""
        if self.is_cancelled:
            raise Cancelled("the stream was closed") from cause

    async def open(self) -> None:
        """Send the request, unless that has been done."""
        send, self._send = self._send, None
        if send is not None:
            await send(self)

    async def send(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> None:
        """Send a request and take the status, with retries."""
        self.prepare(method, path, body, headers)
        try:
            await self._send_with_retries()
        except NotFoundError as error:
            if wants_names(error, path):
                self.limit_to_explanation()
                with contextlib.suppress(LocalChatError):  # This only serves to explain.
                    add_names(self.settings, error, await self.fetch("GET", "models", None, headers))
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
        """Until a task is done, the time is over, or the call is cancelled."""
        self._woken = asyncio.get_running_loop().create_future()
        await asyncio.wait([*tasks, self._woken], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        self.check_cancelled()

    async def fetch(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> bytes:
        """The whole body of an answer that is no chat."""
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
        connection, first = self._connection, self.take_first()
        if first or connection is None or self.ended:
            if self._inflate.has_more:
                await asyncio.sleep(0)  # Other tasks go on while a long answer is inflated.
            return first
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
        self.check_cancelled()  # The end, and what comes with it, may be our own doing.
        return data

    async def drain(self, n_bytes: int = DRAIN_BYTES, seconds: float = DRAIN_S) -> bytes:
        """Read the rest of the body within these limits, and give the connection back if that was all of it."""
        raw, end = b"", time.monotonic() + self.deadlines.at_most(seconds)
        with contextlib.suppress(LocalChatError):  # What matters has come.
            while len(raw) < n_bytes and time.monotonic() < end and not self.all_read:
                raw += await self.read(max(end - time.monotonic(), 0.001))
        self.release()
        return raw[:n_bytes]

    def release(self) -> None:
        """Give the connection back if the body was read to its end, close it otherwise."""
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
            # The server closed an idle connection just as we wrote to it: no try is lost by that.
            self._drop()
            await self._exchange(await self._connect())
        if self.redirect():
            await self.drain()
            await self._send_once()
        elif not 200 <= self.status < 300:
            raise self.status_error(await self.drain(MAX_ERROR_BYTES, ERROR_BODY_S))

    async def _exchange(self, connection: AnyConnection) -> None:
        """Request out, status and headers in."""
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
            raise ConnectError(broken(self.settings, error)) from error

    async def _connect(self) -> AnyConnection:
        settings = self.settings
        tape = None if settings.transport is None else settings.transport.tape()
        if tape is not None and settings.transport.plays:
            return PlayedConnection(tape)
        limit, kind = self.deadlines.connecting()
        proxy = find_proxy(settings.address, settings.proxy)
        # asyncio.wait_for would lose a cancel, or the connection, if both came at once (before Python 3.12).
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
                raise ConnectError(unreachable(settings, error, proxy)) from error
            raise
