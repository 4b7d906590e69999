"""Connections over blocking sockets, and the pool of idle connections.

Two rules hold for every operation that blocks. Its timeout is computed from the deadline just before it, so that a
server that sends a few bytes at a time cannot exceed the deadline. Another thread can wake it, with `shut`.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from .http1 import ResponseReader
from .network import addresses, numeric_addresses, take_tunnel, tls_context, tunnel_request
from .settings import Settings

READ_BYTES = 65536
MAX_IDLE_CONNECTIONS = 8

# The interval of the checks for a cancel during the lookup of a host.
_LOOKUP_POLL_S = 0.02
# On Windows, Ctrl-C does not interrupt a blocking read, so a read is divided into short ones.
_STEP_S = 0.2 if os.name == "nt" else None


class Connection:
    """One connection to the server."""

    def __init__(self, sock: socket.socket, proxy: str | None) -> None:
        self.sock = sock
        # The URL of a proxy that gets the requests; None without a proxy and for a tunnel through one.
        self.proxy = proxy
        # Whether a request was sent over the connection.
        self.used = False
        self.process = os.getpid()
        # The timeout of the socket; -1 means that it is not known.
        self._limit: float | None = -1.0

    def send(self, data: bytes, seconds: float | None) -> None:
        self._set_limit(seconds)
        self.sock.sendall(data)

    def receive(self, seconds: float | None) -> bytes:
        """The next bytes; empty at the end of the connection."""
        if _STEP_S is None:
            self._set_limit(seconds)
            return self.sock.recv(READ_BYTES)
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            left = _left(end)
            self._set_limit(_STEP_S if left is None else min(left, _STEP_S))
            with contextlib.suppress(socket.timeout):
                return self.sock.recv(READ_BYTES)

    def _set_limit(self, seconds: float | None) -> None:
        """Set the timeout of the socket. This is a system call, so it is left out if the timeout is the same."""
        if seconds != self._limit:
            self._limit = seconds
            self.sock.settimeout(seconds)

    def is_stale(self) -> bool:
        """Whether the server has closed an idle connection: the socket is then readable."""
        if self.sock.fileno() < 0:
            return True
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(self.sock, select.POLLIN | select.POLLHUP)
            return bool(poll.poll(0))
        return bool(select.select([self.sock], [], [], 0)[0])

    def close(self) -> None:
        self.sock.close()

    __del__ = close  # For a client that the program did not close.


class Pool:
    """The idle connections of one client. The one that was used last is reused first. Safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._idle: list[Connection] = []

    def take(self) -> Connection | None:
        """Remove and return a connection that the server has not closed; None if there is none."""
        self._reset_after_fork()
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None or not connection.is_stale():
                return connection
            connection.close()

    def give(self, connection: Connection) -> None:
        """Keep a connection for the next call, or close it if the pool is full."""
        self._reset_after_fork()
        with self._lock:
            if connection.process == self._process and len(self._idle) < MAX_IDLE_CONNECTIONS:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close all idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _reset_after_fork(self) -> None:
        """In a child process, begin with an empty pool: the parent uses the connections, and may hold the lock."""
        if self._process != os.getpid():
            self._process, self._lock, self._idle = os.getpid(), threading.Lock(), []


class Connector:
    """Makes a connection.

    Args:
        settings: The address of the server, and the verification of certificates.
        proxy: The URL of the proxy, None for none.
        limit: Seconds for the whole attempt, None for no limit.
        watch: Called with each socket before an operation blocks on it, and with None between such operations. An
            exception that it raises ends the attempt.
    """

    def __init__(
        self, settings: Settings, proxy: str | None, limit: float | None, watch: Callable[[socket.socket | None], None]
    ) -> None:
        self._address, self._verify = settings.address, settings.verify
        self._proxy = proxy
        self._deadline = None if limit is None else time.monotonic() + limit
        self._watch = watch

    def connect(self) -> socket.socket:
        """Return the connected socket, after the TLS handshake for https.

        Raises:
            socket.timeout: The limit was reached.
            OSError, UnicodeError: The connection could not be made.
        """
        sock = self._open()
        return self._start_tls(sock) if self._address.scheme == "https" else sock

    def _open(self) -> socket.socket:
        if self._address.socket_path:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._watch(sock)
            sock.settimeout(_left(self._deadline))
            sock.connect(self._address.socket_path)
            return sock
        host, port = self._address.peer(self._proxy)
        failure = OSError(f"{host} has no address")
        candidates = self._look_up(host, port)
        for number, (family, kind, protocol, _, where) in enumerate(candidates):
            sock = socket.socket(family, kind, protocol)
            self._watch(sock)
            try:
                left = _left(self._deadline)  # Divided, so that one dead address leaves time for the next.
                sock.settimeout(None if left is None else left / (len(candidates) - number))
                sock.connect(where)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return sock
            except OSError as error:
                sock.close()
                failure = error
        raise failure

    def _look_up(self, host: str, port: int) -> list[Any]:
        numeric = numeric_addresses(host, port)
        if numeric:
            return numeric
        # The resolver of the system has no timeout and cannot be woken, so it runs in a daemon thread.
        outcome: list[Any] = []

        def look_up() -> None:
            try:
                outcome.append(addresses(host, port))
            except (OSError, UnicodeError) as error:
                outcome.append(error)

        thread = threading.Thread(target=look_up, name="localchat-lookup", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(min(_left(self._deadline) or _LOOKUP_POLL_S, _LOOKUP_POLL_S))
            self._watch(None)
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]  # type: ignore[no-any-return]  # The list of addresses.

    def _start_tls(self, sock: socket.socket) -> socket.socket:
        if self._proxy is not None:
            self._open_tunnel(sock, self._proxy)
        context = tls_context(self._verify)
        # The handshake blocks, so `watch` needs the new socket before it.
        wrapped = context.wrap_socket(sock, server_hostname=self._address.host, do_handshake_on_connect=False)
        self._watch(wrapped)
        wrapped.settimeout(_left(self._deadline))
        wrapped.do_handshake()
        return wrapped

    def _open_tunnel(self, sock: socket.socket, proxy: str) -> None:
        sock.settimeout(_left(self._deadline))
        sock.sendall(tunnel_request(self._address, proxy))
        response, is_open = ResponseReader(), False
        while not is_open:
            sock.settimeout(_left(self._deadline))
            data = sock.recv(READ_BYTES)
            self._watch(None)
            is_open = take_tunnel(response, data)


def shut(sock: Any) -> None:
    """Shut a socket down, which wakes a thread that waits for it.

    SSLSocket.shutdown is not called, since it first turns the encryption off: a thread that is about to send would
    send the key in plain text.
    """
    shutdown = socket.socket.shutdown if isinstance(sock, socket.socket) else type(sock).shutdown
    shutdown(sock, socket.SHUT_RDWR)


def _left(deadline: float | None) -> float | None:
    """Seconds until a deadline, None for no deadline.

    Raises:
        socket.timeout: The deadline has passed.
    """
    left = None if deadline is None else deadline - time.monotonic()
    if left is not None and left <= 0:
        raise socket.timeout
    return left
