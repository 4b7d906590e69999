"""The response of one call as a stream of events: its body is split into payloads, and these are assembled. No I/O."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import Any

from ..errors import Cancelled, DoesNotFit, IncompleteStream, LocalChatError, ProtocolError, StreamError, TimedOut
from ..events import Reply, StreamEvent, changed
from ..reply.assembly import Accumulator, is_complete_response
from ..reply.frames import Frames, parse_frame
from ..sse import ServerSentEvent
from .call import Call, Steps

# The time for usage and [DONE] after the finish reason. Some servers send neither and keep the connection open.
_AFTER_FINISH_S = 5.0

# The errors of a stream, which get the reply received so far as `partial`.
_STREAM_ERRORS = (StreamError, IncompleteStream, ProtocolError, TimedOut, Cancelled)


class Response:
    """A response that is being received: its events, and the reply so far.

    Args:
        call: Sends the request and reads the response.
        accumulator: Assembles the reply.
        expected: The value that the completion has to contain (structured.ExpectedValue), None for any text.
    """

    def __init__(self, call: Call, accumulator: Accumulator, expected: Any = None) -> None:
        self._call = call
        self._accumulator = accumulator
        self._expected = expected
        self._parsed: Any = None
        # Set after the last event.
        self.succeeded = False
        self._frames = Frames("")
        # Whether the body is one complete response, not a stream.
        self._is_complete_response = False
        # Whether [DONE] was received. The rest of the body is of no use except for reusing the connection.
        self._done = False

    @property
    def reply(self) -> Reply[Any]:
        """The reply received so far."""
        reply, headers = self._accumulator.reply(), self._call.headers
        warnings = () if self._expected is None else self._expected.warnings
        return changed(
            reply,
            request_id=headers.get("x-request-id"),
            headers=dict(headers),
            warnings=(*reply.warnings, *warnings),
            parsed=self._parsed,
        )

    def steps(self, send: Steps[None]) -> Steps[Reply[Any]]:
        """Run `send` and yield None; yield the events of the response; release the connection; return the reply."""
        try:
            yield from send
            yield None
            yield from self._read()
            self.succeeded = True
            return self.reply
        except _STREAM_ERRORS as error:
            events = self._accumulator.flush()
            error.partial = self.reply
            self._call.settings.mask_error(error)
            if not isinstance(error, Cancelled):
                yield from events
            raise
        finally:
            self._call.release()

    def _read(self) -> Steps[None]:
        call, accumulator, frames = self._call, self._accumulator, Frames(self._call.headers.get("content-type", ""))
        self._frames, n_bytes, ended = frames, 0, False
        cause: LocalChatError | None = None  # The error that ended the body.
        while not ended:
            try:
                data = yield from call.read()
                n_bytes += len(data)
                call.check_size(n_bytes)
                ended = not data and call.all_read
            except (IncompleteStream, TimedOut, ProtocolError) as error:
                if not isinstance(error, IncompleteStream) and not accumulator.complete:
                    raise
                cause, ended = error, True
            is_over = yield from self._take(frames.end() if ended else frames.feed(data))
            ended = ended or is_over
            # After an error, it depends on the chunks how much of the rest was decoded.
            if ended and frames.was_damaged and not accumulator.error:
                yield from accumulator.warn(
                    "the server sent text that is not UTF-8; wrong bytes are replaced by U+FFFD"
                )
            call.deadlines.end_within(_AFTER_FINISH_S if accumulator.complete else None)
        if self._done:
            yield from call.drain()
        yield from self._finish(cause)

    def _take(self, frames: Iterable[ServerSentEvent]) -> Generator[StreamEvent, None, bool]:
        """Yield the events of these payloads, and return whether one of them ends the response."""
        for frame in frames:
            payload = parse_frame(frame.event, frame.data)
            self._done = payload is True
            if isinstance(payload, dict):
                self._is_complete_response = self._frames.documents == 1 and is_complete_response(payload)
                events = self._accumulator.add(self._call.settings.mask_payload(payload))
                if events or "prompt_progress" in payload:  # Some servers send empty deltas as keep-alives.
                    self._call.deadlines.event()
                yield from events
            if self._done or self._accumulator.error:
                return True
        return False

    def _finish(self, cause: LocalChatError | None) -> Iterator[StreamEvent]:
        """The events of the end of the stream, whose body ended with the error `cause`.

        Raises:
            DoesNotFit: The text does not match the expected value.
            StreamError, IncompleteStream, ProtocolError: The response is not a complete chat completion.
        """
        try:
            events = self._accumulator.finish(self._done or self._is_complete_response)
        except IncompleteStream as error:
            head = self._frames.head
            if self._frames.documents and not self._accumulator.started:
                raise ProtocolError(f"this JSON is not a chat completion: {head}", head=head) from None
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
