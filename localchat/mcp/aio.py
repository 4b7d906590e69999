"""The MCP server for asyncio, with the same options, tools and errors as the blocking one.

Threads of the transports do the I/O; tasks wait for them without blocking the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..agent.tools import Tool
from ..transport.aio_sockets import in_thread
from ..transport.timeouts import Timeout
from .features import ClientFeatures
from .messages import Json
from .results import MCPResult
from .server import BaseMCPServer
from .session import Progress

if TYPE_CHECKING:
    from typing_extensions import Self


class AsyncWaiter:
    """Lets a task wait for the threads of a transport; see session.Waiter."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # The loop was closed.
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, seconds: float | None) -> None:
        task = asyncio.ensure_future(self._event.wait())
        try:
            await asyncio.wait([task], timeout=seconds)
        finally:
            task.cancel()
        self._event.clear()

    async def run(self, function: Callable[[], Any]) -> Any:
        return await in_thread(function)


class AsyncMCPServer(BaseMCPServer):
    """An MCPServer for asyncio: use it in `async with`, and its tools with an AsyncClient.

    The arguments are those of MCPServer; the functions of `on_request` may be coroutine functions.
    """

    _runs_coroutines = True

    async def __aenter__(self) -> Self:
        loop, features = asyncio.get_running_loop(), self._features
        in_loop = {method: _in_loop(loop, features.functions[method]) for method in features.coroutine_functions}
        self._features = ClientFeatures({**features.functions, **in_loop})
        session = self._begin()
        try:
            await self._start(AsyncWaiter(), session)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the server; see MCPServer.close."""
        if self._finalizer is not None:
            await in_thread(self._finalizer, daemon=False)

    async def tools(self, *names: str, prefix: str = "") -> list[Tool]:
        """The tools of the server; see MCPServer.tools."""
        return await self._tools(AsyncWaiter(), names, prefix)

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: Timeout | float | None = None,
        on_progress: Callable[[Progress], object] | None = None,
    ) -> MCPResult:
        """Call a tool; see MCPServer.call. Cancelling the task cancels the call."""
        return await self._call(AsyncWaiter(), name, arguments, timeout, on_progress)

    async def ping(self) -> None:
        """Return when the server responds. Raises MCPError or TimedOut."""
        await self._ping(AsyncWaiter())

    def _function(self, name: str) -> Callable[..., Any]:
        async def call_tool(**arguments: Any) -> MCPResult:
            return await self.call(name, arguments)

        return call_tool


def _in_loop(loop: asyncio.AbstractEventLoop, function: Callable[[Json], Any]) -> Callable[[Json], Any]:
    """A function for other threads that runs a coroutine function in the loop."""

    def run(params: Json) -> Any:
        return asyncio.run_coroutine_threadsafe(function(params), loop).result()

    return run
