"""Addresses of servers, the proxy of each, TLS contexts and host names. The drivers open the connections."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import SplitResult, quote, unquote, urlsplit

from ..texts import excerpt

if TYPE_CHECKING:  # Its import takes as long as that of the whole client; the first https request imports it.
    import ssl


class Address(NamedTuple):
    """The address of a server, parsed from a base URL."""

    scheme: str
    # For a unix socket only the value of the Host header. An IPv6 address may end with a zone, as in fe80::1%eth0.
    host: str
    port: int
    path: str  # The prefix of all paths, without a slash at the end.
    query: str = ""
    socket_path: str | None = None  # None unless the server is at a unix socket.

    def __repr__(self) -> str:
        """Leave out the query, which is a key for some servers."""
        return f"Address({self.scheme}://{self.shown}{self.path})"

    @property
    def authority(self) -> str:
        """Host and port, as in a CONNECT request. A zone has a meaning on this machine only and is left out."""
        host = self.host.partition("%")[0]
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    @property
    def host_header(self) -> str:
        return self.authority.rpartition(":")[0] if self.port == PORTS[self.scheme] else self.authority

    @property
    def shown(self) -> str:
        """The address in messages."""
        return self.socket_path or f"{self.host}:{self.port}"

    def target(self, path: str) -> str:
        """The request target: `path` is relative to the base URL; a `path` that begins with / is absolute."""
        path, _, query = _quoted(path).partition("?")
        queries = "&".join(part for part in (query, self.query) if part)
        return (path if path.startswith("/") else f"{self.path}/{path}") + ("?" + queries if queries else "")


PORTS = {"http": 80, "https": 443}

# Users often give the URL of an endpoint. `/models` may be the path of a base URL.
_ENDPOINT = re.compile("/((chat/)?completions|embeddings)$")


def parse_base_url(text: str) -> Address:
    """Parse a base URL: http, https, or unix:/path/to/socket. Raises ValueError if it cannot be used."""
    text = text.strip()
    if text.startswith("unix:"):
        if not hasattr(socket, "AF_UNIX"):
            raise ValueError("the base URL names a unix socket, which Python does not have on this system")
        path = re.sub("^/+", "/", text[len("unix:") :])  # A path without a slash is relative to the working folder.
        if path in ("", "/"):
            raise ValueError(f"the base URL {text!r} names no socket: write unix:/path/to/socket")
        return Address("http", "localhost", 80, "/v1", socket_path=path)
    parts = _split(text, "the base URL")
    if parts.scheme not in PORTS:
        raise ValueError(f"the base URL must begin with http://, https:// or unix:, not {excerpt(parts.scheme, 60)}:")
    if "@" in parts.netloc:
        raise ValueError("the base URL must not hold a user or a password: use api_key")
    host = str(parts.hostname)
    with contextlib.suppress(UnicodeError):
        host = host if host.isascii() else host.encode("idna").decode("ascii")
    host = unquote(host) if ":" in host else host  # The % of a zone is quoted.
    if not host.isprintable() or not host.isascii() or " " in host:
        raise ValueError(f"the base URL has an invalid host: {excerpt(host, 60)!r}")
    port = parts.port or PORTS[parts.scheme]
    path = _ENDPOINT.sub("", parts.path.rstrip("/"))
    return Address(parts.scheme, host, port, _quoted(path), _quoted(parts.query))


def _split(url: str, what: str) -> SplitResult:
    """The parts of a URL, which may lack http://. It has a host, and a valid port or none."""
    with contextlib.suppress(ValueError):  # Its message may quote a part of a password.
        parts = urlsplit(url if "://" in url else "http://" + url)
        if parts.hostname and parts.port != 0:
            return parts
    hint = "it needs a host, a port is a number from 1 to 65535, a / in a password is written %2F"
    raise ValueError(f"{what} cannot be read: {hint}")


def _quoted(text: str) -> str:
    """Quote blanks, control characters, which would end the request line, and a % that quotes nothing."""
    return quote(re.sub("%(?![0-9A-Fa-f]{2})", "%25", text), safe="/?%:@!$&'()*+,;=~")


