"""Notices clients that leave while their requests wait or run.

The thread of a request waits in its `ClientMailbox`, for the engine, for its model to be loaded, or for its client to
leave. It does not poll the connection: `ClientWatch` puts a message into the mailbox when its state changes.
"""

from __future__ import annotations

import contextlib
import enum
import math
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from ..core.mailbox import Mailbox
from .exchange import ClientGoneError, Exchange
from .stream import Stream

# A client may shut down its side of the connection after the request, and still read the response. A client that has
# closed the connection looks the same, until it gets some bytes, which it rejects. So it gets bytes that clients
# ignore, unless the response comes within this time.
PROBE_AFTER_S = 1.0
# It may also read these bytes and leave later, so it gets more of them at intervals of this.
PROBE_PERIOD_S = 10.0

# How often the connections are checked on systems without epoll.
_PERIOD_S = 0.25


class ClientState(enum.Enum):
    OPEN = "open"
    SHUT_DOWN = "shut down"  # The client sends no more. It may still read.
    GONE = "gone"


def client_state(sock: socket.socket) -> ClientState:
    """The state of the client's side of a connection. Does not wait."""
    try:
        if hasattr(select, "POLLRDHUP"):
            # Linux reports that the peer has shut down its side, also behind unread bytes and the encryption of TLS.
            poll = select.poll()
            poll.register(sock, select.POLLRDHUP)
            events = sum(events for _, events in poll.poll(0))
            if events & (select.POLLHUP | select.POLLERR | select.POLLNVAL):
                return ClientState.GONE
            return ClientState.SHUT_DOWN if events else ClientState.OPEN
        if hasattr(select, "poll"):  # `select` takes no descriptor from 1024 on.
            poll = select.poll()
            poll.register(sock, select.POLLIN)
            is_readable = bool(poll.poll(0))
        else:
            is_readable = bool(select.select([sock], [], [], 0)[0])
        # The method of the base class, since SSLSocket's `recv` takes no flags.
        has_ended = is_readable and not socket.socket.recv(sock, 1, socket.MSG_PEEK)
        return ClientState.SHUT_DOWN if has_ended else ClientState.OPEN
    except (OSError, ValueError):
        return ClientState.GONE


class ClientWatch:
    """Calls a function when the state of a connection changes. One thread watches all connections."""

    def __init__(self) -> None:
        # The function of each watched connection, by its file descriptor.
        self._watched: dict[int, tuple[socket.socket, Callable[[], None]]] = {}
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self._epoll: Any = None
        if hasattr(select, "epoll"):
            self._epoll = select.epoll()
            self._closing, self._closed = socket.socketpair()
            self._epoll.register(self._closed, select.EPOLLIN)
        run = self._wait_for_events if self._epoll is not None else self._check_from_time_to_time
        self._thread = threading.Thread(target=run, name="localchat-clients", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def watching(self, sock: socket.socket, notify: Callable[[], None]) -> Iterator[None]:
        """Call `notify`, which must not wait, when the client shuts down its side or is gone."""
        number = sock.fileno()
        with self._lock:
            if self._epoll is not None:
                self._epoll.register(number, select.EPOLLRDHUP | select.EPOLLONESHOT)
            self._watched[number] = sock, notify
        try:
            yield
        finally:
            with self._lock, contextlib.suppress(OSError, ValueError):
                del self._watched[number]
                if self._epoll is not None:
                    self._epoll.unregister(number)

    def close(self) -> None:
        """End the thread. No connection may be watched any more."""
        self._is_closed.set()
        if self._epoll is not None:
            with contextlib.suppress(OSError):  # It was closed before.
                self._closing.shutdown(socket.SHUT_RDWR)  # Also where a forked process has a copy of the socket.
            self._closing.close()
        self._thread.join()
        if self._epoll is not None:
            self._epoll.close()
            self._closed.close()

    def _wait_for_events(self) -> None:
        while not self._is_closed.is_set():
            for number, events in self._epoll.poll():
                with self._lock:
                    if number not in self._watched:
                        continue
                    sock, notify = self._watched[number]
                    if client_state(sock) is ClientState.OPEN:
                        continue  # The event is that of an earlier connection of this number.
                    # Register it again for a hang-up or an error, which epoll always reports. After one of these it is
                    # not registered again: they last, and would be reported without end.
                    if not events & (select.EPOLLHUP | select.EPOLLERR):
                        with contextlib.suppress(OSError):  # An error of one connection concerns no other one.
                            self._epoll.modify(number, select.EPOLLONESHOT)
                notify()

    def _check_from_time_to_time(self) -> None:
        while not self._is_closed.wait(_PERIOD_S):
            with self._lock:
                watched = list(self._watched.values())
            for sock, notify in watched:
                if client_state(sock) is not ClientState.OPEN:
                    notify()


class ClientMailbox(Mailbox):
    """The mailbox of the thread of a request. While it waits, it sends pings, and notices that the client has left."""

    def __init__(self, exchange: Exchange, stream: Stream | None) -> None:
        """`stream` is the response, if it is streamed."""
        super().__init__()
        self._exchange = exchange
        self._stream = stream
        # When to find out whether the client, which has shut down its side, still reads.
        self._probe_at = math.inf

    def _next(self, ends_at: float) -> list[tuple[object, Any]]:
        """See `Mailbox`. Raises ClientGoneError if the client has disconnected."""
        next_ping_at = math.inf if self._stream is None else self._stream.next_ping_at
        messages = super()._next(min(ends_at, next_ping_at, self._probe_at))
        if any(sender is self for sender, _ in messages):
            self._check_client()
        now = time.monotonic()
        if now >= self._probe_at:
            self._probe()
        elif now >= next_ping_at and self._stream is not None:
            self._stream.ping()
        return messages

    def put_change(self) -> None:
        """Have the waiting thread look at the connection. Any thread may call this."""
        self.put(self, None)

    def _check_client(self) -> None:
        """Raise ClientGoneError if the client has left; plan a probe if it has shut down its side."""
        state = client_state(self._exchange.socket)
        if state is ClientState.GONE:
            raise ClientGoneError
        if state is ClientState.SHUT_DOWN and self._probe_at == math.inf:
            self._probe_at = time.monotonic() + PROBE_AFTER_S

    def _probe(self) -> None:
        """Send bytes that clients ignore. If nobody reads them, the state of the connection changes to GONE."""
        self._probe_at = time.monotonic() + PROBE_PERIOD_S
        if self._stream is not None:
            self._stream.ping()
        elif self._exchange.status is None:
            self._exchange.send_continue()


class ClientMailboxes:
    """Makes the mailboxes of the requests of a server."""

    def __init__(self) -> None:
        self._watch = ClientWatch()

    @contextlib.contextmanager
    def mailbox_of(self, exchange: Exchange, stream: Stream | None = None) -> Iterator[ClientMailbox]:
        """The mailbox of the thread that calls this, for one request."""
        mailbox = ClientMailbox(exchange, stream)
        with self._watch.watching(exchange.socket, mailbox.put_change):
            yield mailbox

    def close(self) -> None:
        self._watch.close()
