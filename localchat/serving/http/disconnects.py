"""Detects clients that close the connection before their response is complete.

The thread of a request would notice a disconnect too late: it waits for the next token, and only a streamed response
has writes that fail. So one thread checks the sockets of all requests in flight, a few times per second.
"""

from __future__ import annotations

import contextlib
import select
import selectors
import socket
import threading
from collections.abc import Callable, Iterator

# Seconds between two checks. A check of one socket takes microseconds.
INTERVAL_S = 0.05

# Linux reports that the peer has closed its end, also behind unread bytes and the encryption of TLS.
_PEER_CLOSED = getattr(select, "POLLRDHUP", 0)


class DisconnectWatcher:
    """Calls a function when the client of a watched socket has closed its end.

    A client that only shuts down its writing side counts as disconnected: the socket does not show the difference.
    """

    def __init__(self) -> None:
        # Guards the attributes below, and is notified when they change. Sockets are checked without it.
        self._changed = threading.Condition()
        # The watched sockets. Each `watch` has a key of its own, so that a check never acts on a later request.
        self._watched: dict[object, tuple[socket.socket, Callable[[], None]]] = {}
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="localchat-watcher", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def watch(self, sock: socket.socket, on_disconnect: Callable[[], None]) -> Iterator[None]:
        """Within the `with`, `on_disconnect` may be called once, on the watcher's thread; it must not block."""
        key = object()
        with self._changed:
            self._watched[key] = sock, on_disconnect
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._watched.pop(key, None)

    def close(self) -> None:
        """Stop watching; no function is called afterwards."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._watched or self._is_closed)
                self._changed.wait_for(lambda: self._is_closed, INTERVAL_S)
                if self._is_closed:
                    return
                watched = list(self._watched.items())
            for key, (sock, on_disconnect) in watched:
                if has_disconnected(sock):
                    with self._changed:
                        if self._watched.pop(key, None) is not None:
                            on_disconnect()


def has_disconnected(sock: socket.socket) -> bool:
    """Whether the client has closed its end. Does not wait. False for a socket that this process has closed.

    Without `POLLRDHUP`, this is False as long as there are unread bytes, which with TLS there are at the end too.
    """
    try:
        if _PEER_CLOSED:
            poll = select.poll()
            poll.register(sock, _PEER_CLOSED)
            return bool(poll.poll(0))
        with selectors.DefaultSelector() as selector:
            selector.register(sock, selectors.EVENT_READ)
            # The method of the base class, since SSLSocket's `recv` takes no flags.
            return bool(selector.select(0)) and not socket.socket.recv(sock, 1, socket.MSG_PEEK)
    except ValueError:
        return False
    except OSError:
        return True
