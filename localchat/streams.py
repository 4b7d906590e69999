"""Streams: the events of one response, and the two ways to wait for events: blocking, and with asyncio.

`EventIterator` makes events step by step, with coroutines. `BlockingEventIterator` runs them, and `AsyncEventIterator`
awaits them. `BaseStream` makes the events of one response, and a ToolRun (agent/tool_run.py) those of several.

A stream has no generator that refers to it: so a stream without references is deleted at once, and its connection is
closed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Generator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from .errors import Cancelled, IncompleteStream, LocalChatError, ProtocolError, TimedOut
from .events import Reply, StreamEvent, Value
from .reply.response import ResponseParser
from .reply.truncation import check_not_cut
from .request.completion import CompletionRequest
from .transport.call import Call
from .transport.sockets import run_blocking

if TYPE_CHECKING:
    from typing_extensions import Self

Event = TypeVar("Event", bound=Any)

# The time for usage and [DONE] after the finish reason: some servers send neither and stay connected.
_AFTER_FINISH_S = 5.0


class EventIterator(Generic[Event, Value]):
    """Events that are made step by step. After a step that failed or was interrupted, every further read raises.

    Subclasses define `reply`, `_advance` and `_close`.
    """

    def __init__(self) -> None:
        self._ready: deque[Event] = deque()  # The events that are made and not returned yet.
        self._has_last_event = False  # Whether the last event was made. It may be one of `_ready`.
        self._failure: Exception | None = None  # The error of a step, after which none follows.
        self._is_advancing = False  # Whether a thread or task is in a step.
        self._is_closed = False
        self._text_pieces: list[str] = []  # The pieces of the text of the first choice in the events returned so far.

    @property
    def reply(self) -> Reply[Value]:
        """The reply received so far; complete after the last event."""
        raise NotImplementedError

    async def _advance(self) -> None:
        """Do the next step: add events to `_ready`, or set `_has_last_event`, or raise an error.

        `_next` calls it through `_step` until there is an event, and raises the error after the events in `_ready`.
        """
        raise NotImplementedError

    async def _close(self) -> None:
        """Set `_is_closed`, and end what is in progress."""
        raise NotImplementedError

    async def _step(self) -> None:
        """Do the next step, and keep its error for every later read."""
        if self._is_advancing:
            raise RuntimeError("another thread or task reads these events")
        self._is_advancing = True
        try:
            if self._is_closed:
                raise self._cancelled_error("closed")
            await self._advance()
        except Exception as error:
            self._failure = error
            if not self._ready:  # Otherwise `_next` returns the events that were made before the error, then raises it.
                raise
        except BaseException:  # Ctrl-C, or the task was cancelled.
            self._failure = self._cancelled_error("interrupted")
            raise
        finally:
            self._is_advancing = False

    def _cancelled_error(self, cause: str) -> Cancelled:
        return Cancelled(f"the response was {cause} before its end: send the request again", partial=self.reply)

    async def _next(self) -> Event | None:
        """The next event, None at the end."""
        while not (self._ready or self._has_last_event or self._failure):
            await self._step()
        if self._ready and self._is_closed:
            self._ready.clear()
            self._failure = self._failure or self._cancelled_error("closed")
        if self._ready:
            event: Any = self._ready.popleft()
            if event.type == "content_delta" and event.choice_index == 0:
                self._text_pieces.append(event.delta)
            return event  # type: ignore[no-any-return]
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        return None

    async def _next_text(self) -> str | None:
        """The next piece of the text of the first choice, None at the end."""
        event: Any = await self._next()
        while event is not None and not (event.type == "content_delta" and event.choice_index == 0):
            event = await self._next()
        if event is None:
            return None
        return str(event.delta)

    async def _finish(self) -> Reply[Value]:
        while await self._next() is not None:
            pass
        return self.reply


class BlockingEventIterator(EventIterator[Event, Value]):
    """Events of a Client: iterate it for events, or `text` for text; leave the `with` to cancel."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        event: Event | None = run_blocking(self._next())
        if event is None:
            raise StopIteration
        return event

    @property
    def text(self) -> Text:
        """The text of the first choice: iterate it for its pieces as they are received, or print it as a whole."""
        return Text(self)

    def finish(self) -> Reply[Value]:
        """Read to the end and return the reply. Raises IncompleteReply if it was cut."""
        return run_blocking(self._finish())

    def close(self) -> None:
        """Cancel at once, from any thread. The server notices the closed connection and stops."""
        run_blocking(self._close())


