"""The HTTP server: HTTP/1.1 with keep-alive, one thread per connection; http.server parses requests.

Each request becomes an Exchange (exchange.py), and Endpoints finds its handler.
"""

from __future__ import annotations

import errno
import http.server
import logging
import socket
import ssl
import sys
import time
from collections.abc import Callable
from email.message import Message
from http import HTTPStatus
from typing import Any

from ..core import errors
from ..core.server_options import Options
from ..loading.service import Service
from .clients import ClientMailboxes
from .connections import Connections, ConnectionState, tls_context
from .endpoints import Endpoints
from .exchange import Exchange, Routing
from .incoming import Incoming, problem_of

log = logging.getLogger("localchat.server")

# How long a connection may be idle between requests. The connection pools of common clients close it sooner.
IDLE_TIMEOUT_S = 120.0
# How long a client may take to send the rest of the head of a request, or to complete the TLS handshake.
HEAD_TIMEOUT_S = 30.0
NO_FILES_PAUSE_S = 0.5  # How long to pause before the next `accept` when the process has too many open files.
CLOSE_TIMEOUT_S = 5.0  # How long responses may take to end when the server closes.


class ConnectionHandler(http.server.BaseHTTPRequestHandler):
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
        self._refuse(errors.TooManyConnections(message), "refused")

    def handle_one_request(self) -> None:
        self.server.connections.mark(self.connection, ConnectionState.IDLE)
        self.rfile.begin_head()
        self.rfile.require_within(IDLE_TIMEOUT_S)
        super().handle_one_request()

    def parse_request(self) -> bool:
        self.rfile.require_within(HEAD_TIMEOUT_S)
        if self.raw_requestline in (b"\r\n", b"\n"):  # RFC 9112, 2.2: ignore an empty line before a request
            self.raw_requestline = self.rfile.readline(65537)
        if not super().parse_request():
            return False
        self.server.connections.mark(self.connection, ConnectionState.BUSY)
        problem = problem_of(self.request_version, self.headers, self.rfile)
        if problem is not None:
            self.send_error(400, problem)
        return problem is None

    def handle_expect_100(self) -> bool:
        return True  # "100 Continue" is sent when the body is read

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse a request that http.server cannot parse, and close: the start of the next request is unknown."""
        self._refuse(errors.HttpError(int(code), None, message or HTTPStatus(code).phrase), "malformed")

    def log_message(self, format: str, *args: object) -> None:
        log.debug(format, *args)

    def _respond_to_request(self) -> None:
        self._run_exchange(self.path, self.request_version, self.headers, self.server.endpoints.respond)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _respond_to_request  # noqa: N815

    def _refuse(self, error: errors.ApiError, route: str) -> None:
        """Send an error without a valid request, and close the connection. `route` is its path in the metrics."""

        def fail(exchange: Exchange) -> None:
            exchange.routing = Routing(route)
            raise error

        self._run_exchange("", "", Message(), fail)

    def _run_exchange(self, target: str, version: str, headers: Message, respond: Callable[[Exchange], None]) -> None:
        server, method = self.server, getattr(self, "command", None) or ""
        exchange = Exchange(method, target, version, headers, self.rfile, server.options)
        exchange.run(respond)
        server.endpoints.ended(exchange)
        self.close_connection = not exchange.keep_alive
        if self.close_connection:
            server.connections.mark(self.connection, ConnectionState.IDLE)
            exchange.linger()


class ChatServer(http.server.ThreadingHTTPServer):
    """Accepts connections as soon as it is created, and responds with 503 until the model is loaded."""

    daemon_threads = True

    def __init__(self, service: Service, options: Options, listener: socket.socket) -> None:
        self._tls = tls_context(options)
        super().__init__(("", 0), ConnectionHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_address = listener.getsockname()
        self.server_port = 0 if options.uds else int(self.server_address[1])
        self.service = service
        self.options = options
        self.connections = Connections(options.max_connections)
        self.mailboxes = ClientMailboxes()
        self.endpoints = Endpoints(service, options, self.mailboxes)
        # The time at which a draining server ends the remaining requests; None: the server is not draining.
        self._drained_by: float | None = None

    @property
    def url(self) -> str:
        """The URL for clients on this machine."""
        if self.options.uds:
            return f"unix:{self.options.uds}"
        # Clients of some systems cannot connect to the wildcard addresses 0.0.0.0 and ::.
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(str(self.server_address[0]), self.options.host)
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.server_port}/v1"

    def drain(self, seconds: float) -> None:
        """Refuse new requests, and leave `serve_forever` when those in flight have ended, or after `seconds`."""
        self.endpoints.is_draining = True
        self._drained_by = time.monotonic() + seconds

    def service_actions(self) -> None:
        """Called about twice a second. Raises KeyboardInterrupt, as Ctrl-C does, when the server has drained."""
        if self._drained_by is not None and (not self.endpoints.n_in_flight or time.monotonic() >= self._drained_by):
            raise KeyboardInterrupt  # socketserver would log and ignore an Exception

    def close(self) -> None:
        """End running responses with an error, and close the connections and the model."""
        self.server_close()
        self.service.stop()
        self.connections.close(CLOSE_TIMEOUT_S)
        self.mailboxes.close()
        self.service.close()  # Close the model last: responses that end need its vocabulary.

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
        if self.connections.add(request) is None:
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
            log.error("a connection failed: %s", errors.NO_MEMORY)
        elif not isinstance(error, OSError):  # a broken connection is not an error of the server
            log.exception("a connection failed")
