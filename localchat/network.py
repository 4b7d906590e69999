"""Where a base URL points and what lies on the way: addresses, proxies, TLS, names of hosts.

Opens no connection; `sockets` and `aio_sockets` do.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import socket
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote, urljoin, urlsplit

from .errors import ProtocolError, cut
from .http1 import ResponseReader, request_head

if TYPE_CHECKING:  # It costs as much to import as the whole client, and is loaded by the first request that needs it.
    import ssl

# Addresses


class Address(NamedTuple):
    """Where a base URL points. `socket_path` is set for unix sockets, and then host is only a name."""

    scheme: str
    host: str
    port: int
    path: str
    query: str = ""
    socket_path: str | None = None

    @property
    def authority(self) -> str:
        """Host and port, as a tunnel is asked for."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def host_header(self) -> str:
        return self.authority.rpartition(":")[0] if self.port == PORTS[self.scheme] else self.authority

    @property
    def shown(self) -> str:
        """For messages: where we connect to."""
        return self.socket_path or f"{self.host}:{self.port}"

    def target(self, path: str) -> str:
        """The target of a request: `path` after that of the base URL, or from the server's root if it begins with /."""
        path, _, query = _quoted(path).partition("?")
        queries = "&".join(part for part in (query, self.query) if part)
        return (path if path.startswith("/") else f"{self.path}/{path}") + ("?" + queries if queries else "")

    def peer(self, proxy: str | None) -> tuple[str, int]:
        """The host and the port to connect to."""
        return (self.host, self.port) if proxy is None else _read_proxy(proxy)[:2]

    def same_origin(self, target: str, location: str) -> str | None:
        """Where `location` leads from `target`; None if that is another scheme, host or port."""
        origin = f"{self.scheme}://{self.host_header}"
        try:
            parts = urlsplit(urljoin(origin + target, location))
            named = parts.scheme, parts.hostname, parts.port or PORTS.get(parts.scheme)
        except ValueError:  # This is no address at all.
            return None
        if named != self[:3]:
            return None
        path = _quoted(parts.path) or "/"
        return path + ("?" + _quoted(parts.query) if parts.query else "")


PORTS = {"http": 80, "https": 443}


def parse_base_url(text: str) -> Address:
    """http, https, unix:/path/to/socket, or http+unix://%2Fpath%2Fto%2Fsocket/v1."""
    if text.startswith(("unix:", "http+unix:")) and not hasattr(socket, "AF_UNIX"):
        raise ValueError("the base URL names a unix socket, which Python does not have on this system")
    if text.startswith("unix:"):
        path = "/" + text[len("unix:") :].lstrip("/")
        return Address("http", "localhost", 80, "/v1", socket_path=path)
    parts = urlsplit(text if "://" in text else "http://" + text)
    if parts.scheme == "http+unix":
        return Address("http", "localhost", 80, _clean(parts.path), _quoted(parts.query), unquote(parts.netloc))
    if parts.scheme not in PORTS or not parts.hostname:
        raise ValueError(f"the base URL must begin with http://, https:// or unix:, not {cut(text, 60)!r}")
    if "@" in parts.netloc:
        raise ValueError("the base URL must not hold a user or a password: use api_key")
    host = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode("ascii")
    if not host.isprintable() or " " in host:
        raise ValueError(f"the base URL has a host that cannot be: {cut(host, 60)!r}")
    port = parts.port or PORTS[parts.scheme]
    return Address(parts.scheme, host, port, _clean(parts.path), _quoted(parts.query))


def _clean(path: str) -> str:
    """The prefix of all paths; the whole address of the chat endpoint is often pasted."""
    return _quoted(path.rstrip("/")).removesuffix("/chat/completions")


def _quoted(text: str) -> str:
    """What is quoted already stays; blanks and the like, which would end the request line, are quoted."""
    return quote(text, safe="/?%:@!$&'()*+,;=~")


_LOOPBACK = re.compile(r"(.*\.)?localhost|::1?|0\.0\.0\.0|127(\.\d{1,3}){1,3}")


def is_loopback(host: str) -> bool:
    """Whether this is the same machine; the address of no interface, which servers print, leads there too."""
    return _LOOPBACK.fullmatch(host) is not None


# Proxies


