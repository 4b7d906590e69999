"""The beginning of a connection: the client and a server agree on a revision of the protocol.

Until revision 2025-11-25 a connection begins with the request `initialize`. Since 2026-07-28 each request has the
revision, and `server/discover` returns those that the server supports.
"""

from __future__ import annotations

import contextlib
import dataclasses

from .. import __version__
from ..errors import TimedOut
from ..transport.timeouts import Timeout
from . import revisions
from .features import ClientFeatures
from .messages import Json, MCPError, failure
from .revisions import ServerDescription
from .session import AnyWaiter, CallLimits, Session, Transport, least_log_level

_CLIENT_INFO = {"name": "localchat", "version": __version__}

_DISCOVER_S = 10.0  # After this time without a result of `server/discover`, a server gets `initialize`.


class Negotiation:
    """Finds the revision of a server. `negotiate` raises MCPError or TimedOut if there is none.

    Args:
        session: Sends the requests.
        transport: Says which request to begin with, and gets the revision.
        features: What the client declares.
        timeout: The limits of each request.
    """

    def __init__(self, session: Session, transport: Transport, features: ClientFeatures, timeout: Timeout) -> None:
        self._session = session
        self._transport = transport
        self._features = features
        self._timeout = timeout

    async def negotiate(self, waiter: AnyWaiter, requested: str | None) -> ServerDescription:
        """The description of the server, in the requested revision. Without one, two requests are tried:

        first request      outcome                         next request
        server/discover    an error                        initialize
                           no response in time             initialize, then server/discover again
        initialize         an error of the server          server/discover; its failure raises the first error
        """
        if requested is not None:
            return await (self._discover if revisions.is_modern(requested) else self._initialize)(waiter, requested)
        if self._transport.begins_with_discover:
            try:
                return await self._discover(waiter, revisions.MODERN[-1], self._discover_timeout)
            except MCPError:
                return await self._initialize(waiter, revisions.LEGACY[-1])
            except TimedOut as error:
                if error.kind == "connect":
                    raise
                # Some servers before 2026-07-28 ignore requests that they do not know.
        return await self._initialize_or_discover(waiter)

    async def _initialize_or_discover(self, waiter: AnyWaiter) -> ServerDescription:
        try:
            return await self._initialize(waiter, revisions.LEGACY[-1])
        except MCPError as error:
            if error.code is None:  # The server has not reported this error.
                raise
            with contextlib.suppress(MCPError):
                return await self._discover(waiter, revisions.MODERN[-1])
            raise

    @property
    def _discover_timeout(self) -> Timeout:
        """The limits of the first request to a server that may not know it."""
        first = self._timeout.first
        return dataclasses.replace(self._timeout, first=_DISCOVER_S if first is None else min(first, _DISCOVER_S))

    async def _discover(self, waiter: AnyWaiter, revision: str, timeout: Timeout | None = None) -> ServerDescription:
        """Ask for the revisions of the server, first in `revision`. One before 2026-07-28 begins with `initialize`."""
        result: Json | None = None  # None if an error has the revisions.
        try:
            result = await self._request_description(waiter, revision, timeout)
            supported = result.get("supportedVersions")
        except MCPError as error:
            if error.code != revisions.UNSUPPORTED_REVISION or not isinstance(error.data, dict):
                raise
            supported = error.data.get("supported")
        newest = revisions.newest_of(supported if isinstance(supported, list) else [])
        if newest is None:
            raise self._error(f"it supports other revisions than {', '.join(revisions.REVISIONS)}")
        if not revisions.is_modern(newest):
            return await self._initialize(waiter, newest)
        if result is None:
            result = await self._request_description(waiter, newest)
        return ServerDescription.of(newest, result)

    async def _request_description(self, waiter: AnyWaiter, revision: str, timeout: Timeout | None = None) -> Json:
        params = {"_meta": request_meta(revision, self._features)}
        limits = CallLimits.of(timeout or self._timeout)
        return await self._session.request(waiter, "server/discover", params, limits, reports_cancel=False)

    async def _initialize(self, waiter: AnyWaiter, revision: str) -> ServerDescription:
        params = {"protocolVersion": revision, "capabilities": self._features.capabilities, "clientInfo": _CLIENT_INFO}
        limits = CallLimits.of(self._timeout)
        result = await self._session.request(waiter, "initialize", params, limits, reports_cancel=False)
        chosen = result.get("protocolVersion")
        if chosen not in revisions.LEGACY:
            raise self._error(f"it speaks the revision {chosen!r:.40}, this client {', '.join(revisions.LEGACY)}")
        self._transport.legacy_revision = chosen
        await self._session.notify_and_wait(waiter, "notifications/initialized", CallLimits.of(self._timeout))
        description = ServerDescription.of(chosen, result)
        if description.reports_tools or "logging" in description.capabilities or self._features.functions:
            self._transport.listen()
        if "logging" in description.capabilities:
            with contextlib.suppress(MCPError):
                limits = CallLimits.of(self._timeout)
                await self._session.request(waiter, "logging/setLevel", {"level": least_log_level()}, limits)
        return description

    def _error(self, reason: str) -> MCPError:
        return failure(self._session.name, reason)


def request_meta(revision: str, features: ClientFeatures) -> Json:
    """The field `_meta` of a request since revision 2026-07-28."""
    return {
        revisions.VERSION_KEY: revision,
        f"{revisions.PREFIX}clientInfo": _CLIENT_INFO,
        f"{revisions.PREFIX}clientCapabilities": features.capabilities,
        f"{revisions.PREFIX}logLevel": least_log_level(),
    }