_LOOPBACK = re.compile(r"(.*\.)?localhost|::1?|0\.0\.0\.0|127(\.\d{1,3}){1,3}")


def is_loopback(host: str) -> bool:
    """Whether the host is this machine. 0.0.0.0 and ::, which servers print as their address, lead to it too."""
    return _LOOPBACK.fullmatch(host) is not None


class Proxy(NamedTuple):
    """An HTTP proxy, and the headers of a request to it."""

    host: str
    port: int
    headers: dict[str, str]

    def __repr__(self) -> str:
        """Leave out the headers, which have the password."""
        return f"Proxy({self.host}:{self.port})"

    @property
    def shown(self) -> str:
        """The proxy in messages."""
        return f"the proxy {self.host}:{self.port}"


# What to do if a proxy returns the status 407.
PROXY_LOGIN = "the proxy requires a user and a password: http://USER:PASSWORD@HOST:PORT"


def find_proxy(address: Address, proxy: str | bool | None) -> Proxy | None:
    """The proxy to use: the URL of the option, or that of the environment, which is not used for this machine.

    None for unix sockets, for False, and if there is no proxy. Raises ValueError for a wrong URL.
    """
    if address.socket_path or proxy is False:
        return None
    if isinstance(proxy, str):
        return parse_proxy(proxy)
    if is_loopback(address.host) or not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    import urllib.request  # Late: 3 ms.

    proxies = urllib.request.getproxies()
    if urllib.request.proxy_bypass(address.authority) or _in_networks(address.host, proxies.get("no", "")):
        return None
    url = proxies.get(address.scheme) or proxies.get("all")
    return parse_proxy(url) if url else None


def _in_networks(host: str, no_proxy: str) -> bool:
    """Whether the host is an IP address that `no_proxy` lists, also in another notation or as a network (CIDR)."""
    import ipaddress

    for network in no_proxy.split(","):
        with contextlib.suppress(ValueError):  # A host name, or an entry that is not a network.
            if ipaddress.ip_address(host) in ipaddress.ip_network(network.strip(" []"), strict=False):
                return True
    return False


def parse_proxy(url: str) -> Proxy:
    """Parse the URL of a proxy; raise ValueError if it cannot be used."""
    parts = _split(url, "the proxy's URL")
    host, port = str(parts.hostname), parts.port or PORTS["http"]
    if parts.scheme != "http":
        other = f"{parts.scheme}://: proxy=False or no_proxy avoids it"
        raise ValueError(f"only http:// proxies are supported, not {other}")
    if parts.username is None:
        return Proxy(host, port, {})
    import base64

    secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return Proxy(host, port, {"Proxy-Authorization": "Basic " + base64.b64encode(secret).decode()})


def make_tls_context(verify: Any) -> ssl.SSLContext:
    """The TLS context for an option `verify`. Raises ValueError for a wrong one. A context of the program stays as is.

    The protocol HTTP/1.1 is offered (ALPN), since some servers close connections that offer none.
    """
    import ssl

    if isinstance(verify, ssl.SSLContext):
        return verify
    try:
        context = ssl.create_default_context(cafile=None if isinstance(verify, bool) else os.fspath(verify))
    except (OSError, TypeError) as error:
        raise ValueError(f"verify must name a file of certificates, not {verify!r}: {error}") from error
    context.set_alpn_protocols(["http/1.1"])
    if verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def known_addresses(host: str, port: int) -> list[Any] | None:
    """The addresses of a host that needs no resolver: an IP address or localhost; None for another name.

    localhost is always this machine (RFC 6761). IPv4 comes first: on Windows a refused connection to ::1 takes 2 s.
    """
    is_localhost = f".{host}".endswith(".localhost")
    numbers = ["127.0.0.1", *(["::1"] if socket.has_ipv6 else [])] if is_localhost else [host]
    try:
        return [address for number in numbers for address in look_up(number, port, socket.AI_NUMERICHOST)]
    except (OSError, UnicodeError):
        return None


def look_up(host: str, port: int, flags: int = 0) -> list[Any]:
    """The addresses of a host, from the resolver of the system, which may take long. Raises OSError or UnicodeError."""
    return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags))
