"""Server-sent events without I/O: bytes in, events out.

`SSEDecoder.feed` takes chunks that may be cut anywhere; a chunk completes zero or more events. The decoder follows
the WHATWG rules (HTML standard, 9.2.5 and 9.2.6) exactly. It does not depend on HTTP, JSON or chat. Extensions that
chat servers need are options, off by default. The only exception raised is SSEError.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

# Larger than any chat event (a tool argument of 1 MB is rare), and small enough for the memory of a small machine.
DEFAULT_MAX_EVENT_BYTES = 64 * 1024 * 1024

# int() refuses more than 4300 digits on newer Pythons; 18 digits of milliseconds are 31 million years.
_MAX_RETRY_DIGITS = 18

BOM = b"\xef\xbb\xbf"


class ServerSentEvent(NamedTuple):
    """One dispatched event."""

    event: str = "message"
    data: str = ""
    id: str = ""  # The last id of the stream so far.
    retry: int | None = None  # Milliseconds; None if this event has no field `retry`.


class SSEError(Exception):
    """A line or an event is too long. `events` has those that the same `feed` completed before."""

    def __init__(self, message: str, events: Collection[ServerSentEvent] = ()) -> None:
        super().__init__(message)
        self.events = tuple(events)


class SSEDecoder:
    """A strict, incremental decoder in linear time.

    Args:
        max_event_bytes: The limit of the data of one event, and of a line.
        sentinel: Extension: a data line with this text, such as [DONE], is an event of its own.
        fields_as_events: Extension: a line with one of these fields is an event of this name, as in early versions of
            llama.cpp.
        takes_json: Extension: a line that begins with { or [ and the lines after it, up to an empty line or a field,
            are the data of an event. Some servers and proxies report an error as JSON without `data:`.
    """

    def __init__(
        self,
        max_event_bytes: int = DEFAULT_MAX_EVENT_BYTES,
        *,
        sentinel: str | None = None,
        fields_as_events: Collection[str] = (),
        takes_json: bool = False,
    ) -> None:
        self._max_event_bytes = max_event_bytes
        self._sentinel = None if sentinel is None else sentinel.encode()
        self._fields_as_events = frozenset(name.encode() for name in fields_as_events)
        self._takes_json = takes_json
        # Whether data before the sentinel was not UTF-8; each invalid byte became U+FFFD. Data after the sentinel does
        # not count: a reader stops at the sentinel, so how much of that data was fed depends on the chunks.
        self.was_damaged = False
        self._saw_sentinel = False
        self.last_id = ""  # The last id of the stream, also of an event without data.
        self.reconnection_ms: int | None = None  # The last field `retry` of the stream; None if there is none.
        self._at_start = True  # Whether the next line is the first one, which may begin with a byte order mark.
        self._partial_line = bytearray()  # The beginning of a line whose end was not fed yet.
        self._after_cr = False  # Whether the last chunk ended with CR, so that an LF belongs to it.
        # State of the current event. Each data line adds at least its LF, so an empty `_data` means "no data line".
        self._data = bytearray()
        self._event = ""
        self._retry: int | None = None
        self._in_json = False  # Whether the event is JSON without `data:`.
        self._ready: list[ServerSentEvent] = []  # Events completed by the current call.
        self._error: SSEError | None = None

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Take the next bytes and return the events that they complete. Raises SSEError."""
        if self._error is not None:
            raise self._error
        for line in self._split(chunk):
            self._take_line(line)
        if len(self._partial_line) > self._max_event_bytes:
            self._fail("line", len(self._partial_line))
        return self._take_ready()

    def flush(self) -> list[ServerSentEvent]:
        """The unfinished event at the end, which the standard discards. The caller checks whether it was cut."""
        if self._error is not None:
            raise self._error
        line = bytes(self._partial_line)
        self._partial_line.clear()
        if line:
            self._take_line(line)
        self._dispatch()
        return self._take_ready()

    def _split(self, chunk: bytes) -> list[bytes]:
        """Return the lines that `chunk` completes. bytes.splitlines splits at LF, CR and CRLF only."""
        if not chunk:
            return []
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]  # The CR before this LF ended the line at once, so that no event waits for the LF.
        self._after_cr = chunk.endswith(b"\r")
        lines = chunk.splitlines()
        tail = lines.pop() if lines and not chunk.endswith((b"\n", b"\r")) else b""
        if lines and self._partial_line:
            lines[0] = bytes(self._partial_line) + lines[0]
            self._partial_line.clear()
        self._partial_line += tail
        return lines

    def _take_line(self, line: bytes) -> None:
        if len(line) > self._max_event_bytes:
            self._fail("line", len(line))
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(BOM)
        if not line:
            self._dispatch()
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if self._takes_json:
            self._begin_or_end_json(name, line)
        if self._in_json:
            self._take_data(line)
        elif name == b"data":
            self._take_data(value)
        elif name == b"event":
            self._event = _text(value)
        elif name == b"id":
            self.last_id = self.last_id if b"\0" in value else _text(value)
        elif name == b"retry":
            # bytes.isdigit accepts ASCII digits only; int() also accepts signs, blanks and underscores.
            if value.isdigit() and len(value) <= _MAX_RETRY_DIGITS:
                self._retry = self.reconnection_ms = int(value)
        elif name in self._fields_as_events:
            self._ready.append(ServerSentEvent(_text(name), _text(value), self.last_id))

    def _take_data(self, value: bytes) -> None:
        is_sentinel = self._sentinel is not None and value.strip() == self._sentinel
        if is_sentinel:
            self._dispatch()
        if len(self._data) + len(value) > self._max_event_bytes:
            self._fail("event", len(self._data) + len(value))
        self._data += value + b"\n"
        if is_sentinel:
            self._dispatch()
            self._saw_sentinel = True

    def _dispatch(self) -> None:
        """End the current event. Without a data line there is no event: it was a keep-alive."""
        if self._data:
            data = _text(self._data[:-1])
            if "\ufffd" in data and not self._saw_sentinel:
                self.was_damaged = self.was_damaged or is_damaged(self._data, data)
            event = self._event or "message"
            self._ready.append(ServerSentEvent(event, data, self.last_id, self._retry))
            self._data.clear()
        self._event = ""
        self._retry = None
        self._in_json = False

    def _begin_or_end_json(self, name: bytes, line: bytes) -> None:
        """Begin or end JSON without `data:`. Its first line ends the event before, and a field ends it."""
        is_field = name in (b"", b"data", b"event", b"id", b"retry") or name in self._fields_as_events
        if self._in_json and is_field:
            self._end_data()
            self._in_json = False
        elif not self._in_json and not is_field and line.startswith((b"{", b"[")):
            self._end_data()
            self._in_json = True

    def _end_data(self) -> None:
        if self._data:
            self._dispatch()

    def _take_ready(self) -> list[ServerSentEvent]:
        ready, self._ready = self._ready, []
        return ready

    def _fail(self, what: str, size: int) -> None:
        message = f"SSE {what} of {size} bytes or more, expected no more than {self._max_event_bytes} bytes"
        self._error = SSEError(message, self._take_ready())
        self._partial_line.clear()
        self._data.clear()
        raise self._error


def _text(raw: bytes | bytearray) -> str:
    """Decode UTF-8, as the standard requires whatever charset the server names; an invalid byte becomes U+FFFD."""
    return raw.decode("utf-8", "replace")


def is_damaged(raw: bytes | bytearray, text: str) -> bool:
    """Whether `text`, decoded from `raw`, has a U+FFFD in place of invalid bytes, besides those that were sent."""
    return text.count("\ufffd") > raw.count(b"\xef\xbf\xbd")
