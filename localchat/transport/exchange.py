"""One request and its response on a connection: bytes out, the head and the body in."""

from __future__ import annotations

import contextlib

from ..errors import IncompleteStream, ProtocolError, TimedOut
from .http1 import ResponseReader
from .operations import AnyConnection, Operations


class Exchange:
    """Sends a request and receives the response to it. `response` has its status and headers after `send`.

    `has_body` is False for methods whose responses have no body.
    """

    def __init__(self, operations: Operations, connection: AnyConnection, has_body: bool) -> None:
        self.response = ResponseReader(has_body)
        self._operations = operations
        self._connection = connection
        self._early_body = b""  # The part of the body that was received with the head and has not been read.

    async def send(self, request: bytes) -> None:
        """Send bytes, and receive the head of the response to them."""
        operations, response = self._operations, self.response
        # A server may respond before it has read the whole request (413); the response can be read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await operations.run(operations.driver.write, self._connection, request)
        while not response.status:
            data = await operations.run(operations.driver.read, self._connection)
            operations.end_read()
            if not data and not response.has_begun:
                raise ConnectionResetError("the connection was closed")
            if not data:
                response.feed_end()
            self._early_body = response.feed(data)

    async def read(self) -> bytes:
        """The next bytes of the body, perhaps none; `all_read` is set at the end."""
        data, self._early_body = self._early_body, b""
        if data or self.response.has_ended:
            return data
        if self.response.framing_error:
            raise ProtocolError(self.response.framing_error)
        operations = self._operations
        try:
            data = await operations.run(operations.driver.read, self._connection)
            operations.end_read()
        except TimedOut:  # It is an OSError too.
            raise
        except OSError as error:
            raise IncompleteStream(f"the connection broke: {error or type(error).__name__}") from error
        if not data:
            self.response.feed_end()
        return self.response.feed(data)

    @property
    def all_read(self) -> bool:
        """Whether the body has been read to its end."""
        return self.response.has_ended and not self._early_body

    @property
    def leaves_connection(self) -> bool:
        """Whether another request can be sent on the connection."""
        response = self.response
        return response.has_ended and response.keeps_alive and not response.surplus
