"""The operations of a driver, within the deadlines of a call and until it is cancelled. No I/O."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import Any

from ..errors import Cancelled
from .timeouts import Deadlines, timed_out


class Operations:
    """Lets a driver (sockets.Driver, aio_sockets.AsyncDriver) perform the operations of one call."""

    def __init__(self, driver: Any, deadlines: Deadlines) -> None:
        self.driver = driver
        self.deadlines = deadlines

    async def run(self, operation: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        """The result of a method of the driver. Raises TimedOut, OSError, or Cancelled if the call was cancelled."""
        limit, timeout_name = self.deadlines.left()
        self.check_cancelled()
        try:  # Not by `run_within`: this is done for each event, and a coroutine costs half a microsecond.
            return await operation(limit, *arguments)
        except OSError as error:
            self.check_cancelled(error)
            if isinstance(error, socket.timeout):
                raise timed_out(timeout_name) from None
            raise

    async def run_within(self, limit: float | None, operation: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        """Like `run`, with a limit of its own in seconds. Raises socket.timeout after it."""
        self.check_cancelled()
        try:
            return await operation(limit, *arguments)
        except OSError as error:
            self.check_cancelled(error)
            raise

    def end_read(self) -> None:
        """Report the end of a read. The time until the next one counts against the total timeout only."""
        self.deadlines.pause()
        self.check_cancelled()  # A cancel ends the connection, which would look like the end of the response.

    def check_cancelled(self, cause: BaseException | None = None) -> None:
        """Raise Cancelled if the call was cancelled."""
        if self.driver.is_cancelled:
            raise Cancelled("the stream was closed") from cause
