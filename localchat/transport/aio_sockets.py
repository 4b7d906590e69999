"""The asyncio driver: it waits without blocking the event loop, to which its connections belong."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import socket
from collections.abc import Callable
from typing import Any

from .addresses import Proxy, look_up
from .sockets import configure, start_thread
from .timeouts import LimitExpired

_MAX_BUFFERED_BYTES = 131072  # Reading pauses while more bytes than this are unread.
_HANDSHAKE_S = 86400.0  # Longer than any limit of a call: asyncio would end a handshake after a minute.


class AsyncConnection(asyncio.Protocol):
    """A connection to the server. asyncio calls the methods of Protocol; one task reads."""

    proxy: Proxy | None = None  # The proxy that gets the requests; None without a proxy and for a tunnel through one.

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._process = os.getpid()
        self.transport: Any = None
        self._buffer = bytearray()  # Bytes that are received and not read.
        # Whether the connection has ended, and the error that ended it.
        self._ended = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] = self._loop.create_future()  # What the current read waits for.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > _MAX_BUFFERED_BYTES:
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self.close()  # asyncio would first send the rest of the request, which the server may not read.

    def connection_lost(self, error: Exception | None) -> None:
        self._ended, self._error = True, error
        self._wake()

    def _wake(self) -> None:
        if not self._waiter.done():
            self._waiter.set_result(None)

    def is_usable(self) -> bool:
        """Whether an idle connection can be reused: it is open, without unread bytes, and of this event loop."""
        is_open = not self._ended and not self._buffer and not self.transport.is_closing()
        return is_open and self._process == os.getpid() and self._loop is asyncio.get_running_loop()

    async def start_tls(self, context: Any, host: str) -> None:
        # asyncio would wait for ever for a handshake on a connection that has ended.
        if self._buffer:
            raise OSError("WRONG_VERSION_NUMBER: the server sent something before the handshake")
        if self._ended:
            raise ConnectionResetError("the connection was closed before the handshake")
        options: dict[str, Any] = {"server_hostname": host, "ssl_handshake_timeout": _HANDSHAKE_S}
        self.transport = await self._loop.start_tls(self.transport, self, context, **options)

    def readable(self) -> asyncio.Future[None]:
        """A future that is done when `take` has bytes or the connection has ended. One read at a time may wait."""
        self._waiter = self._loop.create_future()
        if self._buffer or self._ended:
            self._waiter.set_result(None)
        return self._waiter

    def take(self) -> bytes:
        """The bytes that were received; empty at the end of the connection."""
        if not self._buffer and self._error is not None:
            raise self._error
        data = bytes(self._buffer)
        self._buffer.clear()
        if len(data) > _MAX_BUFFERED_BYTES:
            with contextlib.suppress(AttributeError):  # TLS of asyncio before 3.11, after the end of the connection
                self.transport.resume_reading()
        return data

    def close(self) -> None:
        """Close the connection at once, without the closing alert of TLS, which would wait for the server."""
        if self._process != os.getpid():
            return  # After a fork, the child shares the selector of the parent's loop, which has to keep the socket.
        # A child may have the socket too. Other loops than asyncio's may have none (AttributeError, TypeError). If the
        # loop is closed (RuntimeError), its connections are too.
        with contextlib.suppress(OSError, AttributeError, TypeError):
            self.transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(RuntimeError):
            self.transport.abort()


class AsyncDriver:
    """Performs the operations of one call, which belongs to one event loop; see sockets.Driver."""

    def __init__(self) -> None:
        self.is_cancelled = False  # Set by `cancel`.
        self._future: asyncio.Future[Any] | None = None  # What an operation waits for.

    def cancel(self) -> None:
        """Stop the call at once, from any task of the loop. The task that runs the call gets Cancelled."""
        self.is_cancelled = True
        if self._future is not None:
            self._future.cancel()

    async def sleep(self, limit: float) -> None:
        with contextlib.suppress(LimitExpired):
            await self._wait_for(asyncio.get_running_loop().create_future(), limit)

    async def read_files(self, limit: float | None, function: Callable[[], Any]) -> Any:
        """Call a function that reads files, in a thread."""
        return await self._wait_for(in_thread(function), limit)

    async def look_up(self, limit: float | None, host: str, port: int) -> Any:
        """The addresses of a host, from the resolver, which is called in a thread."""
        return await self._wait_for(in_thread(lambda: look_up(host, port)), limit)

    async def connect(self, limit: float | None, where: tuple[Any, ...]) -> Any:
        """Connect to an address of `look_up`. If the call ends first, `_abandon` closes the connection later."""
        task = asyncio.ensure_future(_connect(where))
        try:
            return await self._wait_for(task, limit)
        except BaseException:
            task.add_done_callback(_abandon)
            raise

    async def start_tls(self, limit: float | None, connection: AsyncConnection, context: Any, host: str) -> None:
        await self._wait_for(asyncio.ensure_future(connection.start_tls(context, host)), limit)

    async def write(self, limit: float | None, connection: AsyncConnection, data: bytes) -> None:
        """Send in the background: a server may respond before it has read the whole request."""
        connection.transport.write(data)

    async def read(self, limit: float | None, connection: AsyncConnection) -> bytes:
        await self._wait_for(connection.readable(), limit)
        return connection.take()

    async def _wait_for(self, future: asyncio.Future[Any], limit: float | None) -> Any:
        """The result of a future. After the limit or a cancel, raise LimitExpired and cancel the future."""
        self._future = future
        try:
            await asyncio.wait([future], timeout=limit)
            if not future.done() or future.cancelled():
                raise LimitExpired
            return future.result()
        finally:
            self._future = None
            future.cancel()


def in_thread(function: Callable[[], Any], *, daemon: bool = True) -> asyncio.Future[Any]:
    """A future of the result of a function that a thread of its own runs, with the context variables of the task.

    The default executor of the loop is not used: the program may keep all of its threads busy. See `start_thread`.
    """
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    context = contextvars.copy_context()

    def deliver(result: Any, error: BaseException | None) -> None:
        if future.done():  # It was cancelled, so that nobody waits.
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = context.run(function)
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # The loop was closed meanwhile.
            loop.call_soon_threadsafe(deliver, result, error)

    start_thread(run, daemon=daemon)
    return future


async def _connect(where: tuple[Any, ...]) -> AsyncConnection:
    loop = asyncio.get_running_loop()
    sock = socket.socket(*where[:3])
    try:
        configure(sock)
        sock.setblocking(False)
        await loop.sock_connect(sock, where[4])
    except BaseException:
        sock.close()
        raise
    # From now on only asyncio may close the socket, since it watches its file number, which a new socket could get.
    _, connection = await loop.create_connection(AsyncConnection, sock=sock)
    return connection


def _abandon(task: asyncio.Task[AsyncConnection]) -> None:
    """Close the connection that a task made after its call had ended."""
    if not task.cancelled() and task.exception() is None:
        task.result().close()
