"""Detects client disconnects: calls a function when a client closes its connection before its response is complete.

One thread watches the sockets of all requests in flight. The thread of a request would notice a disconnect too late: it
waits for the next token, and only a streamed response has writes that fail.
"""

from __future__ import annotations

import contextlib
import select
import selectors
import socket
import ssl
import threading
from collections.abc import Callable, Iterator

# How many bytes to peek at, to distinguish empty lines from a pipelined request.
_N_PEEKED = 64
# A client that closes a TLS connection sends a last TLS record and then closes the TCP connection. Wait this many
# milliseconds for the second after the first.
_TLS_END_MS = 50


class DisconnectWatcher:
    """Calls a function when the client of a watched socket has closed its end.

    A client that only shuts down its writing side counts as disconnected: the socket does not show the difference.
    """

    def __init__(self) -> None:
        # Guards the registered sockets. `select` runs without the lock, and is woken when they change.
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_sender.setblocking(False)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ)
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="localchat-watcher", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def watch(self, sock: socket.socket, on_disconnect: Callable[[], None]) -> Iterator[None]:
        """Within the `with`, `on_disconnect` may be called once, on the watcher's thread; it must not block."""
        with self._lock:
            if not self._is_closing:
                self._selector.register(sock, selectors.EVENT_READ, on_disconnect)
                self._wake()
        try:
            yield
        finally:
            with self._lock:
                self._unregister(sock)

    def close(self) -> None:
        """Stop watching; no function is called afterwards."""
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
            self._wake()
        self._thread.join()
        self._selector.close()
        self._wake_receiver.close()
        self._wake_sender.close()

    def _wake(self) -> None:
        # If the buffer is full, the thread has not yet read an earlier wake-up.
        with contextlib.suppress(BlockingIOError):
            self._wake_sender.send(b"\0")

    def _run(self) -> None:
        while not self._is_closing:
            for key, _ in self._selector.select():
                if key.fileobj is self._wake_receiver:
                    self._wake_receiver.recv(4096)
                elif isinstance(key.fileobj, socket.socket):
                    self._check(key.fileobj)

    def _check(self, sock: socket.socket) -> None:
        with self._lock:
            is_disconnected = None if self._is_closing else has_disconnected(sock)
            if is_disconnected is None:
                return
            # Unregister the socket even if only bytes have arrived: the selector would report a pipelined request again
            # and again.
            on_disconnect = self._unregister(sock)
            if is_disconnected and on_disconnect is not None:
                on_disconnect()

    def _unregister(self, sock: socket.socket) -> Callable[[], None] | None:
        # KeyError: the `with` has ended in the meantime. ValueError: the socket is closed.
        try:
            on_disconnect: Callable[[], None] = self._selector.unregister(sock).data
        except (KeyError, ValueError):
            return None
        return on_disconnect


def is_writable(sock: socket.socket, timeout_s: float) -> bool:
    """Whether the socket accepts bytes within this many seconds; True also if it is closed."""
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(sock, selectors.EVENT_WRITE)
            return bool(selector.select(timeout_s))
    except (OSError, ValueError):
        return True


def has_disconnected(sock: socket.socket) -> bool | None:
    """True if the client has closed its end, False if it has sent bytes of a next request, None if neither."""
    if sock.fileno() < 0:
        return None  # closed by this process after the selector reported it
    if isinstance(sock, ssl.SSLSocket):
        return _is_closed_by_peer(sock)
    # `recv` on the socket itself would wait up to its timeout.
    try:
        with sock.dup() as copy:
            copy.setblocking(False)
            data = copy.recv(_N_PEEKED, socket.MSG_PEEK)
            if data and not data.strip(b"\r\n"):
                copy.recv(len(data))  # Ignore empty lines before a request (RFC 9112, 2.2).
                return None
            return not data
    except BlockingIOError:
        return None
    except OSError:
        return True


def _is_closed_by_peer(sock: socket.socket) -> bool:
    """Whether the client has closed a TLS connection.

    The bytes are encrypted, so this uses the state of the TCP connection, which only Linux reports. On other systems,
    the next write to the socket fails.
    """
    closed = getattr(select, "POLLRDHUP", 0)
    if not closed:
        return False
    poll = select.poll()
    poll.register(sock, closed)
    return bool(poll.poll(_TLS_END_MS))
