"""The state of a call (requests, tries, timeouts, response), and the conversion of its body to events. No I/O.

`CallState` is the base of the calls of both clients: `blocking_call` and `aio_call` add the network.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..errors import (
    Cancelled,
    ConnectError,
    DoesNotFit,
    IncompleteStream,
    LocalChatError,
    ProtocolError,
    StatusError,
    StreamError,
    TimedOut,
)
from ..events import Reply, StreamEvent, changed
from ..reply.assembly import Accumulator, is_complete_response
from ..reply.frames import Frames, parse_frame
from ..sse import ServerSentEvent
from .failures import no_response_message, status_error
from .http1 import Inflate, ResponseReader, request_head
from .network import proxy_headers
from .retries import retry_delay
from .settings import Settings
from .timeouts import Deadlines, Timeout

# The limits of the body of an error.
MAX_ERROR_BYTES = 65536
ERROR_BODY_S = 5.0
# The time for the request of the list of models, which adds the names of the models to the message of a 404.
_EXPLANATION_S = 2.0

_MAX_REDIRECTS = 5

# The limits of the rest of a body after [DONE]. It is read (usually five bytes) so that the connection can be reused.
DRAIN_S = 0.1
DRAIN_BYTES = 65536


class StaleConnection(Exception):
    """A reused connection was closed before any byte of the response."""


class CallState:
    """The state of one call.

    A call may send several requests, one after another: for example for the list of models, then for the completion.
    """

    def __init__(self, settings: Settings, timeout: Timeout, max_retries: int) -> None:
        self.settings = settings
        self._max_retries = max_retries
        self.deadlines = Deadlines(timeout)
        # Set by `cancel`.
        self.is_cancelled = False
        # The current request.
        self._method = self._target = ""
        self._body: bytes | None = None
        self._headers: dict[str, str] = {}
        self._tries = self._redirects = 0
        # Its response. `ended` is set when all bytes have been received.
        self.status = 0
        self.headers: dict[str, str] = {}
        self.ended = False
        self._response = ResponseReader()
        # The part of the body that was received with the head and has not been read.
        self._early_body = b""
        self._inflate = Inflate("")
        # Set after the last event of a stream.
        self.succeeded = False
        # The value that the completion has to contain (structured.ExpectedValue), None for any text; and the value.
        self.expected: Any = None
        self.parsed: Any = None

    def prepare(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> None:
        """Set the request. `body` is converted to JSON; None means no body."""
        self._method, self._target = method, self.settings.address.target(path)
        self._body = None if body is None else _as_json(body)
        self._headers = self.settings.request_headers(headers)
        self._tries = self._redirects = 0
        self.status, self.headers = 0, {}
        self.deadlines.start()

    def log(self, message: str, *values: object) -> None:
        """Log at level DEBUG to the logger `localchat.client`, if the program has imported logging."""
        logging = sys.modules.get("logging")
        if logging is not None:
            logging.getLogger("localchat.client").debug(message, *values)

    def begin(self, proxy: str | None) -> bytes:
        """Begin a try and return the bytes of the request."""
        self.deadlines.sent()
        self._response, self._early_body, self.ended = ResponseReader(), b"", False
        target, headers, body = self._target, self._headers, self._body or b""
        if proxy is not None:  # A request to a proxy names the whole URL.
            target = f"http://{self.settings.address.host_header}{target}"
            headers = {**headers, **proxy_headers(proxy)}
        if self._body is not None:
            headers = {**headers, "Content-Length": str(len(body))}
        path, shown = self._target.partition("?")[0], self.settings.address.shown
        self.log("%s %s to %s: %d bytes, try %d", self._method, path, shown, len(body), self._tries + 1)
        if self.settings.log_bodies and body:
            self.log("request: %s", self.settings.mask(body.decode("ascii")))
        return request_head(f"{self._method} {target} HTTP/1.1", headers) + body

    def take_head(self, data: bytes) -> bool:
        """Take the next bytes, empty for the end of the connection. Return whether the head is complete.

        Raises:
            ConnectionResetError: The connection ended before any byte of the response.
            ConnectError: The bytes are not HTTP.
            IncompleteStream: The connection ended before the end of the head.
            ProtocolError: The body has an encoding that the client did not offer.
        """
        response = self._response
        if not data:
            if not response.begun:
                raise ConnectionResetError("the server closed the connection")
            response.feed_end()
        try:
            self._early_body = response.feed(data)
        except ProtocolError as error:
            # Not `from error`: its message may quote the key.
            raise ConnectError(no_response_message(self.settings, error)) from None
        if response.status:
            self._read_head()
        return response.status > 0

    def take_body(self, data: bytes) -> bytes:
        """Take the next bytes, empty for the end of the connection. Return the part of the body in them, inflated."""
        if not data:
            self._response.feed_end()
        body = self._response.feed(data)
        self.ended = self._response.ended
        return self._inflate.feed(body)

    def take_received(self) -> bytes:
        """The next part of the body that is available without a read, perhaps empty.

        Raises:
            ProtocolError: The framing of the body is wrong.
            TimedOut: A timeout has expired.
        """
        if self._inflate.has_more:
            self.deadlines.reading()
        elif not self._early_body and self._response.framing_error:
            raise ProtocolError(self._response.framing_error)
        data, self._early_body = self._early_body, b""
        return self._inflate.feed(data)

    @property
    def all_read(self) -> bool:
        """Whether the body has been read to its end."""
        return self.ended and not self._early_body and not self._inflate.has_more

    @property
    def reusable(self) -> bool:
        """Whether the connection can be used for another request."""
        return self.ended and self._response.keeps_alive and not self._response.surplus

    def check_cancelled(self, cause: BaseException | None = None) -> None:
        """Raise Cancelled if the call was cancelled, which is then also the reason for any other error, the `cause`."""
        if self.is_cancelled:
            raise Cancelled("the stream was closed") from cause

    def next_delay(self, error: LocalChatError) -> float:
        """Seconds to wait before the next try.

        Raises:
            LocalChatError: This error, if it is not retried, or if the delay exceeds the total timeout.
        """
        delay = retry_delay(error, self._tries, self._max_retries)
        if delay is None or self.deadlines.at_most(delay) < delay:
            raise error
        self._tries += 1
        self.log("try %d in %.1f s: %s", self._tries + 1, delay, type(error).__name__)
        if self.settings.on_retry is not None:
            self.settings.on_retry(self._tries, delay, error)
        return delay

    def _read_head(self) -> None:
        self.status, self.ended = self._response.status, self._response.ended
        self.log("status %d", self.status)
        self.headers = dict(self._response.headers)
        transfer = self.headers.get("transfer-encoding", "").strip().lower()
        content = self.headers.get("content-encoding", "").strip().lower()
        if transfer not in ("", "identity", "chunked"):
            raise ProtocolError(f"the server uses the transfer encoding {transfer!r}, which the client did not offer")
        self._inflate = Inflate(content)

    def redirect(self) -> bool:
        """Set the target of a redirect to the same server, and return whether there is one to follow."""
        if self.status not in (307, 308) or not self.settings.follow_redirects or self._redirects >= _MAX_REDIRECTS:
            return False
        target = self.settings.address.same_origin(self._target, self.headers.get("location", ""))
        if target is None:
            return False
        self._target, self._redirects = target, self._redirects + 1
        return True

    def limit_to_explanation(self) -> None:
        """Limit the next request to a short time and one try, since it only adds an explanation to an error."""
        self.deadlines = Deadlines(Timeout(total=self.deadlines.at_most(_EXPLANATION_S)))
        self._max_retries = 0

    def check_size(self, n_bytes: int) -> None:
        """Raise ProtocolError if a body of `n_bytes` exceeds `max_bytes` of the client."""
        limit = self.settings.max_bytes
        if n_bytes > limit:
            raise ProtocolError(f"the response has more than {limit} bytes; Client(max_bytes=...) raises this limit")

    def status_error(self, raw: bytes) -> StatusError:
        """The error of a status other than 2xx; `raw` is the body, perhaps cut."""
        return status_error(self.settings, self.status, self.headers, raw.decode("utf-8", "replace"))


def _as_json(body: Any) -> bytes:
    try:
        return json.dumps(body, allow_nan=False).encode("ascii")
    except ValueError as error:
        raise ValueError(f"the request is not JSON, which has neither NaN nor infinity: {error}") from error


# Streams


# The errors of a stream, which get the reply received so far as `partial`.
STREAM_ERRORS = (StreamError, IncompleteStream, ProtocolError, TimedOut, Cancelled)


class StreamReader:
    """Converts the body of a response to events. No I/O.

    Call `feed` until `ended` is set, then `finish`.
    """

    def __init__(self, call: CallState, accumulator: Accumulator) -> None:
        self._call = call
        self._accumulator = accumulator
        self._frames = Frames(call.headers.get("content-type", ""))
        self._n_bytes = 0
        # Whether the body is one complete response, not a stream.
        self._is_complete_response = False
        # The error that ended the body, None if there is none.
        self._cause: LocalChatError | None = None
        # Whether [DONE] was received. The rest of the body is of no use except for reusing the connection.
        self.done = False
        self.ended = False

    def feed(self, data: bytes) -> Iterator[StreamEvent]:
        """Take the next bytes of the body, empty at its end, and return their events."""
        self._n_bytes += len(data)
        self._call.check_size(self._n_bytes)
        ended = not data and self._call.all_read
        return self._take(self._frames.end() if ended else self._frames.feed(data), ended)

    def fail(self, error: LocalChatError) -> Iterator[StreamEvent]:
        """Report an error of the connection, and return the last events.

        Raises:
            TimedOut, ProtocolError: This error, unless all choices are complete.
        """
        if isinstance(error, (TimedOut, ProtocolError)) and not self._accumulator.complete:
            raise error
        self._cause = error
        return self._take(self._frames.end(), True)

    def finish(self) -> Iterator[StreamEvent]:
        """The events of the end of the stream.

        Raises:
            DoesNotFit: The text does not match the expected value.
            StreamError, IncompleteStream, ProtocolError: The response is not a complete chat completion.
        """
        events = self._finish_accumulator()
        call = self._call
        try:
            if call.expected is not None:
                call.parsed = call.expected.read(reply_of(call, self._accumulator))
            if call.settings.log_bodies:
                call.log("response: %s", call.settings.mask(self._accumulator.reply().text))
        except DoesNotFit:
            yield from (event for event in events if event.type != "message_stop")
            raise
        yield from events

    def _finish_accumulator(self) -> list[StreamEvent]:
        try:
            return self._accumulator.finish(self.done or self._is_complete_response)
        except IncompleteStream as error:
            head = self._frames.head
            if self._frames.documents and not self._accumulator.started:
                raise ProtocolError(f"this JSON is not a chat completion: {head}", head=head) from None
            message = str(error) if self._cause is None else f"{error} ({self._cause})"
            raise IncompleteStream(message) from self._cause

    def _take(self, frames: Iterable[ServerSentEvent], ended: bool) -> Iterator[StreamEvent]:
        accumulator, deadlines = self._accumulator, self._call.deadlines
        for frame in frames:
            payload = parse_frame(frame.event, frame.data)
            if isinstance(payload, dict):
                self._is_complete_response = self._frames.documents == 1 and is_complete_response(payload)
                events = accumulator.add(self._call.settings.mask_payload(payload))
                if events or "prompt_progress" in payload:  # Some servers send empty deltas as keep-alives.
                    deadlines.event()
                yield from events
            self.done = payload is True
            if self.done or accumulator.error:
                ended = True
                break
        if ended and self._frames.was_damaged:
            yield from accumulator.warn("the server sent text that is not UTF-8; wrong bytes are replaced by U+FFFD")
        deadlines.finish(accumulator.complete)
        self.ended = ended


def end_with(
    error: StreamError | IncompleteStream | ProtocolError | TimedOut | Cancelled,
    call: CallState,
    accumulator: Accumulator,
) -> list[StreamEvent]:
    """Complete the error that ends a stream, and return the last events before it."""
    events = accumulator.flush()
    error.partial = reply_of(call, accumulator)
    call.settings.mask_error(error)
    return [] if isinstance(error, Cancelled) else events


def reply_of(call: CallState, accumulator: Accumulator) -> Reply[Any]:
    """The reply received so far."""
    reply = accumulator.reply()
    warnings = () if call.expected is None else call.expected.warnings
    return changed(
        reply,
        request_id=call.headers.get("x-request-id"),
        headers=dict(call.headers),
        warnings=(*reply.warnings, *warnings),
        parsed=call.parsed,
    )
