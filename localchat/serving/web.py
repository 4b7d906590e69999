"""Which web pages may use this server, and what browsers are told of it (CORS)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from email.message import Message
from urllib.parse import urlsplit

from ..protocol import errors

ANY_ORIGIN = "*"

# How long a browser may remember what it was allowed, in seconds.
_MAX_AGE_S = 600
_METHODS = "GET, HEAD, POST, OPTIONS"
# Browsers name the headers that a page wants to send; these are named where they do not.
_HEADERS = "Authorization, Content-Type, X-Request-Id"
_EXPOSED = "X-Request-Id, Retry-After"

_LOOPBACK = re.compile(r"localhost|127(\.\d+){3}|::1")
# Addresses, and names that nobody in the internet can give out: others may point here by a trick of their owner.
_NEAR = re.compile(r"[^.]+|[\d.]+|.+\.local")


class Pages:
    """The web pages that may use this server: none, some by their origin, or all."""

    def __init__(self, origins: Iterable[str] = ()) -> None:
        self._origins = frozenset(origin.rstrip("/") for origin in origins)

    def allow(self, origin: str) -> bool:
        return ANY_ORIGIN in self._origins or origin in self._origins

    def check(self, asked: Message, *, is_local: bool) -> None:
        """Refuses a page in the user's browser, which can reach a local server, also under the page's own host name.

        Programs send no Origin, and reach a server on the loopback interface by one of its names.

        Raises:
            Forbidden: A page asks that was not allowed.
        """
        host, origin = asked.get("Host"), asked.get("Origin")
        if is_local and host is not None and not is_loopback(_host_of("//" + host)):
            raise errors.Forbidden(f"requests for the host {host!r} are refused: set a key with --api-key")
        if origin is not None and not (self.allow(origin) or _is_friendly(origin, host)):
            raise errors.Forbidden(f"requests from the web page {origin!r} are refused: set a key with --api-key")

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


def is_loopback(host: str) -> bool:
    """Whether this is a name of the interface that only this machine reaches."""
    return _LOOPBACK.fullmatch(host) is not None


def _is_friendly(origin: str, host: str | None) -> bool:
    """Whether a page of this origin may ask: one of this machine or of this server, or no web page at all."""
    if origin != "null" and not origin.startswith(("http://", "https://")):
        return True  # an extension or a desktop program
    name = _host_of(origin)
    is_ours = host is not None and name == _host_of("//" + host)
    return is_loopback(name) or (is_ours and _NEAR.fullmatch(name) is not None)


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _plain(names: str | None) -> str:
    """A list of header names as it came, if it is one and nothing else."""
    names = names or ""
    return names if len(names) < 1000 and all(c.isalnum() or c in "-_, " for c in names) and names.isascii() else ""
