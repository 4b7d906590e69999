"""Server-sent events without I/O: bytes in, events out.

`SSEDecoder.feed` takes chunks as they come, cut anywhere; a chunk completes zero or more events. The decoder follows
the WHATWG rules (HTML standard, 9.2.5 and 9.2.6) to the letter and knows nothing of HTTP, JSON or chat; what chat
servers need beyond the standard is offered as options that are off by default. Raises only SSEError.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

# Far above any chat event (a 1 MB tool argument is rare), far below what would hurt a small machine.
DEFAULT_MAX_LINE_BYTES = 64 * 1024 * 1024
DEFAULT_MAX_EVENT_BYTES = 64 * 1024 * 1024

# int() refuses more than 4300 digits on newer Pythons; 18 digits of milliseconds are 31 million years.
_MAX_RETRY_DIGITS = 18

_BOM = b"\xef\xbb\xbf"


class ServerSentEvent(NamedTuple):
    """One dispatched event. `id` is the last id of the stream so far, `retry` (ms) that of this block."""

    event: str = "message"
    data: str = ""
    id: str = ""
    retry: int | None = None


class SSEError(Exception):
    """A line or an event is longer than allowed; the decoder is of no further use.

    `events` holds what the same `feed` had completed before, so that nothing depends on chunking.
    """

    def __init__(self, message: str, events: Collection[ServerSentEvent] = ()) -> None:
        super().__init__(message)
        self.events = tuple(events)


class SSEDecoder:
    """A strict, incremental decoder in linear time.

    Args:
        max_line_bytes: Longest line, without its end.
        max_event_bytes: Most bytes of data in one event.
        sentinel: Leniency: a data line with this text (blanks around it aside) is an event of its own.
            It closes the block before it and does not wait for an empty line. Chat uses "[DONE]".
        fields_as_events: Leniency: these unknown fields, which the standard ignores, yield at once an
            event named after the field. Old llama.cpp servers report an error as a line `error: {...}`.
    """

    def __init__(
        self,
        max_line_bytes: int = DEFAULT_MAX_LINE_BYTES,
        max_event_bytes: int = DEFAULT_MAX_EVENT_BYTES,
        *,
        sentinel: str | None = None,
        fields_as_events: Collection[str] = (),
    ) -> None:
        # What was asked for.
        self._max_line_bytes = max_line_bytes
        self._max_event_bytes = max_event_bytes
        self._sentinel = None if sentinel is None else sentinel.encode()
        self._fields_as_events = frozenset(name.encode() for name in fields_as_events)
        # The stream: what outlives an event.
        self.last_event_id = ""
        # Whether data before the sentinel was no UTF-8; each wrong byte became U+FFFD. A reader stops at the sentinel,
        # and what is behind it may or may not have been fed by then.
        self.was_damaged = self._is_over = False
        self.retry_ms: int | None = None
        self._id = ""
        # The line in progress.
        self._held = bytearray()
        self._after_cr = False
        self._at_start = True
        # The block in progress. Every data line leaves at least its LF, so empty means "no data line".
        self._data = bytearray()
        self._event = ""
        self._retry: int | None = None
        # Events completed by the present call; the error that ended all.
        self._ready: list[ServerSentEvent] = []
        self._error: SSEError | None = None

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Take the next bytes and return the events they complete.

        Raises:
            SSEError: A line or event is too long. Every later call raises the same.
        """
        if self._error is not None:
            raise self._error
        for line in self._split(chunk):
            self._take_line(line)
        if len(self._held) > self._max_line_bytes:
            self._fail("line", len(self._held), self._max_line_bytes)
        return self._take_ready()

    def flush(self) -> list[ServerSentEvent]:
        """At the end of the stream: the unfinished block, which the standard throws away.

        Some servers close right after the last line. The caller has to judge whether the data is whole
        (valid JSON, for example) or cut.
        """
        if self._error is not None:
            raise self._error
        held = bytes(self._held)
        self._held.clear()
        if held:
            self._take_line(held)
        self._dispatch()
        return self._take_ready()

    def _split(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes. bytes.splitlines knows LF, CR and CRLF, and only those."""
        if not chunk:
            return []
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]  # The CR has already ended its line: waiting for this LF would cost latency.
        self._after_cr = chunk.endswith(b"\r")
        lines = chunk.splitlines()
        tail = lines.pop() if lines and not chunk.endswith((b"\n", b"\r")) else b""
        if lines and self._held:
            lines[0] = bytes(self._held) + lines[0]
            self._held.clear()
        self._held += tail
        return lines

    def _take_line(self, line: bytes) -> None:
        if len(line) > self._max_line_bytes:
            self._fail("line", len(line), self._max_line_bytes)
        if self._at_start:
            self._at_start = False
            if line.startswith(_BOM):
                line = line[len(_BOM) :]
        if not line:
            self._dispatch()
            return
        name, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        take_field = _TAKE_FIELD.get(name)
        if take_field is not None:
            take_field(self, value)
        elif name in self._fields_as_events:
            self._ready.append(ServerSentEvent(_text(name), _text(value), self.last_event_id))

    def _take_data(self, value: bytes) -> None:
        alone = self._sentinel is not None and value.strip() == self._sentinel
        if alone:
            self._dispatch()
        if len(self._data) + len(value) > self._max_event_bytes:
            self._fail("event", len(self._data) + len(value), self._max_event_bytes)
        self._data += value + b"\n"
        if alone:
            self._dispatch()
            self._is_over = True

    def _take_event(self, value: bytes) -> None:
        self._event = _text(value)

    def _take_id(self, value: bytes) -> None:
        if b"\0" not in value:
            self._id = _text(value)

    def _take_retry(self, value: bytes) -> None:
        # bytes.isdigit is true for ASCII digits alone, where int() takes signs, blanks and underscores.
        if value.isdigit() and len(value) <= _MAX_RETRY_DIGITS:
            self._retry = self.retry_ms = int(value)

    def _dispatch(self) -> None:
        """End the block. Without any data line nothing fires: a keep-alive is not an event."""
        self.last_event_id = self._id
        if self._data:
            data = _text(self._data[:-1])
            if "\ufffd" in data and not self._is_over:
                self.was_damaged = self.was_damaged or is_damaged(self._data, data)
            event = self._event or "message"
            self._ready.append(ServerSentEvent(event, data, self._id, self._retry))
            self._data.clear()
        self._event = ""
        self._retry = None

    def _take_ready(self) -> list[ServerSentEvent]:
        ready, self._ready = self._ready, []
        return ready

    def _fail(self, what: str, size: int, limit: int) -> None:
        message = f"SSE {what} of {size} bytes or more, expected no more than {limit} bytes"
        self._error = SSEError(message, self._take_ready())
        self._held.clear()
        self._data.clear()
        raise self._error


# The fields of the standard. Names compare literally; every other field is ignored.
_TAKE_FIELD = {
    b"data": SSEDecoder._take_data,
    b"event": SSEDecoder._take_event,
    b"id": SSEDecoder._take_id,
    b"retry": SSEDecoder._take_retry,
}


def _text(raw: bytes | bytearray) -> str:
    """UTF-8 whatever charset the server names; a wrong byte becomes U+FFFD and never an exception."""
    return raw.decode("utf-8", "replace")


def is_damaged(raw: bytes | bytearray, text: str) -> bool:
    """Whether U+FFFD in `text`, made of `raw`, stands for wrong bytes. It may also have been sent."""
    return text.count("\ufffd") > raw.count(b"\xef\xbf\xbd")
