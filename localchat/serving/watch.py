"""Notices at once when a peer goes away while its answer is being made (K33).

One thread looks at the sockets of all busy requests. A thread that waits for the next token cannot look
itself, and without a stream there is nothing to write that could fail. Knows sockets, nothing of HTTP.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Callable, Iterator

# How much is looked at of what a peer says too early.
_PEEKED = 64


class Watcher:
    """Calls a function when the peer of a watched socket has closed its end.

    A peer that only shuts down its writing side counts as gone: the two look the same from here.
    """

    def __init__(self) -> None:
        # Guards the selector's map; waiting happens outside, and the wake-up makes it look again.
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_sender.setblocking(False)
        self._selector.register(self._wake_receiver, selectors.EVENT_READ)
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="localchat-watcher", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def watch(self, sock: socket.socket, on_gone: Callable[[], None]) -> Iterator[None]:
        """Within the `with`, `on_gone` may be called once, on the watcher's thread; it must not wait."""
        with self._lock:
            if not self._is_closing:
                self._selector.register(sock, selectors.EVENT_READ, on_gone)
                self._wake()
        try:
            yield
        finally:
            with self._lock:
                self._forget(sock)

    def close(self) -> None:
        """Stops watching; nothing is called from now on."""
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
        # A full buffer is a wake-up that has not been heard yet.
        with contextlib.suppress(BlockingIOError):
            self._wake_sender.send(b"\0")

    def _run(self) -> None:
        while not self._is_closing:
            for key, _ in self._selector.select():
                if key.fileobj is self._wake_receiver:
                    self._wake_receiver.recv(4096)
                elif isinstance(key.fileobj, socket.socket):
                    self._look(key.fileobj)

    def _look(self, sock: socket.socket) -> None:
        with self._lock:
            has_left = None if self._is_closing else _has_left(sock)
            if has_left is None:
                return
            # Also with something to read: that is the next request come early, and it would be reported
            # again and again.
            on_gone = self._forget(sock)
            if has_left and on_gone is not None:
                on_gone()

    def _forget(self, sock: socket.socket) -> Callable[[], None] | None:
        # Meanwhile its watching may have ended (KeyError), and it may be closed too (ValueError).
        try:
            on_gone: Callable[[], None] = self._selector.unregister(sock).data
        except (KeyError, ValueError):
            return None
        return on_gone


def _has_left(sock: socket.socket) -> bool | None:
    """Whether the peer has closed its end; None if there is nothing to tell it from, any more."""
    # A look at the socket itself would wait for as long as its timeout says.
    try:
        with sock.dup() as look:
            look.setblocking(False)
            said = look.recv(_PEEKED, socket.MSG_PEEK)
            if said and not said.strip(b"\r\n"):
                look.recv(len(said))  # Line ends between two requests mean nothing (RFC 9112, 2.2).
                return None
            return not said
    except BlockingIOError:
        return None
    except OSError:
        return True
