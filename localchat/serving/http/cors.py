"""Protection from web pages of other sites: checks of Host, Origin and Sec-Fetch-Site, and the CORS headers."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from email.message import Message

from ..core import errors

ANY_ORIGIN = "*"

# The methods of all endpoints.
METHODS = "GET, HEAD, POST, DELETE, OPTIONS"

# How long a browser may cache the response to a preflight, in seconds.
_MAX_AGE_S = 600
# The allowed request headers if a preflight names none.
_HEADERS = "Authorization, Content-Type, X-Api-Key, X-Request-Id"
_EXPOSED = "X-Request-Id, Retry-After"

# A host with an optional port (RFC 9110, 7.2). An authority with a user name, such as evil@localhost, does not match.
_AUTHORITY = re.compile(r"(?:\[(?P<ipv6>[0-9a-f:.]+)\]|(?P<name>[^\s\[\]@:/?#\\]+))(?::\d*)?")
_ORIGIN = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<authority>.*?)/?")


class OriginPolicy:
    """The web pages that may use this server: none, those of some origins, or all (`*`)."""

    def __init__(self, origins: Iterable[str] = ()) -> None:
        self._origins = frozenset(origin.lower().rstrip("/") for origin in origins)

    def allow(self, origin: str) -> bool:
        return ANY_ORIGIN in self._origins or origin.lower() in self._origins

    def check(self, headers: Message, host: str | None, *, is_local: bool) -> None:
        """Refuse requests of web pages that are not allowed.

        Args:
            host: `host[:port]` from the request; None in an HTTP/1.0 request without Host.
            is_local: Whether the server is on the loopback interface. If so, `host` must be a loopback name: a page of
                another site could make its own host name resolve to this machine (DNS rebinding).

        Raises:
            Forbidden: The request is from a web page that is not allowed.
        """
        if is_local and host is not None and not is_loopback(host_of(host)):
            raise errors.Forbidden(f"requests for the host {host!r} are refused: set a key with --api-key")
        origin = headers.get("Origin")
        if origin is not None:
            if not self.allow(origin) and not _is_trusted(origin, host):
                raise errors.Forbidden(f"requests from the web page {origin!r} are refused: set a key with --api-key")
        elif headers.get("Sec-Fetch-Site", "").strip().lower() == "cross-site" and not self.allow(ANY_ORIGIN):
            # Browsers send this header, and no Origin, for the images, scripts and links of a page.
            raise errors.Forbidden("requests from web pages of other sites are refused: set a key with --api-key")

    def headers(self, request: Message) -> dict[str, str]:
        """The CORS headers of every response to this request; empty if no origin is allowed."""
        if not self._origins:
            return {}
        origin = request.get("Origin")
        vary = {"Vary": "Origin"}
        if origin is None or not self.allow(origin):
            return vary
        return {**vary, "Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": _EXPOSED}

    def preflight(self, request: Message) -> dict[str, str]:
        """The CORS headers of the response to a preflight request; empty if its origin is not allowed."""
        origin = request.get("Origin")
        if origin is None or not self.allow(origin):
            return {}
        headers = {
            "Access-Control-Allow-Methods": METHODS,
            "Access-Control-Allow-Headers": _header_names(request.get("Access-Control-Request-Headers")) or _HEADERS,
            "Access-Control-Max-Age": str(_MAX_AGE_S),
        }
        # Without this header, browsers do not let a public page reach this machine or its network.
        if request.get("Access-Control-Request-Private-Network") == "true":
            headers["Access-Control-Allow-Private-Network"] = "true"
        return headers


def host_of(authority: str) -> str:
    """The host of `host[:port]`, in lower case and without a trailing dot; "" if this is not one."""
    match = _AUTHORITY.fullmatch(authority.strip(" \t").lower())
    if match is None:
        return ""
    return match["ipv6"] or match["name"].removesuffix(".")


def is_loopback(host: str) -> bool:
    """Whether this is a name or address of the loopback interface."""
    host = host.lower().removesuffix(".")
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _is_trusted(origin: str, host: str | None) -> bool:
    """Whether this is the origin of a page on this machine or this server, or of a browser extension or a program."""
    match = _ORIGIN.fullmatch(origin.lower())
    if match is None:
        return False  # such as "null", the origin of every page in a sandbox
    if match["scheme"] not in ("http", "https"):
        return True  # a browser extension or a program
    name = host_of(match["authority"])
    is_ours = host is not None and name != "" and name == host_of(host)
    return is_loopback(name) or (is_ours and _is_unforgeable(name))


def _is_unforgeable(name: str) -> bool:
    """Whether public DNS cannot set the address of this name."""
    return "." not in name or name.endswith(".local") or _address(name) is not None


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _header_names(names: str | None) -> str:
    """The list of header names unchanged; "" if there is none, or if the list is too long or malformed."""
    return names if names and re.fullmatch(r"[A-Za-z0-9\-_, ]{1,999}", names) else ""
