"""Streams: the events of one response, and the two ways to wait for events: blocking, and with asyncio.

A stream makes progress in steps, and each step adds events to a queue. It has no generator, which would refer to the
stream: so a stream without references is deleted at once, and its connection is closed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .errors import Cancelled, DoesNotFit, IncompleteStream, ProtocolError, StreamError, TimedOut
from .events import Reply, StreamEvent, Value, changed
from .reply.assembly import Accumulator, check_complete, is_complete_response
from .reply.frames import Frames, parse_frame
from .request.completion import Completion
from .sse import ServerSentEvent
from .transport.call import Call
from .transport.sockets import run_blocking

if TYPE_CHECKING:
    from typing_extensions import Self

AnyEvent = TypeVar("AnyEvent", bound=Any)

# The time for usage and [DONE] after the finish reason: some servers send neither and stay connected.
_AFTER_FINISH_S = 5.0

# The errors of a stream, which get the reply received so far as `partial`.
_STREAM_ERRORS = (StreamError, IncompleteStream, ProtocolError, TimedOut, Cancelled)


class Events(Generic[AnyEvent, Value]):
    """Events that are made step by step. After a step that failed or was interrupted, every further read raises."""

    # A subclass has the coroutines `_advance`, which is the next step, and `_close`, which sets `_is_closed`.
    _advance: Any
    _close: Any
    _is_closed: Any
    _request: Any
    reply: Any

    def __init__(self) -> None:
        # The events that are made and not returned yet, and whether there will be no others.
        self._ready: deque[AnyEvent] = deque()
        self._is_done = False
        self._failure: Exception | None = None  # What ended the events.
        self._is_advancing = False

    async def _open(self) -> None:
        """Begin a `with` block."""

    def _fail(self, error: BaseException) -> None:
        """Make the events before an error."""

    async def _step(self) -> None:
        if self._is_advancing:
            raise RuntimeError("another thread or task reads these events")
        self._is_advancing = True
        try:
            if self._is_closed:
                raise self._ended_by("closed")
            await self._advance()
        except BaseException as error:
            self._fail(error)
            self._failure = error if isinstance(error, Exception) else self._ended_by("interrupted")
            if self._failure is not error or not self._ready:
                raise
        finally:
            self._is_advancing = False

    def _ended_by(self, cause: str) -> Cancelled:
        return Cancelled(f"the response was {cause} before its end: send the request again", partial=self.reply)

    async def _next(self) -> AnyEvent | None:
        """The next event, None at the end."""
        while not (self._ready or self._is_done or self._failure):
            await self._step()
        if self._ready and self._is_closed:
            self._ready.clear()
            self._failure = self._failure or self._ended_by("closed")
        if self._ready:
            return self._ready.popleft()
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        return None

    async def _finish(self) -> Reply[Value]:
        try:
            while await self._next() is not None:
                pass
        except DoesNotFit:
            check_complete(self.reply, self._request)  # A value that was cut is no mistake of the model.
            raise
        check_complete(self.reply, self._request)
        reply: Reply[Value] = self.reply
        return reply


class BlockingEvents(Events[AnyEvent, Value]):
    """Events of a Client: iterate it for events, or `text` for text; leave the `with` to cancel."""

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
        return map(attrgetter("delta"), filter(is_text, self))

    def finish(self) -> Reply[Value]:
        """Read to the end and return the reply. Raises IncompleteReply if it was cut."""
        return run_blocking(self._finish())

    def close(self) -> None:
        """Cancel at once, from any thread. The server notices the closed connection and stops."""
        run_blocking(self._close())


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


def is_text(event: Any) -> bool:
    return bool(event.type == "content_delta" and event.choice_index == 0)


class BaseStream(Events[StreamEvent, Value]):
    """The response to one request: its body is split into payloads, and these become events and the reply."""

    def __init__(self, call: Call, request: Completion) -> None:
        super().__init__()
        self._call = call
        self._request = request
        mask = call.secrets.mask_json
        self._accumulator = Accumulator(request.n_choices, request.think_tags, request.tool_names, mask)
        self._parsed: Any = None
        self._frames: Frames | None = None  # None before the head of the response is received.
        # The payloads of the last read that are not taken yet, whether one had an event, and the bytes of all reads.
        self._payloads: Iterator[ServerSentEvent] = iter(())
        self._had_event = False
        self._n_bytes = 0
        self._is_complete_response = False  # Whether the body is one complete response, not a stream.
        # Whether [DONE] was received. The rest of the body is of no use except for reusing the connection.
        self._got_done = False
        # Whether no more is read, and the error that ended the body, if one did.
        self._has_ended = False
        self._cause: Exception | None = None

    @property
    def reply(self) -> Reply[Value]:
        """The reply received so far; complete after the last event."""
        reply, headers, expected = self._accumulator.reply(), self._call.headers, self._request.expected
        warnings = reply.warnings if expected is None else (*reply.warnings, *expected.warnings)
        id = headers.get("x-request-id")
        return changed(reply, request_id=id, headers=dict(headers), warnings=warnings, parsed=self._parsed)

    @property
    def _is_closed(self) -> bool:
        return bool(self._call.driver.is_cancelled)

    async def _open(self) -> None:
        """Send the request, if this was not done before."""
        if self._frames is None and self._failure is None:
            await self._step()

    async def _close(self) -> None:
        self._call.driver.cancel()
        if not self._is_advancing:  # Otherwise another thread or task releases it.
            self._call.release()

    async def _advance(self) -> None:
        call = self._call
        if self._frames is None:
            await self._request.send(call)
            self._frames = Frames(call.headers.get("content-type", ""))
        elif self._take(self._frames):
            return
        elif not self._has_ended:
            await self._read(self._frames)
        else:
            if self._got_done:
                await call.drain()
            self._ready.extend(self._last_events(self._frames))
            self._is_done = True
            call.release()

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, _STREAM_ERRORS):
            events = self._accumulator.flush()
            error.partial = self.reply
            self._call.secrets.mask_error(error)
            self._ready.extend([] if isinstance(error, Cancelled) else events)
        self._call.release()

    def _take(self, frames: Frames) -> bool:
        """Take a payload of the last read. If there is none, set `_has_ended` and return False."""
        call, accumulator, frame = self._call, self._accumulator, None
        try:
            frame = None if self._got_done or accumulator.error else next(self._payloads, None)
            if frame is not None:
                payload = parse_frame(frame.event, frame.data)
                self._got_done = payload is True
                if isinstance(payload, dict):
                    self._is_complete_response = frames.documents == 1 and is_complete_response(payload)
                    events = accumulator.add(payload)
                    if not self._had_event and (events or "prompt_progress" in payload):  # An empty delta is a ping.
                        self._had_event = True
                        call.deadlines.event()
                    self._ready.extend(events)
        except (ProtocolError, RecursionError) as error:
            # Without a frame this is the end, at which the finish reason has to be a known one.
            if not (accumulator.complete if frame is None else accumulator.finished):
                if isinstance(error, ProtocolError):
                    raise
                raise ProtocolError("the server sent JSON that is nested too deeply") from error
            self._ready.extend(accumulator.warn(f"ignored after the finish reason: {call.secrets.mask(str(error))}"))
            self._has_ended = self._has_ended or frame is None
        if frame is not None:
            return True
        self._has_ended = self._has_ended or self._got_done or accumulator.error is not None
        # No warning after an error: whether the text behind it was decoded depends on how the network cut the body.
        if self._has_ended and frames.was_damaged and not accumulator.error:
            damaged = "the server sent text that is not UTF-8; wrong bytes are replaced by U+FFFD"
            self._ready.extend(accumulator.warn(damaged))
        call.deadlines.end_within(_AFTER_FINISH_S if accumulator.complete else None)
        return False

    async def _read(self, frames: Frames) -> None:
        call, data = self._call, b""
        try:
            data = await call.read()
            self._n_bytes += len(data)
            call.check_size(self._n_bytes)
            self._has_ended = not data and call.all_read
        except (IncompleteStream, TimedOut, ProtocolError) as error:
            if not isinstance(error, IncompleteStream) and not self._accumulator.complete:
                raise
            self._cause, self._has_ended = error, True
        self._had_event = False
        self._payloads = iter(frames.end() if self._has_ended else frames.feed(data))

    def _last_events(self, frames: Frames) -> list[StreamEvent]:
        """The last events. Raises an error if the response is not complete, or not the expected value."""
        try:
            events = self._accumulator.finish(self._got_done or self._is_complete_response)
        except IncompleteStream as error:
            message = str(error) if self._cause is None else f"{error} ({self._cause})"
            message += f"; it begins: {frames.head}" if frames.head and not self._accumulator.started else ""
            raise IncompleteStream(message) from self._cause
        try:
            if self._request.expected is not None:
                self._parsed = self._request.expected.read(self.reply)
        except DoesNotFit:
            self._ready.extend(event for event in events if event.type != "message_stop")
            raise
        return events


class Stream(BaseStream[Value], BlockingEvents[StreamEvent, Value]):
    """A streamed response. Iterate it for events, or `text` for text; leave the `with` block to cancel the request.

    Entering the `with` block, or else the first iteration, sends the request. `reply` is the reply received so far,
    also after an error; `finish` reads to the end and returns it. A stream without references closes its connection.
    """


class AsyncStream(BaseStream[Value], AsyncEvents[StreamEvent, Value]):
    """A Stream of an AsyncClient: iterate it with `async for`; leave the `async with` or cancel the task to cancel."""
