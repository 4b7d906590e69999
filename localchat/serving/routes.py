"""What answers which path, and who may ask: an Exchange in, an answer on it out.

Between HTTP and the rest: bodies go to api/, requests to service.py, and what comes back to the exchange.
"""

from __future__ import annotations

import hmac
import logging
import re
from dataclasses import dataclass
from email.message import Message
from typing import TYPE_CHECKING, Optional
from urllib.parse import unquote, urlsplit

from ..api import errors
from ..api.chat import parse_chat
from ..api.models import models_body
from ..engine import Cancelled
from .endpoints import Endpoints, Table
from .exchange import DEFAULT_MAX_BODY_BYTES, Exchange, PeerGone, printable
from .web import Pages, WebExchange

if TYPE_CHECKING:
    from .answer import Answer
    from .service import Service

log = logging.getLogger("localchat.server")

# A client that makes up names must not fill the memory.
MAX_TOLD = 100

# How long a stream may be silent before a comment shows that it lives: proxies give up after a minute.
DEFAULT_PING_S = 20.0

_LOOPBACK = re.compile(r"localhost|127(\.\d+){3}|::1")


@dataclass(frozen=True)
class Settings:
    """What the command line says about HTTP."""

    host: str = "127.0.0.1"
    port: int = 8080
    api_key: Optional[str] = None
    strict: bool = False
    allow_chat_template: bool = False
    thought_field: bool = False
    ping_s: float = DEFAULT_PING_S
    cors: tuple[str, ...] = ()
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES


class Routes:
    """What answers which path. Each path is served with and without /v1 before it."""

    def __init__(self, service: Service, settings: Settings) -> None:
        self._service = service
        self._settings = settings
        self._is_local = is_loopback(settings.host)
        # Members that were told of in the log: once each is enough (K10).
        self._told: set[str] = set()
        self.pages = Pages(settings.cors)
        self._endpoints = Endpoints(
            service,
            self._tell_ignored,
            strict=settings.strict,
            allow_chat_template=settings.allow_chat_template,
            ping_s=settings.ping_s,
        )
        self._table: Table = {
            "/chat/completions": {"POST": self._chat},
            "/models": {"GET": self._models},
            "/models/": {"GET": self._one_model},
            "/health": {"GET": self._health},
            **self._endpoints.table(),
        }

    def stop(self) -> None:
        """Ends all that is at work here, because the server ends."""
        self._endpoints.stop()

    def count(self, exchange: Exchange, seconds: float) -> None:
        """A request has ended; for the figures in /metrics."""
        path = _without_prefix(exchange.head.path)
        known = "/models/" if path.startswith("/models/") else path
        self._endpoints.metrics.count(known if known in self._table else "other", exchange.status, seconds)

    def answer(self, exchange: WebExchange) -> None:
        path = _without_prefix(exchange.head.path)
        is_preflight = exchange.head.method == "OPTIONS"
        if path != "/health":
            self._refuse_web_pages(exchange.head.headers)
            # Browsers ask without the key whether they may send it.
            if not is_preflight:
                self._check_key(exchange.head.headers)
        methods = self._table.get("/models/" if path.startswith("/models/") else path)
        if methods is None:
            served = ", ".join(f"{method} /v1{path}" for path, by in self._table.items() for method in by)
            raise errors.UnknownPath(f"there is nothing at {exchange.head.path}; this server answers {served}")
        allowed = [*methods, *(["HEAD"] if "GET" in methods else []), "OPTIONS"]
        if is_preflight:
            exchange.send_nothing({"Allow": ", ".join(allowed), **self.pages.preflight(exchange.head.headers)})
            return
        route = methods.get("GET" if exchange.head.method == "HEAD" else exchange.head.method)
        if route is None:
            message = f"{exchange.head.path} takes {' and '.join(allowed)}, not {exchange.head.method}"
            raise errors.MethodNotAllowed(message, allowed)
        route(exchange)

    def _refuse_web_pages(self, headers: Message) -> None:
        """A page in the user's browser can reach a local server, also under the page's own host name.

        With a key there is no need: pages do not know it. Programs send no Origin, and reach a server on
        the loopback interface by one of its names.
        """
        if self._settings.api_key is not None:
            return
        host, origin = headers.get("Host"), headers.get("Origin")
        if self._is_local and host is not None and not is_loopback(_host_of("//" + host)):
            raise errors.Forbidden(f"requests for the host {host!r} are refused: set a key with --api-key")
        if origin is not None and not (self.pages.allow(origin) or _is_friendly(origin, host)):
            raise errors.Forbidden(f"requests from the web page {origin!r} are refused: set a key with --api-key")

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

    def _chat(self, exchange: Exchange) -> None:
        settings = self._settings
        request = parse_chat(exchange.body(), strict=settings.strict, allow_template=settings.allow_chat_template)
        self._tell_ignored(request.unknown)
        exchange.name_request(request.request_id)
        with self._service.answering(request) as answer, exchange.watched(answer.cancel):
            exchange.id = answer.head.id
            try:
                (_stream if request.stream else _whole)(exchange, answer, settings)
            except Cancelled as error:
                raise PeerGone from error
            finally:
                exchange.summary = answer.summary

    def _tell_ignored(self, names: tuple[str, ...]) -> None:
        for name in set(names) - self._told:
            if len(self._told) < MAX_TOLD:
                self._told.add(name)
                log.info("requests have the member '%s', which is ignored here", printable(name))


def _whole(exchange: Exchange, answer: Answer, settings: Settings) -> None:
    reply = answer.whole(thought=settings.thought_field)
    while answer.is_running:
        answer.advance(reply)
    exchange.send_json(200, reply.body(answer.usage))


def _stream(exchange: Exchange, answer: Answer, settings: Settings) -> None:
    """Chunks as they come. The status line waits for the first token or an error (K31).

    It waits no longer than a silence may last: then it goes out with a comment. All that was to check has
    been checked by then, and what may still fail is the engine alone.
    """
    asked = answer.request.ping_s
    patience_s = (settings.ping_s if asked is None else asked) or None
    reply = answer.streamed(thought=settings.thought_field)
    has_news = answer.advance(reply, patience_s)
    exchange.start_stream()
    try:
        while answer.is_running:
            exchange.send_events(reply.take()) if has_news else exchange.send_comment()
            has_news = answer.advance(reply, patience_s)
        reply.usage(answer.usage)
    except errors.ApiError as error:
        log.warning("%s broke off: %s", answer.head.id, printable(error.message))
        reply.error(error)
    except (Cancelled, OSError):
        raise
    except Exception:
        log.exception("%s failed", answer.head.id)
        reply.error(errors.InferenceError("internal error: the server's log says more"))
    exchange.send_events([*reply.take(), "[DONE]"], is_last=True)


def is_loopback(host: str) -> bool:
    """Whether this is a name of the interface that only this machine reaches."""
    return _LOOPBACK.fullmatch(host) is not None


def _without_prefix(path: str) -> str:
    path = re.sub(r"^https?://[^/]*", "", path)  # the absolute form, which proxies use
    path = path.rstrip("/") or "/"
    return path[len("/v1") :] if path.startswith("/v1/") else path


def _is_friendly(origin: str, host: Optional[str]) -> bool:
    """Whether a page of this origin may ask: one of this machine or of this server, or no web page at all."""
    if origin != "null" and not origin.startswith(("http://", "https://")):
        return True  # an extension or a desktop program
    name = _host_of(origin)
    return is_loopback(name) or (host is not None and name == _host_of("//" + host))


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
