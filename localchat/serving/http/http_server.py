"""The HTTP server: HTTP/1.1 with keep-alive, one thread per connection; http.server parses requests.

Each request becomes an Exchange (exchange.py), and routes.py finds its endpoint.
"""

from __future__ import annotations

import contextlib
import errno
import http.server
import logging
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from email.message import Message
from http import HTTPStatus
from typing import Any

from ..chat.service import Service
from ..core import errors
from .disconnects import DisconnectWatcher
from .exchange import Exchange
from .listener import listen_on
from .logs import NO_MEMORY
from .request import Incoming, Request, problem_of
from .routes import Routes
from .settings import Settings

log = logging.getLogger("localchat.server")

# How long a connection may be idle between requests. The connection pools of common clients close it sooner.
IDLE_TIMEOUT_S = 120.0
# How long a client may take to send the rest of the head of a request, or to complete the TLS handshake.
HEAD_TIMEOUT_S = 30.0
# How long to pause before the next `accept` when the process has too many open files.
NO_FILES_PAUSE_S = 0.5
# How long responses may take to end when the server closes.
CLOSE_TIMEOUT_S = 5.0


class Handler(http.server.BaseHTTPRequestHandler):
    """The requests of one connection, parsed by http.server. The state of a request is in its Exchange."""

    server: ChatServer
    request: socket.socket
    rfile: Incoming
    raw_requestline: bytes
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        if isinstance(self.request, ssl.SSLSocket):
            self.request.settimeout(HEAD_TIMEOUT_S)
            self.request.do_handshake()
        super().setup()
        if self.connection.family in (socket.AF_INET, socket.AF_INET6):
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)  # send each token at once
        self.rfile.close()
        self.rfile = Incoming(self.connection)

    def handle(self) -> None:
        connections = self.server.connections
        if not connections.is_ending(self.connection):
            super().handle()
            return
        # The connection is beyond the limit. Its request is not read.
        message = f"{connections.limit} connections are open, the limit is {connections.limit}: try again"
        self.refuse(errors.TooManyConnections(message), "refused")

    def handle_one_request(self) -> None:
        self.server.connections.set_idle(self.connection)
        self.rfile.is_ambiguous = False
        self.rfile.require_by(time.monotonic() + IDLE_TIMEOUT_S)
        super().handle_one_request()

    def parse_request(self) -> bool:
        self.rfile.require_by(time.monotonic() + HEAD_TIMEOUT_S)
        if self.raw_requestline in (b"\r\n", b"\n"):  # RFC 9112, 2.2: ignore an empty line before a request
            self.raw_requestline = self.rfile.readline(65537)
        if not super().parse_request():
            return False
        self.server.connections.set_busy(self.connection)
        problem = problem_of(self.request_version, self.headers)
        if self.rfile.is_ambiguous:
            problem = "the headers are broken: a line has a carriage return or NUL, or begins with a space"
        if problem is not None:
            self.send_error(400, problem)
        return problem is None

    def handle_expect_100(self) -> bool:
        return True  # "100 Continue" is sent when the body is read

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse a request that http.server cannot parse, and close: the start of the next request is unknown."""
        self.refuse(errors.MalformedRequest(message or HTTPStatus(code).phrase, int(code)), "malformed")

    def log_message(self, format: str, *args: object) -> None:
        log.debug(format, *args)

    def _respond(self) -> None:
        self._run(self.path, self.request_version, self.headers, self.server.routes.respond)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _respond  # noqa: N815

    def refuse(self, error: errors.ApiError, route: str) -> None:
        """Send an error without a valid request, and close the connection. `route` is its path in the metrics."""

        def fail(exchange: Exchange) -> None:
            exchange.route = route
            raise error

        self._run("", "", Message(), fail)

    def _run(self, target: str, version: str, headers: Message, route: Callable[[Exchange], None]) -> None:
        server, settings = self.server, self.server.settings
        method = getattr(self, "command", None) or ""
        request = Request(method, target, version, headers, self.rfile, self.connection, settings.max_body_bytes)
        cors_headers = server.routes.access.cors_headers(headers)
        exchange = Exchange(request, server.watcher, cors_headers, settings.write_timeout_s)
        exchange.run(route)
        server.routes.ended(exchange)
        self.close_connection = not exchange.keep_alive
        if self.close_connection:
            server.connections.set_idle(self.connection)
            exchange.linger()


class Stopped(KeyboardInterrupt):
    """Ends `serve_forever`. Not an Exception, which socketserver would log and ignore."""


class ChatServer(http.server.ThreadingHTTPServer):
    """Accepts connections as soon as it is created, and responds with 503 until the model is loaded.

    `listener` is the listening socket; None: open one at the host and port of the settings.

    Raises:
        OSError: The server cannot listen at the address, or the certificate cannot be read.
    """

    daemon_threads = True

    def __init__(self, service: Service, settings: Settings, listener: socket.socket | None = None) -> None:
        self.service = service
        self.settings = settings
        self.routes = Routes(service, settings)
        self.connections = Connections(settings.max_connections)
        self._tls: ssl.SSLContext | None = None
        if settings.tls_cert is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(settings.tls_cert, settings.tls_key)
        # The time at which a draining server ends the remaining requests; None: the server is not draining.
        self._drained_by: float | None = None
        super().__init__(("", 0), Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener or listen_on(settings.host, settings.port)
        self.server_address = self.socket.getsockname()
        self.server_port = 0 if settings.uds else int(self.server_address[1])
        self.watcher = DisconnectWatcher()

    @property
    def url(self) -> str:
        """The URL for clients on this machine."""
        if self.settings.uds:
            return f"unix:{self.settings.uds}"
        # Clients of some systems cannot connect to the wildcard addresses 0.0.0.0 and ::.
        host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.settings.host, self.settings.host)
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.server_port}/v1"

    def drain(self, seconds: float) -> None:
        """Refuse new requests, and leave `serve_forever` when those in flight have ended, or after `seconds`."""
        self.service.in_flight.refuse()
        self._drained_by = time.monotonic() + seconds

    def service_actions(self) -> None:
        """Called about twice a second.

        Raises:
            Stopped: The server has drained.
        """
        if self._drained_by is not None and (self.service.in_flight.is_idle or time.monotonic() >= self._drained_by):
            raise Stopped

    def close(self) -> None:
        """End running responses with an error, and close the connections and the model."""
        self.server_close()
        # Close the watcher first: it would report the connections that are closed here as disconnects of clients.
        self.watcher.close()
        self.service.in_flight.stop()
        self.connections.close_all(CLOSE_TIMEOUT_S)
        # Close the model last: responses that end need its vocabulary.
        self.service.close()

    def get_request(self) -> Any:
        try:
            sock, address = super().get_request()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and not self.connections.close_idle():
                # The connection stays in the backlog, so the next `accept` would fail at once.
                log.warning("no file is left for another connection: raise the limit (ulimit -n)")
                time.sleep(NO_FILES_PAUSE_S)
            raise
        if self._tls is not None:
            # The handshake waits for the client, so it is left to the thread of the connection.
            sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        return sock, address

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.connections.add(request):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except (RuntimeError, MemoryError) as error:
            log.warning("a connection is refused, no thread can be started for it: %s", error)
            self.connections.close_idle()
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        self.connections.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, MemoryError):
            log.error("a connection failed: %s", NO_MEMORY)
        elif not isinstance(error, OSError):  # a broken connection is not an error of the server
            log.exception("a connection failed")


class Connections:
    """The open connections: at most `limit` that are served, and as many again that are being refused or closed."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        # Guards the states, and is notified when a connection ends. Reentrant.
        self._changed = threading.Condition()
        # Each connection is "busy", "idle" (it waits for a request or its end) or "ending" (being refused or closed).
        # Of the idle ones, the one that has been idle for longest is first.
        self._states: dict[socket.socket, str] = {}

    def n(self, state: str) -> int:
        with self._changed:
            return list(self._states.values()).count(state)

    def add(self, sock: socket.socket) -> bool:
        """Count a new connection. False: it must be closed without a response, which would need one more thread."""
        with self._changed:
            if len(self._states) >= 2 * self.limit:
                return False
            is_full = len(self._states) - self.n("ending") >= self.limit and not self.close_idle()
            self._states[sock] = "ending" if is_full else "busy"
            return True

    def is_ending(self, sock: socket.socket) -> bool:
        with self._changed:
            return self._states.get(sock) == "ending"

    def remove(self, sock: socket.socket) -> None:
        with self._changed:
            self._states.pop(sock, None)
            self._changed.notify_all()

    def set_idle(self, sock: socket.socket) -> None:
        """Mark a connection that may be closed at any time."""
        with self._changed:
            if self._states.get(sock) in ("busy", "idle"):
                del self._states[sock]
                self._states[sock] = "idle"

    def set_busy(self, sock: socket.socket) -> None:
        with self._changed:
            if self._states.get(sock) == "idle":
                self._states[sock] = "busy"

    def close_idle(self) -> bool:
        """Close the connection that has been idle for longest; False if none is idle."""
        with self._changed:
            idle = next((sock for sock, state in self._states.items() if state == "idle"), None)
            if idle is None:
                return False
            self._states[idle] = "ending"
            _shut_down(idle, socket.SHUT_RDWR)
            return True

    def close_all(self, timeout_s: float) -> None:
        """Shut down all connections for reading, and those still open after this many seconds for writing too."""
        with self._changed:
            for how in (socket.SHUT_RD, socket.SHUT_RDWR):
                for sock in self._states:
                    _shut_down(sock, how)
                if self._changed.wait_for(lambda: not self._states, timeout_s):
                    return


def _shut_down(sock: socket.socket, how: int) -> None:
    """Shut down a connection, from any thread.

    This calls `socket.shutdown` for TLS too. `SSLSocket.shutdown` would end the encryption, and the thread that uses
    the connection would continue without it.
    """
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, how)
