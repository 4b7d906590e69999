"""Routing: checks the access of a request, finds the endpoint of its path, and logs and counts ended requests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote

from ..api.messages import error_body as messages_error
from ..api.ollama import error_body as ollama_error
from ..chat.service import Service
from ..core import errors
from .access import METHODS, Access
from .endpoints import Endpoints
from .exchange import Exchange
from .settings import Settings

# Endpoints that monitoring polls. They are not logged, unless they fail otherwise than while the model loads.
_PROBES = ("/health", "/metrics", "/slots")

# Paths that other servers have, and the reason or the alternative for the error message.
_ONLY_TEXT = "this server supports only text"
_STORES_NONE = "this server stores no such objects"
_HINTS: Mapping[str, str] = {
    "/chat": "POST /v1/chat/completions takes the same conversation",
    "/api": "the model is chosen when the server starts",
    "/embedding": "POST /v1/embeddings takes the same texts as 'input'",
    "/lora-adapters": "adapters are not served: merge them into the model's file",
    **dict.fromkeys(("/audio", "/images", "/videos", "/realtime"), _ONLY_TEXT),
    **dict.fromkeys(("/files", "/vector_stores", "/assistants", "/threads"), _STORES_NONE),
    "/batches": _STORES_NONE + ": send the requests themselves, many can run at the same time",
}


class Routes:
    """Finds the endpoint of a request. Each path works with and without /v1 before it."""

    def __init__(self, service: Service, settings: Settings) -> None:
        self.access = Access(settings)
        self._in_flight = service.in_flight
        self._endpoints = Endpoints(service, settings)
        self._table = self._endpoints.table

    def respond(self, exchange: Exchange) -> None:
        """Respond to a request.

        Raises:
            ApiError: The request is refused or cannot be carried out.
        """
        request = exchange.request
        path = _without_prefix(request.path)
        row = self._row(path)
        exchange.route = row or "other"
        _set_error_format(exchange, path)
        if path != "/health":
            self.access.check(request)
        is_options = request.method == "OPTIONS"
        if is_options and request.target == "*":  # the server as a whole (RFC 9110, 9.3.7)
            exchange.send_nothing({"Allow": METHODS})
            return
        if row is None:
            hint = _HINTS.get("/" + path.lstrip("/").partition("/")[0])
            nothing = f"there is nothing at {request.path}" + (f": {hint}" if hint else "")
            served = ", ".join(self._endpoints.served())
            raise errors.UnknownPath(f"{nothing}; this server has the endpoints {served}")
        methods = self._table[row]
        allowed = [*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS"]
        if is_options:
            preflight = self.access.preflight_headers(request.headers)
            exchange.send_nothing({"Allow": ", ".join(allowed), **preflight})
            return
        endpoint = methods.get("GET" if request.method == "HEAD" else request.method)
        if endpoint is None:
            takes = f"{request.path} takes {' and '.join(allowed)}"
            if "websocket" in request.headers.get("Upgrade", "").lower():
                raise errors.UpgradeRequired(f"{takes} over HTTP/1.1, not a WebSocket")
            raise errors.MethodNotAllowed(f"{takes}, not {request.method}", allowed)
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
        exchange.id_headers = ("X-Request-Id", "Request-Id")


def _without_prefix(path: str) -> str:
    """The path as in the table of endpoints: without scheme and host, /v1 and a slash at the end."""
    path = re.sub(r"(?i)^https?://[^/]*", "", path)  # proxies send scheme and host (RFC 9112, 3.2.2)
    path = path.rstrip("/") or "/"
    return path[len("/v1") :] if path.startswith("/v1/") else path
