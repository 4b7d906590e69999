"""Which requests are accepted: API keys, Host and Origin against pages of other sites, CORS. Others get 401 or 403."""

from __future__ import annotations

import hmac
import ipaddress
import re
from email.message import Message
from hashlib import sha256
from typing import TYPE_CHECKING

from ..core import errors

if TYPE_CHECKING:
    from ..core.server_options import Options
    from .exchange import Exchange

METHODS = "GET, HEAD, POST, DELETE, OPTIONS"  # The methods of all endpoints.

ANY_ORIGIN = "*"
_PREFLIGHT = {
    "Access-Control-Allow-Methods": METHODS,
    "Access-Control-Allow-Headers": "Authorization, *",  # "*" does not include this header
    "Access-Control-Max-Age": "600",  # seconds
}

# A host with an optional port (RFC 9110, 7.2). An authority with a user name, such as evil@localhost, does not match.
_AUTHORITY = re.compile(r"(?:\[(?P<ipv6>[0-9a-f:.]+)\]|(?P<name>[^\s\[\]@:/?#\\]+))(?::\d*)?")
_ORIGIN = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<authority>.*?)/?")


class Access:
    """Accepts requests that have one of the API keys or, on a server without keys, that no foreign web page sends."""

    def __init__(self, options: Options) -> None:
        self._digests = [sha256(key.encode()).digest() for key in options.api_keys]
        self._origins = frozenset(origin.lower().rstrip("/") for origin in options.cors)
        self._options = options

    def check(self, request: Exchange) -> None:
        """Refuse a request, before its body is read, that has no key (401) or is from a foreign web page (403)."""
        if self._options.has_page and request.wants_page:  # The page has no secrets, and asks the user for a key.
            return
        if self._digests:
            if request.method != "OPTIONS" and not self._has_key(request.headers):  # A preflight never has the key.
                message = "send the API key of this server as 'Authorization: Bearer KEY'"
                raise errors.HttpError(401, "invalid_api_key", message, {"WWW-Authenticate": "Bearer"})
        elif self._options.uds is None:  # A web page has no key, and cannot connect to a Unix socket.
            self._check_page(request.headers, request.host)

    def cors_headers(self, request: Exchange) -> dict[str, str]:
        """The CORS headers of the response to this request, also of an error; empty if no origin is allowed."""
        if not self._origins:
            return {}
        origin, headers = request.headers.get("Origin"), {"Vary": "Origin"}
        if origin is not None and self._allows(origin):
            headers["Access-Control-Allow-Origin"] = origin
            headers["Access-Control-Expose-Headers"] = "X-Request-Id, Retry-After"
            if request.method == "OPTIONS":
                headers.update(_PREFLIGHT)
            # Without this header, browsers do not let a public page reach this machine or its network.
            if request.headers.get("Access-Control-Request-Private-Network") == "true":
                headers["Access-Control-Allow-Private-Network"] = "true"
        return headers

    def _has_key(self, headers: Message) -> bool:
        """Whether `Authorization: Bearer KEY` or `X-Api-Key: KEY` has one of the keys.

        Each key of the request is compared with all keys, by digest, so that the time reveals nothing about a key.
        """
        scheme, _, bearer = headers.get("Authorization", "").partition(" ")
        sent_keys = (bearer if scheme.lower() == "bearer" else "", headers.get("X-Api-Key", ""))
        sent_digests = [sha256(key.strip().encode("latin-1", "replace")).digest() for key in sent_keys]
        matches = [hmac.compare_digest(sent, valid) for sent in sent_digests for valid in self._digests]
        return any(matches)

    def _check_page(self, headers: Message, host: str | None) -> None:
        """Refuse a request of a web page that is neither of this machine nor allowed."""
        # On the loopback interface, `host` must be a loopback name: a page of another site could make its own host name
        # resolve to this machine (DNS rebinding). It is None in an HTTP/1.0 request without Host.
        if is_loopback(self._options.host) and host is not None and not is_loopback(_host_of(host)):
            raise _forbidden(f"for the host {host!r}")
        origin = headers.get("Origin")
        if origin is not None:
            if not self._allows(origin) and not _is_trusted(origin, host):
                raise _forbidden(f"from the web page {origin!r}")
        elif headers.get("Sec-Fetch-Site", "").strip().lower() == "cross-site" and ANY_ORIGIN not in self._origins:
            # Browsers send this header, and no Origin, for the images, scripts and links of a page.
            raise _forbidden("from web pages of other sites")

    def _allows(self, origin: str) -> bool:
        return ANY_ORIGIN in self._origins or origin.lower() in self._origins


def _forbidden(source: str) -> errors.HttpError:
    return errors.HttpError(403, "forbidden", f"requests {source} are refused: set a key with --api-key")


def is_loopback(host: str) -> bool:
    """Whether this is a name or address of the loopback interface. All names under `.localhost` are (RFC 6761, 6.3)."""
    host = host.lower().removesuffix(".")
    address = _address(host)
    return host == "localhost" or host.endswith(".localhost") if address is None else address.is_loopback


def _host_of(authority: str) -> str:
    """The host of `host[:port]`, in lower case and without a trailing dot; "" if this is not one."""
    match = _AUTHORITY.fullmatch(authority.strip(" \t").lower())
    return (match["ipv6"] or match["name"].removesuffix(".")) if match else ""


def _is_trusted(origin: str, host: str | None) -> bool:
    """Whether this is the origin of a page on this machine or this server, or of a browser extension or a program."""
    match = _ORIGIN.fullmatch(origin.lower())
    if match is None:
        return False  # such as "null", the origin of every page in a sandbox
    if match["scheme"] not in ("http", "https"):
        return True  # a browser extension or a program
    name = _host_of(match["authority"])
    # The names that public DNS cannot point to this server. A page under any other name may be of another site.
    is_unforgeable = "." not in name or name.endswith(".local") or _address(name) is not None
    return is_loopback(name) or (name != "" and host is not None and name == _host_of(host) and is_unforgeable)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
