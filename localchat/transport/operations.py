"""The operations of a driver, within the deadlines of a call and until it is cancelled. No I/O."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from ..errors import Cancelled
from .addresses import Proxy
from .timeouts import Deadlines, LimitExpired, timed_out


class AnyConnection(Protocol):
    """A connection to a server, as the modules see it that do no I/O: Connection or AsyncConnection."""

    proxy: Proxy | None  # The proxy that gets the requests; None without a proxy and for a tunnel through one.

    def is_usable(self) -> bool:
        """Whether a further request can be sent on it."""

    def close(self) -> None:
        """Close it at once."""


class AnyDriver(Protocol):
    """Performs the operations of one call: Driver (sockets.py) or AsyncDriver (aio_sockets.py).

    The operations raise LimitExpired after `limit` seconds, and that or OSError after `cancel`. The driver itself has
    made each `connection`.
    """

    is_cancelled: bool  # Whether `cancel` was called.

    def cancel(self) -> None:
        """Stop the call at once."""

    async def sleep(self, limit: float) -> None:
        """Wait for these seconds."""

    async def read_files(self, limit: float | None, function: Callable[[], Any]) -> Any:
        """The result of a function that reads files."""

    async def look_up(self, limit: float | None, host: str, port: int) -> list[Any]:
        """The addresses of a host, from the resolver."""

    async def connect(self, limit: float | None, where: tuple[Any, ...]) -> Any:
        """A connection to an address of `look_up`."""

    async def start_tls(self, limit: float | None, connection: Any, context: Any, host: str) -> None:
        """Begin TLS on a connection."""

    async def write(self, limit: float | None, connection: Any, data: bytes) -> None:
        """Send bytes."""

    async def read(self, limit: float | None, connection: Any) -> bytes:
        """The next bytes; empty at the end of the connection."""


class Operations:
    """Lets a driver perform the operations of one call."""

    def __init__(self, driver: AnyDriver, deadlines: Deadlines) -> None:
        self.driver = driver
        self.deadlines = deadlines

    async def run(self, operation: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        """The result of `operation(limit, *arguments)`, a method of the driver, with the limit of the deadlines.

        Raises TimedOut, OSError, or Cancelled if the call was cancelled.
        """
        limit, timeout_name = self.deadlines.left()
        self.check_cancelled()
        try:  # Not by `run_within`: this is done for each event, and a coroutine costs half a microsecond.
            return await operation(limit, *arguments)
        except LimitExpired as error:
            self.check_cancelled(error)
            raise timed_out(timeout_name) from None
        except OSError as error:
            self.check_cancelled(error)
            raise

    async def run_within(self, limit: float | None, operation: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        """Like `run`, with a limit of its own in seconds. Raises LimitExpired after it."""
        self.check_cancelled()
        try:
            return await operation(limit, *arguments)
        except (LimitExpired, OSError) as error:
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
