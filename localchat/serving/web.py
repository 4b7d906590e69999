"""What an Exchange says besides JSON: plain texts, empty answers, and which web pages may read them (CORS)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from email.message import Message
from typing import Optional

from .exchange import Exchange, Head
from .watch import Watcher

ANY_ORIGIN = "*"

# How long a browser may remember what it was allowed, in seconds.
_MAX_AGE_S = 600
_METHODS = "GET, HEAD, POST, OPTIONS"
# Browsers name the headers that a page wants to send; these are named where they do not.
_HEADERS = "Authorization, Content-Type, X-Request-Id"
_EXPOSED = "X-Request-Id, Retry-After"


class Pages:
    """The web pages that may use this server: none, some by their origin, or all."""

    def __init__(self, origins: Iterable[str] = ()) -> None:
        self._origins = frozenset(origin.rstrip("/") for origin in origins)

    def allow(self, origin: str) -> bool:
        return ANY_ORIGIN in self._origins or origin in self._origins

    def headers(self, asked: Message) -> dict[str, str]:
        """What an answer says of itself to a browser; nothing where no pages were allowed."""
        if not self._origins:
            return {}
        origin = asked.get("Origin")
        vary = {"Vary": "Origin"}
        if origin is None or not self.allow(origin):
            return vary
        return {**vary, "Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": _EXPOSED}

    def preflight(self, asked: Message) -> dict[str, str]:
        """What a browser may send, asked before it does; never with the key that it will send."""
        origin = asked.get("Origin")
        if origin is None or not self.allow(origin):
            return {}
        headers = {
            "Access-Control-Allow-Methods": _METHODS,
            "Access-Control-Allow-Headers": _plain(asked.get("Access-Control-Request-Headers")) or _HEADERS,
            "Access-Control-Max-Age": str(_MAX_AGE_S),
        }
        # Pages of the internet reach a server on this machine only with its consent.
        if asked.get("Access-Control-Request-Private-Network") == "true":
            headers["Access-Control-Allow-Private-Network"] = "true"
        return headers


class WebExchange(Exchange):
    """An exchange whose answers browsers let some pages read."""

    def __init__(self, head: Head, watcher: Watcher, max_body_bytes: int, pages: Pages) -> None:
        super().__init__(head, watcher, max_body_bytes)
        self._page_headers = pages.headers(head.headers)

    def send_text(self, type: str, text: str) -> None:
        body = text.encode()
        headers = {"Content-Type": type, "Content-Length": str(len(body))}
        self._send_head(200, headers, b"" if self.head.method == "HEAD" else body)

    def send_nothing(self, headers: Mapping[str, str]) -> None:
        self._send_head(204, headers)

    def _send_head(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        super()._send_head(status, {**headers, **self._page_headers}, body)


def _plain(names: Optional[str]) -> str:
    """A list of header names as it came, if it is one and nothing else."""
    names = names or ""
    return names if len(names) < 1000 and all(c.isalnum() or c in "-_, " for c in names) and names.isascii() else ""