def find_proxy(address: Address, proxy: str | bool | None) -> str | None:
    """The proxy to use. None looks into the environment, False means never.

    Loopback and unix sockets never go through a proxy, whatever the environment has: it could not
    reach them.
    """
    if address.socket_path or is_loopback(address.host) or proxy is False:
        return None
    if isinstance(proxy, str):
        return proxy
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    import urllib.request  # Late: it costs 3 ms.

    proxies = urllib.request.getproxies()
    if _is_excluded(address.host, address.port, proxies.get("no", "")):
        return None
    return proxies.get(address.scheme) or proxies.get("all") or None


def _is_excluded(host: str, port: int, no_proxy: str) -> bool:
    """Whether `no_proxy` names this host: by name, by suffix, with a port, or as a network (CIDR)."""
    for entry in (item.strip().lower() for item in no_proxy.split(",")):
        name, _, named_port = entry.rpartition(":") if entry.count(":") == 1 else (entry, "", "")
        if named_port and named_port != str(port):
            continue
        name = name.lstrip("*").lstrip(".") if name != "*" else name
        if name and (name == "*" or host == name or host.endswith("." + name) or _in_network(host, name)):
            return True
    return False


def _in_network(host: str, network: str) -> bool:
    if "/" not in network:
        return False
    import ipaddress

    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network, strict=False)
    except ValueError:  # A host name, or an entry that is no network.
        return False


def _read_proxy(proxy: str) -> tuple[str, int, str]:
    """Host, port, and the value of Proxy-Authorization, if there is one."""
    try:
        parts = urlsplit(proxy if "://" in proxy else "http://" + proxy)
        host, port = parts.hostname, parts.port or 80
    except ValueError:  # It quotes what may be a part of the password.
        raise OSError("the proxy's URL cannot be read: a / in a password is written %2F") from None
    if parts.scheme != "http" or not host:
        raise OSError(f"only http:// proxies are supported, not {parts.scheme}://; set no_proxy to avoid it")
    if parts.username is None:
        return host, port, ""
    import base64

    secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return host, port, "Basic " + base64.b64encode(secret).decode()


def proxy_headers(proxy: str) -> dict[str, str]:
    secret = _read_proxy(proxy)[2]
    return {"Proxy-Authorization": secret} if secret else {}


def tunnel_request(address: Address, proxy: str) -> bytes:
    """The CONNECT request for a tunnel to the server."""
    headers = {"Host": address.authority, **proxy_headers(proxy)}
    return request_head(f"CONNECT {address.authority} HTTP/1.1", headers)


def take_tunnel(response: ResponseReader, data: bytes) -> bool:
    """Whether the tunnel is open, by the response of the proxy so far, these bytes included.

    Raises:
        OSError: It refuses.
    """
    try:
        response.feed(data)
    except ProtocolError as error:
        raise OSError(f"the proxy refused the tunnel: {error}") from error
    if not data or response.status // 100 not in (0, 2):
        raise OSError(f"the proxy refused the tunnel: {response.status or 'it closed the connection'}")
    return response.status > 0


# TLS


_contexts: dict[Any, Any] = {}


def tls_context(verify: Any) -> ssl.SSLContext:
    """A context costs 20 ms to build, so each is built once. `verify` may be a bool, a path or a context."""
    import ssl

    if isinstance(verify, ssl.SSLContext):
        return verify
    if verify not in _contexts:
        try:
            context = ssl.create_default_context(cafile=None if isinstance(verify, bool) else verify)
        except OSError as error:
            raise ValueError(f"verify must name a file of certificates, not {verify!r}: {error}") from error
        if verify is False:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif verify is True and not context.get_ca_certs() and os.name != "nt":
            # The system has none, as some builds for macOS: take those of certifi, if it is installed.
            with contextlib.suppress(ImportError):
                context.load_verify_locations(importlib.import_module("certifi").where())
        _contexts[verify] = context
    return _contexts[verify]  # type: ignore[no-any-return]  # The cache is untyped: ssl is not loaded yet.


# Names of hosts


def addresses(host: str, port: int) -> list[Any]:
    """IPv4 first for localhost: where nothing listens on ::1, trying it first costs Windows 2 s."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    if is_loopback(host):
        found.sort(key=lambda info: info[0] != socket.AF_INET)
    return found


def numeric_addresses(host: str, port: int) -> list[Any]:
    """Those of a host that is an address already, which needs no lookup; none for a name. It never waits."""
    with contextlib.suppress(socket.gaierror, UnicodeError):
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    return []
