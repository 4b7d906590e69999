"""Routing: checks the access of a request, finds the endpoint of its path, and logs and counts ended requests."""

from __future__ import annotations

import re
from urllib.parse import unquote

from ..api.messages import error_body as messages_error
from ..api.ollama import error_body as ollama_error
from ..chat.service import Service
from ..core import errors
from .access import METHODS, Access
from .connections import Connections
from .endpoints import Endpoints
from .exchange import Exchange
from .options import Options

# Endpoints that monitoring polls. They are not logged, unless they fail otherwise than while the model loads.
_PROBES = ("/health", "/metrics", "/slots")


class Routes:
    """Finds the endpoint of a request. Each path works with and without /v1 before it."""

    def __init__(self, service: Service, options: Options, connections: Connections) -> None:
        self.access = Access(options)
        self._in_flight = service.in_flight
        self._endpoints = Endpoints(service, options, connections)
        self._table = self._endpoints.table

    def respond(self, exchange: Exchange) -> None:
        """Respond to a request.

        Raises:
            ApiError: The request is refused or cannot be carried out.
        """
        path = _without_prefix(exchange.path)
        row = self._row(path)
        exchange.route = row or "other"
        _set_error_format(exchange, path)
        if path != "/health":
            self.access.check(exchange)
        is_options = exchange.method == "OPTIONS"
        if is_options and exchange.target == "*":  # the server as a whole (RFC 9110, 9.3.7)
            exchange.send_nothing({"Allow": METHODS})
            return
        if row is None:
            served = ", ".join(self._endpoints.served())
            raise errors.UnknownPath(f"there is nothing at {exchange.path}; this server has the endpoints {served}")
        methods = self._table[row]
        allowed = [*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS"]
        if is_options:
            preflight = self.access.preflight_headers(exchange.headers)
            exchange.send_nothing({"Allow": ", ".join(allowed), **preflight})
            return
        endpoint = methods.get("GET" if exchange.method == "HEAD" else exchange.method)
        if endpoint is None:
            takes = f"{exchange.path} takes {' and '.join(allowed)}"
            if "websocket" in exchange.headers.get("Upgrade", "").lower():
                raise errors.UpgradeRequired(f"{takes} over HTTP/1.1, not a WebSocket")
            raise errors.MethodNotAllowed(f"{takes}, not {exchange.method}", allowed)
        exchange.tail = unquote(path[len(row) :])
        with self._in_flight.admitted():
            endpoint(exchange)

    def ended(self, exchange: Exchange) -> None:
        """Log and count a request that has ended."""
        if exchange.route not in _PROBES or exchange.status not in (200, errors.ModelLoading.status):
            exchange.log()
        self._endpoints.metrics.count(exchange.route, exchange.status, exchange.seconds)

    def _row(self, path: str) -> str | None:
        """The key of the table for a path: the path itself, or a prefix of it that ends in a slash."""
        if path in self._table:
            return path
        return next((row for row in self._table if row.endswith("/") and row != "/" and path.startswith(row)), None)


def _set_error_format(exchange: Exchange, path: str) -> None:
    """Set the format of errors, which may occur before the endpoint is called, by the path."""
    if path.startswith("/api/"):
        exchange.error_body = ollama_error
    elif path == "/messages" or path.startswith("/messages/"):
        exchange.error_body = messages_error


def _without_prefix(path: str) -> str:
    """The path as in the table of endpoints: without scheme and host, /v1 and a slash at the end."""
    path = re.sub(r"(?i)^https?://[^/]*", "", path)  # proxies send scheme and host (RFC 9112, 3.2.2)
    path = path.rstrip("/") or "/"
    return path[len("/v1") :] if path.startswith("/v1/") else path
