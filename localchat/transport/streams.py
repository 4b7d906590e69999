"""The response of one call as a stream of events: its body is split into payloads, and these are assembled. No I/O.

`BlockingEvents` and `AsyncEvents` are the two ways to iterate over events.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import Cancelled, DoesNotFit, IncompleteStream, LocalChatError, ProtocolError, StreamError, TimedOut
from ..events import Reply, StreamEvent, changed
from ..reply.assembly import Accumulator, is_complete_response
from ..reply.frames import Frames, parse_frame
from ..sse import ServerSentEvent
from .call import Call
from .sockets import run_blocking

if TYPE_CHECKING:
    from typing_extensions import Self

AnyEvent = TypeVar("AnyEvent", bound=Any)

# The time for usage and [DONE] after the finish reason. Some servers send neither and keep the connection open.
_AFTER_FINISH_S = 5.0

# The errors of a stream, which get the reply received so far as `partial`.
_STREAM_ERRORS = (StreamError, IncompleteStream, ProtocolError, TimedOut, Cancelled)


class Response:
    """A response that is being received: its events, and the reply so far. `send` sends the request with the call.

    `expected` is the value that the completion has to contain (structured.ExpectedValue), None for any text.
    """

    def __init__(
        self, call: Call, send: Callable[[], Awaitable[None]], accumulator: Accumulator, expected: Any = None
    ) -> None:
        self._call = call
        self._send = send
        self._accumulator = accumulator
        self._expected = expected
        self._parsed: Any = None
        # Set when the head of the response is received, and after the last event.
        self.begun = self.succeeded = False
        self._frames = Frames("")
        # Whether the body is one complete response, not a stream.
        self._is_complete_response = False
        # Whether [DONE] was received. The rest of the body is of no use except for reusing the connection.
        self._done = False
        self._ended = False

    @property
    def reply(self) -> Reply[Any]:
        """The reply received so far."""
        reply, headers = self._accumulator.reply(), self._call.headers
        warnings = reply.warnings if self._expected is None else (*reply.warnings, *self._expected.warnings)
        id = headers.get("x-request-id")
        return changed(reply, request_id=id, headers=dict(headers), warnings=warnings, parsed=self._parsed)

    async def events(self) -> AsyncGenerator[StreamEvent | None, None]:
        """Send the request and yield None; then yield the events of the response, and release the connection."""
        call, accumulator = self._call, self._accumulator
        try:
            await self._send()
            self.begun = True
            yield None
            frames = self._frames = Frames(call.headers.get("content-type", ""))
            n_bytes, cause = 0, None
            while not self._ended:
                try:
                    data = await call.read()
                    n_bytes += len(data)
                    call.check_size(n_bytes)
                    self._ended = not data and call.all_read
                except (IncompleteStream, TimedOut, ProtocolError) as error:
                    if not isinstance(error, IncompleteStream) and not accumulator.complete:
                        raise
                    cause, self._ended = error, True
                for event in self._take(frames.end() if self._ended else frames.feed(data)):
                    call.check_cancelled()  # Another thread may have closed the stream.
                    yield event
            if self._done:
                await call.drain()
            for event in self._finish(cause):
                yield event
            self.succeeded = True
        except _STREAM_ERRORS as error:
            events = accumulator.flush()
            error.partial = self.reply
            call.settings.mask_error(error)
            if not isinstance(error, Cancelled):
                for event in events:
                    yield event
            raise
        finally:
            call.release()

    def _take(self, frames: Iterable[ServerSentEvent]) -> Iterator[StreamEvent]:
        """The events of these payloads. `_ended` is set if one of them ends the response."""
        accumulator, deadlines, left = self._accumulator, self._call.deadlines, iter(frames)
        is_first = True
        while not self._done and not accumulator.error:
            frame = None
            try:
                frame = next(left, None)
                if frame is None:
                    break
                payload = parse_frame(frame.event, frame.data)
                self._done = payload is True
                if isinstance(payload, dict):
                    self._is_complete_response = self._frames.documents == 1 and is_complete_response(payload)
                    events = accumulator.add(self._call.settings.mask_payload(payload))
                    if is_first and (events or "prompt_progress" in payload):  # Empty deltas may be keep-alives.
                        deadlines.event()
                        is_first = False
                    yield from events
            except (ProtocolError, RecursionError) as error:
                # Without a frame this is the end of the frames, at which the finish reason has to be a known one.
                if not (accumulator.complete if frame is None else accumulator.finished):
                    if isinstance(error, ProtocolError):
                        raise
                    raise ProtocolError("the server sent JSON that is nested too deeply") from error
                yield from accumulator.warn(f"ignored after the finish reason: {self._call.settings.mask(str(error))}")
                self._ended = self._ended or frame is None
        self._ended = self._ended or self._done or accumulator.error is not None
        # No warning after an error: whether the text behind it was decoded depends on how the network cut the body.
        if self._ended and self._frames.was_damaged and not accumulator.error:
            yield from accumulator.warn("the server sent text that is not UTF-8; wrong bytes are replaced by U+FFFD")
        deadlines.end_within(_AFTER_FINISH_S if accumulator.complete else None)

    def _finish(self, cause: LocalChatError | None) -> Iterator[StreamEvent]:
        """The events of the end of the stream. `cause` is the error that ended the body, if one did.

        Raises DoesNotFit if the text does not match the expected value, and another error if the response is not a
        complete chat completion.
        """
        try:
            events = self._accumulator.finish(self._done or self._is_complete_response)
        except IncompleteStream as error:
            head = self._frames.head
            message = str(error) if cause is None else f"{error} ({cause})"
            message += f"; it begins: {head}" if head and not self._accumulator.started else ""
            raise IncompleteStream(message) from cause
        try:
            if self._expected is not None:
                self._parsed = self._expected.read(self.reply)
        except DoesNotFit:
            yield from (event for event in events if event.type != "message_stop")
            raise
        yield from events


class BaseEvents(Generic[AnyEvent]):
    """Events that a generator makes, however the caller waits for them.

    The end of the generator is the end of the events only if `_is_done`. Otherwise it failed, or was closed or
    interrupted (Ctrl-C, a cancelled task, the end of an event loop), and every further read raises.
    """

    # A subclass has these; `_open` and `_close` are coroutines.
    _events: Any
    _open: Any
    _close: Any
    _is_done: Any
    _is_closed: Any
    reply: Any
    # The error that ended the generator.
    _failure: Exception | None = None

    async def _next(self, is_opening: bool = False) -> AnyEvent | None:
        """The next event, None at the end. With `is_opening`, also None when the head of the response is received."""
        try:
            while True:
                event: AnyEvent | None = await self._events.__anext__()
                if event is not None or is_opening:
                    return event
        except StopAsyncIteration:
            if self._is_done:
                return None
        except Exception as error:
            if not (self._is_closed and isinstance(error, RuntimeError)):  # Another thread or task is closing it.
                self._failure = error
                raise
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        cause = "closed" if self._is_closed else "interrupted"
        raise Cancelled(f"the response was {cause} before its end: send the request again", partial=self.reply)


class BlockingEvents(BaseEvents[AnyEvent]):
    """The events of a Client: iterate it for events, or `text` for text; leave the `with` block to cancel."""

    def __enter__(self) -> Self:
        run_blocking(self._open())
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> AnyEvent:
        event: AnyEvent | None = run_blocking(self._next())
        if event is None:
            raise StopIteration
        return event

    @property
    def text(self) -> Iterator[str]:
        """The pieces of the text of the first choice, as they are received."""
        # Not a generator, which would end after an error.
        return map(attrgetter("delta"), filter(_is_text, self))

    def close(self) -> None:
        """Cancel at once, from any thread. The server notices the closed connection and stops."""
        run_blocking(self._close())


class AsyncEvents(BaseEvents[AnyEvent]):
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

    async def close(self) -> None:
        """Cancel at once, from any task of the event loop."""
        await self._close()


class _AsyncText(AsyncIterator[str]):
    """The text of events. A generator would end after an error."""

    def __init__(self, events: AsyncEvents[Any]) -> None:
        self._events = events

    async def __anext__(self) -> str:
        async for event in self._events:
            if _is_text(event):
                return str(event.delta)
        raise StopAsyncIteration


def _is_text(event: Any) -> bool:
    return bool(event.type == "content_delta" and event.choice_index == 0)
