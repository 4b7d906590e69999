"""The sockets of the server: the one that it listens on, and its open connections."""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from ..core.server_options import Options

# The number of connections that the system holds until the server accepts them. Linux limits it to net.core.somaxconn.
_BACKLOG = 512


def listening(options: Options) -> contextlib.AbstractContextManager[socket.socket]:
    """A socket that listens at the address of the options, or a Unix socket, whose file is removed at the end."""
    if options.uds is not None:
        return listen_at(options.uds)
    addresses = socket.getaddrinfo(options.host or None, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # IPv4 first: some clients try only 127.0.0.1 for localhost.
    family, _, _, _, address = min(addresses, key=lambda info: info[0] != socket.AF_INET)
    is_dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    return socket.create_server(address[:2], family=family, backlog=_BACKLOG, dualstack_ipv6=is_dual)


@contextlib.contextmanager
def listen_at(path: Path) -> Iterator[socket.socket]:
    """A Unix socket at this path that only this user can connect to. An unused socket at the path is replaced."""
    if not hasattr(socket, "AF_UNIX"):
        raise OSError(errno.EAFNOSUPPORT, "Python has no Unix sockets on this system")
    _remove_unused(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        try:
            os.chmod(path, 0o600)
            listener.listen(_BACKLOG)
            yield listener
        finally:
            listener.close()
            _remove_unused(path)  # Another server may have it now.


def _remove_unused(path: Path) -> None:
    """Remove a Unix socket at which no server listens."""
    if path.is_socket():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            if probe.connect_ex(str(path)) == errno.ECONNREFUSED:
                path.unlink(missing_ok=True)


def why_not_listening(options: Options, error: OSError) -> str:
    """The reason in one line, and what to do about it."""
    # The messages of `create_server` repeat the address.
    reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or error
    if options.uds:
        hint = "; a server or another file is there: choose another path" if error.errno == errno.EADDRINUSE else ""
        return f"cannot listen on {options.uds}: {reason}{hint}"
    next_port = (options.port + 1) % 65536
    hints = {
        errno.EADDRINUSE: f"; choose another: --port {next_port} (make run ARGS='--port {next_port}')",
        errno.EACCES: "; ports below 1024 are for administrators: choose another, such as --port 8080",
    }
    return f"cannot listen on {options.host} port {options.port}: {reason}{hints.get(error.errno or 0, '')}"


class CertificateError(Exception):
    """Why the certificate or its key cannot be used, in one line."""


def tls_context(options: Options) -> ssl.SSLContext | None:
    """The context with the certificate of the options; None if they have none. Raises CertificateError."""
    if options.tls_cert is None:
        return None
    files = f"the certificate {options.tls_cert}" + (f" with the key {options.tls_key}" if options.tls_key else "")

    def refuse_password() -> NoReturn:  # Otherwise OpenSSL asks for it on the terminal.
        raise CertificateError(f"cannot use {files}: the key is encrypted: decrypt it with openssl pkey")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(options.tls_cert, options.tls_key, refuse_password)
    except ssl.SSLError as error:  # Its number is not one of the system.
        is_other = error.reason == "KEY_VALUES_MISMATCH"
        problem = (
            "the key is that of another certificate" if is_other else "both must be in PEM, the key also in --tls-key"
        )
        raise CertificateError(f"cannot use {files}: {problem}") from error
    except OSError as error:
        raise CertificateError(f"cannot use {files}: {error.strerror}") from error
    return context


class ConnectionState(enum.Enum):
    IDLE = "idle"  # It waits for its TLS handshake, for the head of a request, or for its end. It may be closed.
    BUSY = "busy"  # It has a request.
    ENDING = "ending"  # It is being refused or closed.


class Connections:
    """The open connections: at most `limit` that are served, and as many again that are being refused or closed."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        # Guards the attributes below, and is notified when they change. Reentrant. Sockets are checked without it.
        self._changed = threading.Condition()
        # Of the idle connections, the one that has been idle for longest is first.
        self._states: dict[socket.socket, ConnectionState] = {}

    def count(self, state: ConnectionState) -> int:
        """The number of connections in a state."""
        with self._changed:
            return list(self._states.values()).count(state)

    def add(self, sock: socket.socket) -> ConnectionState | None:
        """Count a new connection, and return its state: IDLE, or ENDING if it is to be refused.

        None: there are too many for that, so it must be closed at once, without a thread.
        """
        with self._changed:
            if len(self._states) >= 2 * self.limit:
                return None
            is_full = len(self._states) - self.count(ConnectionState.ENDING) >= self.limit and not self.close_idle()
            self._states[sock] = ConnectionState.ENDING if is_full else ConnectionState.IDLE
            return self._states[sock]

    def remove(self, sock: socket.socket) -> None:
        with self._changed:
            self._states.pop(sock, None)
            self._changed.notify_all()

    def is_ending(self, sock: socket.socket) -> bool:
        return self._states[sock] is ConnectionState.ENDING

    def mark(self, sock: socket.socket, state: ConnectionState) -> None:
        """Change the state of a connection to IDLE or BUSY, unless it is ENDING."""
        with self._changed:
            if not self.is_ending(sock):
                del self._states[sock]  # so that it becomes the last one
                self._states[sock] = state

    def close_idle(self) -> bool:
        """Close the connection that has been idle for longest; False if none is idle."""
        with self._changed:
            idle = next((sock for sock, state in self._states.items() if state is ConnectionState.IDLE), None)
            if idle is None:
                return False
            self._states[idle] = ConnectionState.ENDING
            _shut_down(idle, socket.SHUT_RDWR)
            return True

    def close(self, timeout_s: float) -> None:
        """Shut down all connections for reading, and those still open after this many seconds for writing too."""
        with self._changed:
            for how in (socket.SHUT_RD, socket.SHUT_RDWR):
                for sock in self._states:
                    _shut_down(sock, how)
                if self._changed.wait_for(lambda: not self._states, timeout_s):
                    return


def _shut_down(sock: socket.socket, how: int) -> None:
    """Shut down a connection, from any thread.

    This is `socket.shutdown` for TLS, too: `SSLSocket.shutdown` would end the encryption, and the thread that uses the
    connection would continue without it.
    """
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, how)
