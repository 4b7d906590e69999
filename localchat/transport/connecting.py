"""The way to a server: one of its addresses, the tunnel through a proxy, TLS."""

from __future__ import annotations

import socket
from typing import Any

from ..errors import ProtocolError
from .addresses import PROXY_LOGIN, Proxy, known_addresses
from .exchange import Exchange
from .http1 import request_head
from .operations import AnyConnection, Operations
from .settings import Settings
from .timeouts import LimitExpired, timed_out


async def connect(settings: Settings, operations: Operations, proxy: Proxy | None) -> AnyConnection:
    """A connection to the server, with TLS for https; for http through a proxy, a connection to the proxy.

    Raises OSError, ValueError, RuntimeError, ProtocolError or IncompleteStream if it cannot be made.
    """
    connection = await _open(settings, operations, proxy)
    try:
        if settings.address.scheme == "https":
            if proxy is not None:
                await _open_tunnel(settings, operations, connection, proxy)
            context = await operations.run(operations.driver.read_files, settings.tls_context)
            await operations.run(operations.driver.start_tls, connection, context, settings.address.host)
        else:
            connection.proxy = proxy
    except BaseException:
        connection.close()
        raise
    return connection


async def _open(settings: Settings, operations: Operations, proxy: Proxy | None) -> AnyConnection:
    """Try the addresses of the host, one after another."""
    address, driver = settings.address, operations.driver
    if address.socket_path:
        candidates: list[Any] = [(socket.AF_UNIX, socket.SOCK_STREAM, 0, "", address.socket_path)]
    else:
        host, port = (address.host, address.port) if proxy is None else (proxy.host, proxy.port)
        candidates = known_addresses(host, port) or await operations.run(driver.look_up, host, port)
    failure: Exception = OSError(f"{address.host} has no address")
    for number, candidate in enumerate(candidates):
        left, timeout_name = operations.deadlines.left()
        # The time is divided, so that one dead address leaves some for the next.
        share = None if left is None else left / (len(candidates) - number)
        try:
            connection: AnyConnection = await operations.run_within(share, driver.connect, candidate)
            return connection
        except LimitExpired:
            failure = timed_out(timeout_name)
        except OSError as error:
            # That the host refuses the connection says more than that this machine has no IPv6, for example.
            failure = failure if isinstance(failure, ConnectionRefusedError) else error
    raise failure


async def _open_tunnel(settings: Settings, operations: Operations, connection: AnyConnection, proxy: Proxy) -> None:
    """Ask a proxy to forward the bytes of a connection to the server."""
    authority = settings.address.authority
    exchange = Exchange(operations, connection, has_body=False)
    await exchange.send(request_head(f"CONNECT {authority} HTTP/1.1", {"Host": authority, **proxy.headers}))
    status = exchange.response.status
    if status // 100 != 2:
        # A busy proxy may allow it later.
        reason = PROXY_LOGIN if status == 407 else f"it refused the tunnel with status {status}"
        raise (OSError if status >= 500 else ProtocolError)(reason)
