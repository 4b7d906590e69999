"""The blocking driver, which performs the operations that a call waits for; and the idle connections of a client."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from .addresses import Proxy, look_up
from .timeouts import LimitExpired

Result = TypeVar("Result")

READ_BYTES = 65536

MAX_IDLE_CONNECTIONS = 8
# An idle connection is not reused later: a router may have dropped it, and a request would get no answer and no error.
_MAX_IDLE_S = 30.0

# TCP checks whether the peer is still there: after these seconds without a byte, again after these, this many times.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}

# Unlike epoll and kqueue, these need no file descriptor, of which the process may have none left.
_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)

# On Windows, Ctrl-C does not interrupt a blocking read, so a read is divided into short ones.
_STEP_S = 0.2 if os.name == "nt" else None


def configure(sock: socket.socket) -> None:
    """Send small pieces at once, and notice a peer that has vanished, also behind a router."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sock.family != getattr(socket, "AF_UNIX", None):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for name, value in _KEEP_ALIVE.items():
            if hasattr(socket, name):  # Some systems lack some of them.
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _is_of_limit(error: OSError) -> bool:
    """Whether a socket reports the end of its limit. An error of the system, such as ETIMEDOUT, has a number."""
    return error.errno is None


class Connection:
    """A blocking socket that is connected to the server."""

    proxy: Proxy | None = None  # The proxy that gets the requests; None without a proxy and for a tunnel through one.

    def __init__(self, sock: Any) -> None:
        self.process = os.getpid()
        self.sock = sock  # The last attribute: see `__del__`.

    def receive(self, limit: float | None) -> bytes:
        if _STEP_S is None:
            return bytes(self.sock.recv(READ_BYTES))
        end = None if limit is None else time.monotonic() + limit
        while True:
            left = _STEP_S if end is None else min(end - time.monotonic(), _STEP_S)
            if left <= 0:
                raise LimitExpired
            self.sock.settimeout(left)
            try:
                return bytes(self.sock.recv(READ_BYTES))
            except socket.timeout as error:
                if not _is_of_limit(error):
                    raise

    def is_usable(self) -> bool:
        """Whether this process made the connection, and the server keeps it open. A closed one is readable."""
        if self.process != os.getpid() or self.sock.fileno() < 0:
            return False
        with _Selector() as selector:
            selector.register(self.sock, selectors.EVENT_READ)
            return not selector.select(0)

    def shut(self) -> None:
        """Shut the socket down, which wakes a thread that waits for it; close() would not."""
        # SSLSocket.shutdown first turns the encryption off: a thread about to send would send the key in plain text.
        if self.process == os.getpid():  # After a fork the parent uses the socket.
            with contextlib.suppress(OSError):  # The socket is not connected any more, so no thread waits for it.
                socket.socket.shutdown(self.sock, socket.SHUT_RDWR)

    def close(self) -> None:
        self.shut()  # A process that was forked may have the socket too.
        self.sock.close()

    def __del__(self) -> None:
        """For a client that the program did not close. Ctrl-C may have ended `__init__`."""
        if hasattr(self, "sock"):
            self.close()


class Pool:
    """The idle connections of one client, the last used first. It has no lock: the operations of a list are atomic."""

    def __init__(self) -> None:
        self._idle: list[tuple[Any, float]] = []  # Each with the time at which it was given, by time.monotonic.

    def take(self) -> Any:
        """Remove and return a connection to reuse; None if there is none. If it is closed later, `Call` tries again."""
        while True:
            try:
                connection, idle_since = self._idle.pop()
            except IndexError:
                return None
            if time.monotonic() - idle_since < _MAX_IDLE_S and connection.is_usable():
                return connection
            connection.close()

    def give(self, connection: Any) -> None:
        """Keep a connection for the next call, or close it if the pool is full or it cannot be reused."""
        if len(self._idle) < MAX_IDLE_CONNECTIONS and connection.is_usable():
            self._idle.append((connection, time.monotonic()))
        else:
            connection.close()

    def close(self) -> None:
        idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close()