class AsyncEventIterator(EventIterator[Event, Value]):
    """The events of an AsyncClient; see BlockingEventIterator."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        event: Event | None = await self._next()
        if event is None:
            raise StopAsyncIteration
        return event

    @property
    def text(self) -> AsyncText:
        """The text of the first choice: iterate it for its pieces, or await it for all of it."""
        return AsyncText(self)

    async def finish(self) -> Reply[Value]:
        """Read to the end and return the reply. Raises IncompleteReply if it was cut, see Client.chat."""
        return await self._finish()

    async def close(self) -> None:
        """Cancel at once, from any task of the event loop."""
        await self._close()


class Text(Iterator[str]):
    """The text of the first choice of a stream. Iterating it returns the pieces; `str` reads to the end.

    It is no generator, which would end after an error.
    """

    def __init__(self, events: BlockingEventIterator[Any, Any]) -> None:
        self._events = events

    def __next__(self) -> str:
        piece = run_blocking(self._events._next_text())
        if piece is None:
            raise StopIteration
        return piece

    def __str__(self) -> str:
        for _ in self:
            pass
        return "".join(self._events._text_pieces)


class AsyncText(AsyncIterator[str]):
    """The text of the first choice of a stream of an AsyncClient: `async for` returns the pieces, `await` all of it."""

    def __init__(self, events: AsyncEventIterator[Any, Any]) -> None:
        self._events = events

    async def __anext__(self) -> str:
        piece = await self._events._next_text()
        if piece is None:
            raise StopAsyncIteration
        return piece

    def __await__(self) -> Generator[Any, Any, str]:
        return self._whole().__await__()

    async def _whole(self) -> str:
        async for _ in self:
            pass
        return str(self)

    def __str__(self) -> str:
        """The text that was received so far: only `await` can wait for the rest."""
        return "".join(self._events._text_pieces)


class BaseStream(EventIterator[StreamEvent, Value]):
    """The response to one request: the bytes of its body go to a ResponseParser, which makes the events.

    The steps are to send the request, to make the events of a payload, to read bytes, and to end the response.
    """

    def __init__(self, call: Call, request: CompletionRequest) -> None:
        super().__init__()
        self._call = call
        self._request = request
        self._parser = ResponseParser()  # That of an empty response, until the head of the response is received.
        # The steps go on in this order. "reading" begins with the head of the response, "ending" with its last byte.
        self._phase: Literal["unsent", "reading", "ending"] = "unsent"
        # The events of each payload: of the last read, and in the phase "ending" the last ones.
        self._event_lists: Iterator[list[StreamEvent]] = iter(())
        self._n_bytes = 0  # Of the body, in all reads.
        # `n_progress` of the parser at the last read: a larger one restarts the timeouts.
        self._n_progress = 0
        self._body_error: Exception | None = None  # The error that ended the body, if one did.

    @property
    def reply(self) -> Reply[Value]:
        """The reply received so far; complete after the last event."""
        reply, headers, expected = self._parser.reply(), self._call.headers, self._request.expected
        warnings = reply.warnings if expected is None else (*reply.warnings, *expected.warnings)
        return replace(
            reply,
            request_id=headers.get("x-request-id"),
            headers=dict(headers),
            warnings=warnings,
            parsed=self._parser.parsed,
        )

    async def _begin(self) -> None:
        """Send the request, if this was not done before."""
        if self._phase == "unsent" and self._failure is None:
            await self._step()

    async def _close(self) -> None:
        self._is_closed = True
        self._call.driver.cancel()
        if not self._is_advancing:  # Otherwise another thread or task releases it.
            self._call.release()

    async def _finish(self) -> Reply[Value]:
        reply = await super()._finish()
        check_not_cut(reply, self._request)
        return reply

    async def _advance(self) -> None:
        """Send the request; then read bytes and make their events, again and again; then make the last events."""
        try:
            if self._phase == "unsent":
                await self._send()
            elif (events := next(self._event_lists, None)) is not None:
                self._ready.extend(events)
            elif self._phase == "ending":  # The last events were made.
                self._has_last_event = True
                self._call.release()
            elif self._parser.is_over:
                await self._end()
            else:
                await self._read()
        except BaseException as error:
            self._fail(error)
            raise

    async def _send(self) -> None:
        """Send the request, and receive the head of the response."""
        await self._request.send(self._call)
        self._parser = self._new_parser()
        self._phase = "reading"
        if self._call.warning:
            self._ready.extend(self._parser.warn(self._call.warning))

    async def _end(self) -> None:
        """Begin with the last events, which the parser makes without further bytes."""
        if self._parser.has_end_mark:
            await self._call.drain()  # So that the connection can be used again.
        self._event_lists = self._parser.finish(self._body_error)
        self._phase = "ending"

    def _fail(self, error: BaseException) -> None:
        """Make the events of held text before an error, and give it the part received so far."""
        if isinstance(error, LocalChatError) and hasattr(error, "partial"):
            events = self._parser.flush()
            error.partial = self.reply
            self._call.secrets.mask_error(error)
            self._ready.extend([] if isinstance(error, Cancelled) else events)
        self._call.release()

    def _new_parser(self) -> ResponseParser:
        """The parser of the response whose head was received."""
        request, secrets = self._request, self._call.secrets

        def read_value(reply: Reply[Any]) -> Any:
            if request.expected is None:
                return None
            check_not_cut(reply, request)  # A value that was cut is no mistake of the model.
            return request.expected.read(reply)

        return ResponseParser(
            content_type=self._call.headers.get("content-type", ""),
            n_choices=request.n_choices,
            think_tags=request.think_tags,
            tool_names=request.tool_names,
            mask_payload=secrets.mask_json,
            mask=secrets.mask,
            read_value=read_value,
        )

    async def _read(self) -> None:
        """Read some bytes of the body and give them to the parser."""
        call, parser, data = self._call, self._parser, b""
        if parser.n_progress > self._n_progress:
            self._n_progress = parser.n_progress
            call.deadlines.restart(parser.has_output)
        call.deadlines.end_within(_AFTER_FINISH_S if parser.has_known_reasons else None)
        is_end = False
        try:
            data = await call.read()
            self._n_bytes += len(data)
            call.check_size(self._n_bytes)
            is_end = not data and call.all_read
        except (IncompleteStream, TimedOut, ProtocolError) as error:
            # The parser judges a body that was cut. Any other error counts unless only usage and [DONE] are missing.
            if not (isinstance(error, IncompleteStream) or parser.has_known_reasons):
                raise
            self._body_error, is_end = error, True
        self._event_lists = parser.feed(data, is_end)


class Stream(BaseStream[Value], BlockingEventIterator[StreamEvent, Value]):
    """A streamed response. Iterate it for events, or `text` for text; leave the `with` block to cancel the request.

    Entering the `with` block, or else the first iteration, sends the request. `reply` is the reply received so far,
    also after an error; `finish` reads to the end and returns it. A stream without references closes its connection.
    """

    def __enter__(self) -> Self:
        run_blocking(self._begin())
        return self


class AsyncStream(BaseStream[Value], AsyncEventIterator[StreamEvent, Value]):
    """A Stream of an AsyncClient: iterate it with `async for`; leave the `async with` or cancel the task to cancel."""

    async def __aenter__(self) -> Self:
        await self._begin()
        return self
