"""One call: its timeouts, tries and state, and the response as it comes in. No I/O.

A call over blocking sockets (client) and one over asyncio (aio) add what waits for the network to `CallState`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .assembly import Accumulator, is_whole_answer
from .errors import (
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
from .events import Reply, StreamEvent, changed
from .failures import broken, retry_delay, status_error
from .frames import Frames, parse_frame
from .http1 import Inflate, ResponseReader, request_head
from .network import proxy_headers
from .settings import Settings
from .sse import ServerSentEvent
from .timeouts import Deadlines, Timeout

# The limits for reading the body of an error: less than an answer may take.
MAX_ERROR_BYTES = 65536
ERROR_BODY_S = 5.0
# The names of the server's models, for the message of a 404.
_EXPLANATION_S = 2.0

_MAX_REDIRECTS = 5

# After [DONE] the rest is read, usually five bytes, so that the connection can be used again.
DRAIN_S = 0.1
DRAIN_BYTES = 65536


class StaleConnection(Exception):
    """A reused connection turned out to be closed before any byte of an answer."""


class CallState:
    """What there is to know of one call while it is made: what is asked, its time limits, tries and status.

    A call may take several requests, one after the other: the list of models comes before the question. The
    calls of the client and of the asynchronous client add what waits for the network.
    """

    def __init__(self, settings: Settings, timeout: Timeout, max_retries: int) -> None:
        self.settings = settings
        self._max_retries = max_retries
        self.deadlines = Deadlines(timeout)
        # What is asked.
        self._method = self._target = ""
        self._body: bytes | None = None
        self._headers: dict[str, str] = {}
        self._tries = self._redirects = 0
        # What has come. `_first` is the piece of the body that came with the head.
        self.status = 0
        self.headers: dict[str, str] = {}
        self.ended = False
        self.succeeded = False
        # The value that the answer has to hold (structured.ExpectedValue), if it has to; and the value.
        self.expected: Any = None
        self.parsed: Any = None
        self._response = ResponseReader()
        self._first = b""
        self._inflate = Inflate("")

    def prepare(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> None:
        """Set what is sent; `body` becomes JSON, None sends no body."""
        self._method, self._target = method, self.settings.address.target(path)
        self._body = None if body is None else _as_json(body)
        self._headers = self.settings.request_headers(headers)
        self._tries = self._redirects = 0
        self.status, self.headers = 0, {}
        self.deadlines.start()

    def log(self, message: str, *values: object) -> None:
        """Write a line to the logger `localchat.client`, at level DEBUG, if the program has loaded logging at all."""
        logging = sys.modules.get("logging")
        if logging is not None:
            logging.getLogger("localchat.client").debug(message, *values)

    def begin(self, proxy: str | None) -> bytes:
        """A new try: what is to be sent. A proxy for http wants the whole address."""
        self.deadlines.sent()
        self._response, self._first, self.ended = ResponseReader(), b"", False
        target, headers, body = self._target, self._headers, self._body or b""
        if proxy is not None:
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
        """Whether the status and the headers are complete with these bytes.

        Raises:
            ConnectionResetError: There was not one byte of an answer.
            ConnectError: This is no HTTP.
            IncompleteStream: It ends too early.
            ProtocolError: The body is packed in a way that was not offered.
        """
        response = self._response
        if not data:
            if not response.begun:
                raise ConnectionResetError("the server closed the connection")
            response.feed_end()
        try:
            self._first = response.feed(data)
        except ProtocolError as error:
            raise ConnectError(broken(self.settings, error)) from None  # What it quotes may hold the key.
        if response.status:
            self._read_head()
        return response.status > 0

    def take_body(self, data: bytes) -> bytes:
        """What these bytes, or the end of the connection, hold of the body."""
        if not data:
            self._response.feed_end()
        body = self._response.feed(data)
        self.ended = self._response.ended
        return self._inflate.feed(body)

    def take_first(self) -> bytes:
        """What is known of the body without reading.

        Raises:
            ProtocolError: What came cannot be read any further.
        """
        if self._inflate.has_more:
            self.deadlines.reading()
        elif not self._first and self._response.framing_error:
            raise ProtocolError(self._response.framing_error)
        first, self._first = self._first, b""
        return self._inflate.feed(first)

    @property
    def all_read(self) -> bool:
        """Whether the body has been read to its end."""
        return self.ended and not self._first and not self._inflate.has_more

    @property
    def reusable(self) -> bool:
        """Whether another request may be made over the same connection."""
        return self.ended and self._response.keeps_alive and not self._response.surplus

    def next_delay(self, error: LocalChatError) -> float:
        """Seconds to wait before the next try.

        Raises:
            LocalChatError: This error, if there is to be no other try, or the total is too short for it.
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
            raise ProtocolError(f"the server uses the transfer encoding {transfer!r}, which we did not offer")
        self._inflate = Inflate(content)

    def redirect(self) -> bool:
        """Whether to ask again elsewhere on the same server, with the same body; sets the target."""
        if self.status not in (307, 308) or not self.settings.follow_redirects or self._redirects >= _MAX_REDIRECTS:
            return False
        target = self.settings.address.same_origin(self._target, self.headers.get("location", ""))
        if target is None:
            return False
        self._target, self._redirects = target, self._redirects + 1
        return True

    def limit_to_explanation(self) -> None:
        """What follows only serves to explain an error: it gets a short time, and is tried once."""
        self.deadlines = Deadlines(Timeout(total=self.deadlines.at_most(_EXPLANATION_S)))
        self._max_retries = 0

    def check_size(self, n_bytes: int) -> None:
        """Raise ProtocolError if an answer has more bytes than `max_bytes` of the client."""
        limit = self.settings.max_bytes
        if n_bytes > limit:
            raise ProtocolError(f"the answer has more than {limit} bytes; Client(max_bytes=...) raises this limit")

    def status_error(self, raw: bytes) -> StatusError:
        """The error for a status other than 2xx, with what could be read of the body."""
        return status_error(self.settings, self.status, self.headers, raw.decode("utf-8", "replace"))