def start_thread(function: Callable[[], object], *, daemon: bool = True) -> None:
    """Run a function in a thread of its own, or at once if the system or the interpreter allows no further thread.

    It is no thread of an executor, which has a limit of threads, all of which the program may keep busy. The end of the
    program waits for a thread that is no daemon.
    """
    try:
        threading.Thread(target=function, name="localchat", daemon=daemon).start()
    except RuntimeError:
        function()


def run_blocking(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine that awaits only operations of a Driver, which block and never suspend it. Returns its result."""
    hooks = sys.get_asyncgen_hooks()
    has_hooks = hooks != (None, None)
    if has_hooks:  # An event loop runs in this thread. At its end it would close the generators of the coroutine.
        sys.set_asyncgen_hooks(None, None)
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: Result = end.value
        return result
    finally:
        if has_hooks:
            sys.set_asyncgen_hooks(*hooks)
    raise RuntimeError("the coroutine waits for something else")


class Driver:
    """Performs the operations of one call. See operations.AnyDriver."""

    def __init__(self) -> None:
        self.is_cancelled = False  # Set by `cancel`.
        # Wakes the operation that blocks; None if none does. The lock prevents `cancel` from shutting a connection down
        # after the operation: another call may use it then. It is an RLock, as a signal handler may cancel as well.
        self._wake: Callable[[], object] | None = None
        self._lock = threading.RLock()

    def cancel(self) -> None:
        """Stop the call at once, from any thread. The thread that runs the call gets Cancelled."""
        with self._lock:
            self.is_cancelled = True
            if self._wake is not None:
                self._wake()

    async def sleep(self, limit: float) -> None:
        woken = threading.Event()
        self._blocking(woken.set, lambda: woken.wait(limit))

    async def read_files(self, limit: float | None, function: Callable[[], Any]) -> Any:
        """Call a function that reads files."""
        return function()

    async def look_up(self, limit: float | None, host: str, port: int) -> list[Any]:
        """The addresses of a host, from the resolver, which is called in a thread since it cannot be interrupted."""
        ended = threading.Event()
        outcome: list[Any] = []

        def run() -> None:
            try:
                outcome.append(look_up(host, port))
            except (OSError, UnicodeError) as error:
                outcome.append(error)
            ended.set()

        start_thread(run)
        self._blocking(ended.set, lambda: ended.wait(limit))
        if not outcome:
            raise LimitExpired
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return list(outcome[0])

    async def connect(self, limit: float | None, where: tuple[Any, ...]) -> Connection:
        """Connect to an address of `look_up`."""
        connection = Connection(socket.socket(*where[:3]))
        try:
            configure(connection.sock)
            self._transfer(limit, connection, lambda: connection.sock.connect(where[4]))
        except BaseException:
            connection.close()
            raise
        return connection

    async def start_tls(self, limit: float | None, connection: Connection, context: Any, host: str) -> None:
        connection.sock = context.wrap_socket(connection.sock, server_hostname=host, do_handshake_on_connect=False)
        self._transfer(limit, connection, connection.sock.do_handshake)

    async def write(self, limit: float | None, connection: Connection, data: bytes) -> None:
        self._transfer(limit, connection, lambda: connection.sock.sendall(data))

    async def read(self, limit: float | None, connection: Connection) -> Any:
        """The next bytes; empty at the end of the connection."""
        return self._transfer(limit, connection, lambda: connection.receive(limit))

    def _transfer(self, limit: float | None, connection: Connection, operation: Callable[[], Any]) -> Any:
        """Run an operation of a connection within the limit."""
        connection.sock.settimeout(limit)
        try:
            return self._blocking(connection.shut, operation)
        except socket.timeout as error:
            if _is_of_limit(error):
                raise LimitExpired from None
            raise

    def _blocking(self, wake: Callable[[], object], operation: Callable[[], Any]) -> Any:
        """Run an operation that blocks; `cancel` calls `wake`, which ends it."""
        with self._lock:
            if self.is_cancelled:
                raise ConnectionAbortedError("the call was cancelled")
            self._wake = wake
        try:
            return operation()
        finally:
            with self._lock:
                self._wake = None
