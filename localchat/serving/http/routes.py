"""Routing: checks the API key and the origin of a request, and finds the endpoint of its path.

The endpoints /health and /models are defined here. The other modules of this package define the other ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote

from ..api.messages_events import error_body as messages_error
from ..api.models import models_body
from ..api.ollama import error_body as ollama_error
from ..api.ollama_models import model_entry
from ..chat.service import Service
from ..core import errors
from ..core.request import ParseOptions
from .cors import METHODS, OriginPolicy, is_loopback
from .endpoints import Endpoints, Table
from .exchange import Exchange
from .home import Home, accepts_html, error_page
from .keys import Keys
from .messages import messages_table
from .ollama import Ollama, model_card
from .responses import Responses
from .settings import Settings

# Endpoints that monitoring polls. Their successes are not logged.
_PROBES = ("/health", "/metrics", "/slots")

# Paths that other servers have, and the reason or the alternative for the error message.
_ONLY_TEXT = "this server supports only text"
_STORES_NONE = "this server stores no such objects"
_HINTS: Mapping[str, str] = {
    "/chat": "POST /v1/chat/completions takes the same conversation",
    "/api": "the model is chosen when the server starts",
    "/embedding": "POST /v1/embeddings takes the same texts as 'input'",
    "/lora-adapters": "adapters are not served: merge them into the model's file",
    "/audio": _ONLY_TEXT,
    "/images": _ONLY_TEXT,
    "/videos": _ONLY_TEXT,
    "/realtime": _ONLY_TEXT,
    "/files": _STORES_NONE,
    "/batches": _STORES_NONE + ": send the requests themselves, many can run at the same time",
    "/vector_stores": _STORES_NONE,
    "/assistants": _STORES_NONE,
    "/threads": _STORES_NONE,
}


class Routes:
    """Finds the endpoint of a request. Each path works with and without /v1 before it."""

    def __init__(self, service: Service, settings: Settings) -> None:
        self._service = service
        self._settings = settings
        self._is_local = is_loopback(settings.host)
        self._keys = Keys(settings.api_keys)
        self.origins = OriginPolicy(settings.cors)
        self._endpoints = Endpoints(
            service,
            ParseOptions(settings.strict, settings.allow_chat_template, settings.thought_field),
            ping_s=settings.ping_s,
        )
        scheme = "http" if settings.tls_cert is None else "https"
        self._table: Table = {
            **Home(service, scheme=scheme, served=self._served).table(),
            **self._endpoints.table(),
            **Responses(service, self._endpoints, strict=settings.strict).table(),
            **Ollama(service, self._endpoints).table(),
            **messages_table(self._endpoints),
            "/models": {"GET": self._models},
            "/models/": {"GET": self._one_model},
            "/health": {"GET": self._health},
        }

    def count(self, exchange: Exchange) -> None:
        """Count a request that has ended, for /metrics."""
        row = self._row(_without_prefix(exchange.head.path))
        self._endpoints.metrics.count(row or "other", exchange.status, exchange.seconds)

    def respond(self, exchange: Exchange) -> None:
        """Respond to a request.

        Raises:
            ApiError: The request is refused or cannot be carried out.
        """
        head = exchange.head
        path = _without_prefix(head.path)
        exchange.is_probe = path in _PROBES
        _set_error_format(exchange, path)
        is_options = head.method == "OPTIONS"
        if path != "/health":
            self._check_access(exchange, is_options)
        if is_options and head.target == "*":  # the server as a whole (RFC 9110, 9.3.7)
            exchange.send_nothing({"Allow": METHODS})
            return
        row = self._row(path)
        if row is None:
            raise errors.UnknownPath(self._unknown_path(head.path))
        methods = self._table[row]
        exchange.tail = unquote(path[len(row) :])
        allowed = [*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS"]
        if is_options:
            exchange.send_nothing({"Allow": ", ".join(allowed), **self.origins.preflight(head.headers)})
            return
        endpoint = methods.get("GET" if head.method == "HEAD" else head.method)
        if endpoint is None:
            raise errors.MethodNotAllowed(f"{head.path} takes {' and '.join(allowed)}, not {head.method}", allowed)
        with self._service.in_flight.admitted():
            endpoint(exchange)

    def _row(self, path: str) -> str | None:
        """The key of the table for a path: the path itself, or a prefix of it that ends in a slash."""
        if path in self._table:
            return path
        return next((row for row in self._table if row.endswith("/") and row != "/" and path.startswith(row)), None)

    def _check_access(self, exchange: Exchange, is_options: bool) -> None:
        headers = exchange.head.headers
        # Origins need no check if the server has keys or a Unix socket: a web page has no key, and cannot connect to a
        # Unix socket.
        if not self._keys and not self._settings.uds:
            self.origins.check(headers, exchange.head.host, is_local=self._is_local)
        # A preflight never has the key.
        elif not is_options and not self._keys.accept(headers):
            raise errors.Unauthorized("send the API key of this server as 'Authorization: Bearer KEY'")

    def _unknown_path(self, path: str) -> str:
        """The error message for a path without an endpoint."""
        hint = _HINTS.get("/" + _without_prefix(path).lstrip("/").partition("/")[0])
        nothing = f"there is nothing at {path}" + (f": {hint}" if hint else "")
        return f"{nothing}; this server has the endpoints {', '.join(self._served())}"

    def _served(self) -> list[str]:
        """The method and path of each endpoint, except those for browsers."""
        pages = ("/", "/v1", "/favicon.ico")
        rows = ((path, methods) for path, methods in self._table.items() if path not in pages)
        return [f"{method} /v1{path}" for path, methods in rows for method in methods]

    def _health(self, exchange: Exchange) -> None:
        self._service.model()
        exchange.send_json(200, {"status": "ok"})

    def _models(self, exchange: Exchange) -> None:
        model = self._service.model()
        exchange.send_json(200, models_body([model.body()], [model_entry(model_card(model))]))

    def _one_model(self, exchange: Exchange) -> None:
        exchange.send_json(200, self._service.resolve(exchange.tail).body())


def _set_error_format(exchange: Exchange, path: str) -> None:
    """Set the format of errors, which may occur before the endpoint is called, by the path."""
    if path == "/" and accepts_html(exchange):
        exchange.error_page = error_page
    elif path.startswith("/api/"):
        exchange.error_body = ollama_error
    elif path == "/messages" or path.startswith("/messages/"):
        exchange.error_body = messages_error
        exchange.id_headers = ("X-Request-Id", "Request-Id")


def _without_prefix(path: str) -> str:
    """The path as in the table of endpoints: without scheme and host, /v1 and a slash at the end."""
    path = re.sub(r"(?i)^https?://[^/]*", "", path)  # proxies send scheme and host (RFC 9112, 3.2.2)
    path = path.rstrip("/") or "/"
    return path[len("/v1") :] if path.startswith("/v1/") else path