def _as_json(body: Any) -> bytes:
    try:
        return json.dumps(body, allow_nan=False).encode("ascii")
    except ValueError as error:
        raise ValueError(f"the request is not JSON, which has neither NaN nor infinity: {error}") from error


# Answers


ANSWER_ERRORS = (StreamError, IncompleteStream, ProtocolError, TimedOut, Cancelled)


class Answer:
    """One answer while its bytes come in: bytes to events, and whether it ends as it should. No I/O.

    Feed it until it is `over`, then take what `finish` yields. `done` is set once the end mark has come, so
    that what follows may be read only to use the connection again.
    """

    def __init__(self, call: CallState, accumulator: Accumulator) -> None:
        self._call = call
        self._accumulator = accumulator
        self._frames = Frames(call.headers.get("content-type", ""))
        self._n_bytes = 0
        self._whole = False
        self._cause: LocalChatError | None = None
        self.done = False
        self.over = False

    def feed(self, data: bytes) -> Iterator[StreamEvent]:
        """The next bytes; none and the end of the body make it over."""
        self._n_bytes += len(data)
        self._call.check_size(self._n_bytes)
        ended = not data and self._call.all_read
        return self._take(self._frames.end() if ended else self._frames.feed(data), ended)

    def cut(self, error: LocalChatError) -> Iterator[StreamEvent]:
        """Reading failed. Once the finish reason is there nothing that matters is missing."""
        if isinstance(error, (TimedOut, ProtocolError)) and not self._accumulator.complete:
            raise error
        self._cause = error
        return self._take(self._frames.end(), True)

    def finish(self) -> Iterator[StreamEvent]:
        """The events of the end, or the error that there is instead."""
        events = self._finished()
        call = self._call
        try:
            if call.expected is not None:
                call.parsed = call.expected.read(reply_of(call, self._accumulator))
            if call.settings.log_bodies:
                call.log("answer: %s", call.settings.mask(self._accumulator.reply().text))
        except DoesNotFit:
            yield from (event for event in events if event.type != "message_stop")
            raise
        yield from events

    def _finished(self) -> list[StreamEvent]:
        try:
            return self._accumulator.finish(self.done or self._whole)
        except IncompleteStream as error:
            head = self._frames.head
            if self._frames.documents and not self._accumulator.started:
                raise ProtocolError(f"this JSON is no chat answer: {head}", head=head) from None
            message = str(error) if self._cause is None else f"{error} ({self._cause})"
            raise IncompleteStream(message) from self._cause

    def _take(self, frames: Iterable[ServerSentEvent], ended: bool) -> Iterator[StreamEvent]:
        accumulator, deadlines = self._accumulator, self._call.deadlines
        for frame in frames:
            payload = parse_frame(frame.event, frame.data)
            if isinstance(payload, dict):
                self._whole = self._frames.documents == 1 and is_whole_answer(payload)
                events = accumulator.add(self._call.settings.mask_payload(payload))
                if events or "prompt_progress" in payload:  # Some keep the connection alive with empty pieces.
                    deadlines.event()
                yield from events
            self.done = payload is True
            if self.done or accumulator.error:
                ended = True
                break
        if ended and self._frames.was_damaged:
            yield from accumulator.warn("the server sent text that is not UTF-8; wrong bytes are replaced by U+FFFD")
        deadlines.finish(accumulator.complete)
        self.over = ended


def ended_by(error: LocalChatError, call: CallState, accumulator: Accumulator) -> list[StreamEvent]:
    """An error ends the answer: put what has come into it, and return the events that were held back."""
    held = accumulator.flush()
    if isinstance(error, ANSWER_ERRORS):
        error.partial = reply_of(call, accumulator)
    call.settings.mask_error(error)
    return [] if isinstance(error, Cancelled) else held


def reply_of(call: CallState, accumulator: Accumulator) -> Reply[Any]:
    """What has come so far."""
    reply = accumulator.reply()
    warnings = () if call.expected is None else call.expected.warnings
    return changed(
        reply,
        request_id=call.headers.get("x-request-id"),
        headers=dict(call.headers),
        warnings=(*reply.warnings, *warnings),
        parsed=call.parsed,
    )
