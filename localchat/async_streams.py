"""Streams of an AsyncClient. This module does not import asyncio, which takes longer than the client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from .events import Reply, StreamEvent, Value
from .streams import AnyEvent, BaseStream, Events, is_text

if TYPE_CHECKING:
    from typing_extensions import Self


class AsyncEvents(Events[AnyEvent, Value]):
    """The events of an AsyncClient; see BlockingEvents."""

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnyEvent:
        event: AnyEvent | None = await self._next()
        if event is None:
            raise StopAsyncIteration
        return event

    @property
    def text(self) -> AsyncIterator[str]:
        """The pieces of the text of the first choice, as they are received."""
        return _AsyncText(self)

    async def finish(self) -> Reply[Value]:
        """Read to the end and return the reply. Raises IncompleteReply if it was cut, see Client.chat."""
        return await self._finish()

    async def close(self) -> None:
        """Cancel at once, from any task of the event loop."""
        await self._close()


class _AsyncText(AsyncIterator[str]):
    """The text of events. A generator would end after an error."""

    def __init__(self, events: AsyncEvents[Any, Any]) -> None:
        self._events = events

    async def __anext__(self) -> str:
        async for event in self._events:
            if is_text(event):
                return str(event.delta)
        raise StopAsyncIteration


class AsyncStream(BaseStream[Value], AsyncEvents[StreamEvent, Value]):
    """A Stream of an AsyncClient: iterate it with `async for`; leave the `async with` or cancel the task to cancel."""
