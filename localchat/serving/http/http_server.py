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
import time
from collections.abc import Callable
from email.message import Message
from http import HTTPStatus
from typing import Any

from ..chat.service import Service
from ..core import errors
from ..core.json_text import to_json
from .connections import Connections
from .disconnects import DisconnectWatcher
from .exchange import Exchange, Head, linger
from .incoming import Incoming, problem_of
from .listener import listen_on
from .logs import NO_MEMORY
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

# The response when no thread can be started for a connection.
_NO_THREAD = (
    b"HTTP/1.1 503 Service Unavailable\r\nServer: localchat\r\nContent-Type: application/json\r\n"
    b"Retry-After: 2\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
)


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
        self.connection.settimeout(self.server.settings.write_timeout_s)
        if self.connection.family in (socket.AF_INET, socket.AF_INET6):
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)  # send each token at once
        self.rfile.close()
        self.rfile = Incoming(self.connection)

    def handle_one_request(self) -> None:
        self.server.connections.set_idle(self.connection)
        self.rfile.begin_head(IDLE_TIMEOUT_S)
        super().handle_one_request()

    def parse_request(self) -> bool:
        self.rfile.limit(HEAD_TIMEOUT_S)
        if self.raw_requestline in (b"\r\n", b"\n"):  # RFC 9112, 2.2: ignore an empty line before a request
            self.raw_requestline = self.rfile.readline(65537)
        if not super().parse_request():
            return False
        self.server.connections.set_busy(self.connection)
        self.rfile.limit(None)
        if self.rfile.is_ambiguous:
            self.send_error(400, "the headers are broken: a line has a carriage return or NUL, or begins with a space")
            return False
        problem = problem_of(self.request_version, self.headers)
        if problem is not None:
            self.send_error(400, problem)
            return False
        return True

    def handle_expect_100(self) -> bool:
        return True  # "100 Continue" is sent when the body is read

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse a request that http.server cannot parse, and close: the start of the next request is unknown."""
        self.rfile.limit(None)
        self._refuse(errors.MalformedRequest(message or HTTPStatus(code).phrase, int(code)), self.command or "")

    def log_message(self, format: str, *args: object) -> None:
        log.debug(format, *args)

    def _respond(self) -> None:
        head = Head(
            method=self.command,
            target=self.path,
            version=self.request_version,
            headers=self.headers,
            keep_alive=not self.close_connection,
            stream=self.rfile,
            socket=self.connection,
        )
        self._run(head, self.server.routes.respond)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _respond  # noqa: N815

    def _refuse(self, error: errors.ApiError, method: str = "") -> None:
        """Send an error without a valid request, and close the connection."""

        def route(exchange: Exchange) -> None:
            raise error

        self._run(Head(method, "", "HTTP/1.1", Message(), False, self.rfile, self.connection), route)

    def _run(self, head: Head, route: Callable[[Exchange], None]) -> None:
        server = self.server
        cors_headers = server.routes.origins.headers(head.headers)
        exchange = Exchange(head, server.watcher, server.settings.max_body_bytes, cors_headers)
        exchange.run(route)
        exchange.log()
        server.routes.count(exchange)
        self.close_connection = not exchange.keep_alive
        if self.close_connection:
            server.connections.set_idle(self.connection)
            linger(self.connection)


class RefusingHandler(Handler):
    """Refuses a connection beyond the limit, without reading its request."""

    def handle(self) -> None:
        limit = self.server.connections.limit
        self._refuse(errors.TooManyConnections(f"{limit} connections are open, the limit is {limit}: try again"))


class Stopped(KeyboardInterrupt):
    """Ends `serve_forever`. Not an Exception, which socketserver would log and ignore."""


class ChatServer(http.server.ThreadingHTTPServer):
    """Accepts connections as soon as it is created, and responds with 503 until the model is loaded.

    `listener` is the listening socket; None: open one at the host and port of the settings.

    Raises:
        OSError: The server cannot listen at the address, or the certificate cannot be read.
    """

    daemon_threads = True

    def __init__(
        self,
        service: Service,
        settings: Settings,
        listener: socket.socket | None = None,
    ) -> None:
        self.service = service
        self.settings = settings
        self.routes = Routes(service, settings)
        self.connections = Connections(settings.max_connections)
        self._tls = _tls_context(settings)
        # The time at which a draining server ends the remaining requests; None: the server is not draining.
        self._drained_by: float | None = None
        super().__init__(("", 0), Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener or listen_on(settings.host, settings.port)
        self.server_address = self.socket.getsockname()
        self.server_port = 0 if settings.uds else int(self.server_address[1])
        self.watcher = DisconnectWatcher()

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

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.connections.add(request):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except (RuntimeError, MemoryError) as error:
            log.warning("a connection is refused, no thread can be started for it: %s", error)
            self.connections.close_idle()
            self._refuse_without_thread(request)

    def _refuse_without_thread(self, request: socket.socket) -> None:
        error = errors.TooManyConnections("the process can start no thread for another connection: try again")
        body = to_json(error.body()).encode()
        with contextlib.suppress(OSError):
            request.setblocking(False)
            request.send(_NO_THREAD % (len(body), body))
        self.shutdown_request(request)

    def finish_request(self, request: Any, client_address: Any) -> None:
        handler = RefusingHandler if self.connections.is_surplus(request) else Handler
        handler(request, client_address, self)

    def shutdown_request(self, request: Any) -> None:
        self.connections.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, MemoryError):
            log.error("a connection failed: %s", NO_MEMORY)
        elif not isinstance(error, OSError):  # a broken connection is not an error of the server
            log.exception("a connection failed")


def _tls_context(settings: Settings) -> ssl.SSLContext | None:
    if settings.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(settings.tls_cert, settings.tls_key)
    return context
