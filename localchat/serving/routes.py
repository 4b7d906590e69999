"""What answers which path, and who may ask: an Exchange in, an answer on it out.

How each is answered is in endpoints.py, but for the few that only look at the service.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from typing import TYPE_CHECKING
from urllib.parse import unquote

from ..protocol import errors
from ..protocol.models import models_body
from .endpoints import Endpoints, Table
from .exchange import DEFAULT_MAX_BODY_BYTES, Exchange
from .web import Pages, is_loopback

if TYPE_CHECKING:
    from ..generation.model import Service

# How long a stream may be silent before a comment shows that it lives: proxies give up after a minute.
DEFAULT_PING_S = 20.0

# Each has a thread. Twice as many as requests run and wait by default, and fewer than most systems allow files.
DEFAULT_MAX_CONNECTIONS = 512

# What is asked again and again to see how the server is.
_PROBES = ("/health", "/metrics", "/slots")


@dataclass(frozen=True)
class Settings:
    """What the command line says about HTTP."""

    host: str = "127.0.0.1"
    port: int = 8080
    api_key: str | None = None
    strict: bool = False
    allow_chat_template: bool = False
    thought_field: bool = False
    ping_s: float = DEFAULT_PING_S
    cors: tuple[str, ...] = ()
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    max_connections: int = DEFAULT_MAX_CONNECTIONS


# What other servers have under a path that this one has not, and what to use here.
_CHAT_INSTEAD = "POST /v1/chat/completions takes the same conversation"
_ONLY_TEXT = "this server reads and writes text alone"
_KEEPS_NOTHING = "this server keeps nothing of what it is asked"
_ELSEWHERE: Mapping[str, str] = {
    "/responses": _CHAT_INSTEAD,
    "/messages": _CHAT_INSTEAD,
    "/chat": _CHAT_INSTEAD,
    "/api": _CHAT_INSTEAD,
    "/completion": "POST /v1/completions takes the same prompt",
    "/infill": "POST /v1/completions fills the gap between 'prompt' and 'suffix'",
    "/embedding": "POST /v1/embeddings takes the same texts as 'input'",
    "/lora-adapters": "adapters are not served: merge them into the model's file",
    "/audio": _ONLY_TEXT,
    "/images": _ONLY_TEXT,
    "/videos": _ONLY_TEXT,
    "/realtime": _ONLY_TEXT,
    "/conversations": _KEEPS_NOTHING,
    "/files": _KEEPS_NOTHING,
    "/batches": _KEEPS_NOTHING + ": send its requests, many run at once",
    "/vector_stores": _KEEPS_NOTHING,
    "/assistants": _KEEPS_NOTHING,
    "/threads": _KEEPS_NOTHING,
}


class Routes:
    """What answers which path. Each path is served with and without /v1 before it."""

    def __init__(self, service: Service, settings: Settings) -> None:
        self._service = service
        self._settings = settings
        self._is_local = is_loopback(settings.host)
        self.pages = Pages(settings.cors)
        self._endpoints = Endpoints(
            service,
            strict=settings.strict,
            allow_chat_template=settings.allow_chat_template,
            thought_field=settings.thought_field,
            ping_s=settings.ping_s,
        )
        self._table: Table = {
            **self._endpoints.table(),
            "/models": {"GET": self._models},
            "/models/": {"GET": self._one_model},
            "/health": {"GET": self._health},
        }

    def count(self, exchange: Exchange, seconds: float) -> None:
        """A request has ended; for the figures in /metrics."""
        path = _without_prefix(exchange.head.path)
        known = "/models/" if path.startswith("/models/") else path
        self._endpoints.metrics.count(known if known in self._table else "other", exchange.status, seconds)

    def answer(self, exchange: Exchange) -> None:
        path = _without_prefix(exchange.head.path)
        exchange.is_probe = path in _PROBES
        is_preflight = exchange.head.method == "OPTIONS"
        if path != "/health":
            # With a key there is no need: pages do not know it.
            if self._settings.api_key is None:
                self.pages.check(exchange.head.headers, is_local=self._is_local)
            # Browsers ask without the key whether they may send it.
            if not is_preflight:
                self._check_key(exchange.head.headers)
        methods = self._table.get("/models/" if path.startswith("/models/") else path)
        if methods is None:
            raise errors.UnknownPath(self._nothing_at(exchange.head.path))
        allowed = [*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS"]
        if is_preflight:
            exchange.send_nothing({"Allow": ", ".join(allowed), **self.pages.preflight(exchange.head.headers)})
            return
        route = methods.get("GET" if exchange.head.method == "HEAD" else exchange.head.method)
        if route is None:
            message = f"{exchange.head.path} takes {' and '.join(allowed)}, not {exchange.head.method}"
            raise errors.MethodNotAllowed(message, allowed)
        route(exchange)

    def _nothing_at(self, path: str) -> str:
        hint = _ELSEWHERE.get("/" + _without_prefix(path).lstrip("/").partition("/")[0])
        served = ", ".join(f"{method} /v1{path}" for path, by in self._table.items() for method in by)
        return f"there is nothing at {path}{f': {hint}' if hint else ''}; this server answers {served}"

    def _check_key(self, headers: Message) -> None:
        key = self._settings.api_key
        if key is None:
            return
        scheme, _, given = headers.get("Authorization", "").partition(" ")
        # Bytes, since the comparison takes no text beyond ASCII.
        is_right = hmac.compare_digest(given.strip().encode("latin-1", "replace"), key.encode())
        if scheme.lower() != "bearer" or not is_right:
            raise errors.Unauthorized("send the API key of this server as 'Authorization: Bearer KEY'")

    def _health(self, exchange: Exchange) -> None:
        self._service.model()
        exchange.send_json(200, {"status": "ok"})

    def _models(self, exchange: Exchange) -> None:
        exchange.send_json(200, models_body([self._service.model().body()]))

    def _one_model(self, exchange: Exchange) -> None:
        name = unquote(_without_prefix(exchange.head.path)[len("/models/") :])
        exchange.send_json(200, self._service.resolve(name).body())


def _without_prefix(path: str) -> str:
    path = re.sub(r"^https?://[^/]*", "", path)  # the absolute form, which proxies use
    path = path.rstrip("/") or "/"
    return path[len("/v1") :] if path.startswith("/v1/") else path
