"""Connections over asyncio, and the pool of idle connections.

A connection belongs to the event loop in which it was made. No function blocks the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Any, Union

from .http1 import ResponseReader
from .network import addresses, numeric_addresses, take_tunnel, tls_context, tunnel_request
from .settings import Settings
from .sockets import MAX_IDLE_CONNECTIONS, READ_BYTES
from .timeouts import timed_out

# The limit of bytes that are received before they are read.
_MAX_BUFFERED_BYTES = 2 * READ_BYTES


class AsyncConnection(asyncio.Protocol):
    """One connection to the server. asyncio calls the methods of Protocol; one task reads.

    Args:
        proxy: The URL of a proxy that gets the requests; None without a proxy and for a tunnel through one.
        tape: Records what is sent and received; None for no recording.
    """

    def __init__(self, proxy: str | None, tape: Any) -> None:
        self._loop = asyncio.get_running_loop()
        self._tape = tape
        self._transport: Any = None
        self.proxy = proxy
        # Whether a request was sent over the connection.
        self.used = False
        # Bytes that are received and not read. asyncio receives no more while `_paused` is set.
        self._buffer = bytearray()
        self._paused = False
        # Whether the connection has ended, and the error that ended it.
        self._ended = False
        self._error: Exception | None = None
        # The future that a read waits for, None if no read waits.
        self._waiter: asyncio.Future[None] | None = None

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > _MAX_BUFFERED_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._ended = True
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._ended, self._error = True, error
        self._wake()

    # Called by tasks.

    def is_usable(self) -> bool:
        """Whether an idle connection can be reused: it is open, without unread bytes, and of this event loop."""
        is_open = not self._ended and not self._buffer and not self._transport.is_closing()
        return is_open and self._loop is asyncio.get_running_loop()

    def write(self, data: bytes) -> None:
        """Send in the background: a server may respond before it has read the whole request."""
        if self._tape is not None:
            self._tape.sent(data)
        self._transport.write(data)

    async def read(self, limit: float | None, kind: str) -> bytes:
        """The next bytes; empty at the end of the connection.

        Raises:
            TimedOut: No bytes were received within `limit` seconds.
            OSError: The connection broke.
        """
        if not self._buffer and not self._ended:
            await self._wait(limit, kind)
        if not self._buffer and self._error is not None:
            raise self._error
        data = bytes(self._buffer)
        self._buffer.clear()
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        if self._tape is not None:
            self._tape.received(data)
        return data

    async def _wait(self, limit: float | None, kind: str) -> None:
        waiter = self._waiter = self._loop.create_future()
        # Not asyncio.wait_for, which makes a task for every read and takes ten times as long.
        timer = None if limit is None else self._loop.call_later(limit, _expire, waiter, kind)
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        """Close the connection at once, without the closing alert of TLS, which would wait for the server."""
        if self._tape is not None:
            self._tape.flush()
        with contextlib.suppress(RuntimeError):  # The event loop is closed, so its connections are too.
            self._transport.abort()


def _expire(waiter: asyncio.Future[None], kind: str) -> None:
    if not waiter.done():  # It is done if bytes were received in the same iteration of the loop.
        waiter.set_exception(timed_out(kind))


class ReplayedConnection:
    """Replays one response of a recording in place of a connection."""

    proxy = None
    used = False

    def __init__(self, tape: Any) -> None:
        self._tape = tape

    def is_usable(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self._tape.sent(data)

    async def read(self, limit: float | None, kind: str) -> bytes:
        data: bytes = self._tape.read()
        return data

    def close(self) -> None:
        """Do nothing, as nothing is connected."""


AnyConnection = Union[AsyncConnection, ReplayedConnection]


class AsyncPool:
    """The idle connections of one client. The one that was used last is reused first."""

    def __init__(self) -> None:
        self._idle: list[AnyConnection] = []

    def take(self) -> AnyConnection | None:
        """Remove and return a connection that can be reused; None if there is none."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable():
                return connection
            connection.close()
        return None

    def give(self, connection: AnyConnection) -> None:
        """Keep a connection for the next call, or close it if the pool is full or it cannot be reused."""
        if len(self._idle) < MAX_IDLE_CONNECTIONS and connection.is_usable():
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Close all idle connections."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


async def connect(settings: Settings, proxy: str | None, limit: float | None, tape: Any) -> AsyncConnection:
    """Return a connection to the server, after the TLS handshake for https.

    Raises:
        socket.timeout: An address did not accept within its share of `limit` seconds.
        OSError, UnicodeError: The connection could not be made.
    """
    secure = settings.address.scheme == "https"
    connection = AsyncConnection(None if secure else proxy, tape)
    sock = await _open_socket(settings, proxy, limit)
    try:
        if secure and proxy is not None:
            await _open_tunnel(sock, settings, proxy)
        tls: dict[str, Any] = {}
        if secure:  # In a thread, as it reads certificates from the disk.
            context = await asyncio.to_thread(tls_context, settings.verify)
            tls = {"ssl": context, "server_hostname": settings.address.host}
    except BaseException:
        sock.close()
        raise
    # From now on only asyncio may close the socket: otherwise a new socket could get its file number while asyncio
    # still watches that number.
    await asyncio.get_running_loop().create_connection(lambda: connection, sock=sock, **tls)
    return connection


def abandon(connecting: asyncio.Task[AsyncConnection]) -> None:
    """Close the connection of a finished task whose call has ended."""
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()


async def _open_socket(settings: Settings, proxy: str | None, limit: float | None) -> socket.socket:
    path = settings.address.socket_path
    if path:
        return await _connect_socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, path, limit)
    host, port = settings.address.peer(proxy)
    failure = OSError(f"{host} has no address")
    candidates = numeric_addresses(host, port) or await _look_up(host, port)
    for family, kind, protocol, _, where in candidates:
        try:
            # Divided, so that one dead address leaves time for the next.
            share = None if limit is None else limit / len(candidates)
            return await _connect_socket(family, kind, protocol, where, share)
        except asyncio.TimeoutError as error:
            failure = socket.timeout(str(error))
        except OSError as error:
            failure = error
    raise failure


async def _look_up(host: str, port: int) -> list[Any]:
    """Look up a host in a daemon thread, which no loop waits for: the resolver of the system has no timeout."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[Any]] = loop.create_future()

    def settle(outcome: Any) -> None:
        if found.done():  # The call was cancelled.
            return
        if isinstance(outcome, Exception):
            found.set_exception(outcome)
        else:
            found.set_result(outcome)

    def look_up() -> None:
        outcome: Any
        try:
            outcome = addresses(host, port)
        except (OSError, UnicodeError) as error:
            outcome = error
        with contextlib.suppress(RuntimeError):  # The loop is closed.
            loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=look_up, name="localchat-lookup", daemon=True).start()
    return await found


async def _connect_socket(family: int, kind: int, protocol: int, where: Any, limit: float | None) -> socket.socket:
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        await asyncio.wait_for(asyncio.get_running_loop().sock_connect(sock, where), limit)
    except BaseException:
        sock.close()
        raise
    return sock


async def _open_tunnel(sock: socket.socket, settings: Settings, proxy: str) -> None:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, tunnel_request(settings.address, proxy))
    response = ResponseReader()
    while not take_tunnel(response, await loop.sock_recv(sock, READ_BYTES)):
        pass
