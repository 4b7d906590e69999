"""Opens the socket that the server listens on: an address with a port, or a Unix socket."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

from .settings import Settings

# The number of connections that the system holds until the server accepts them. Linux limits it to net.core.somaxconn.
_BACKLOG = 512


@contextlib.contextmanager
def listening(host: str, port: int, path: Path | None) -> Iterator[socket.socket]:
    """A listening socket: a Unix socket at `path`, which is removed at the end, or TCP if `path` is None.

    Raises:
        OSError: See `listen_on` and `listen_at`.
    """
    if path is None:
        with listen_on(host, port) as listener:
            yield listener
        return
    with listen_at(path) as listener:
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


def listen_on(host: str, port: int) -> socket.socket:
    """A TCP socket that listens at this address; port 0: any free port.

    Raises:
        OSError: The address does not belong to this machine, or the port is in use.
    """
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # IPv4 first: some clients try only 127.0.0.1 for localhost.
    family, _, _, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # On Windows this option would let two servers share a port.
        if os.name != "nt":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address[:2])
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def listen_at(path: Path) -> socket.socket:
    """A Unix socket at this path that only this user can connect to. An unused socket at the path is replaced.

    Raises:
        OSError: A server listens at the path, another kind of file has the path, or it cannot be written.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise OSError(errno.EAFNOSUPPORT, "Python has no Unix sockets on this system")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                if probe.connect_ex(str(path)) == errno.ECONNREFUSED:
                    path.unlink(missing_ok=True)
        listener.bind(str(path))
        os.chmod(path, 0o600)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def why_not_listening(settings: Settings, error: OSError) -> str:
    """The reason in one line, and what to do about it."""
    if isinstance(error, ssl.SSLError) or (settings.tls_cert and error.errno in (errno.ENOENT, errno.EACCES)):
        return f"cannot use the certificate {settings.tls_cert}: {error.strerror or error}"
    if settings.uds:
        return f"cannot listen on {settings.uds}: {error.strerror or error}"
    hint = ""
    if error.errno == errno.EADDRINUSE:
        hint = f"; choose another: --port {settings.port + 1 if settings.port < 65535 else 0}"
    return f"cannot listen on {settings.host} port {settings.port}: {error.strerror or error}{hint}"
