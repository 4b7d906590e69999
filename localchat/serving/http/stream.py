"""Sends generated text as a stream or as one body, and frames events of streams. A stream has exactly one end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..api.encoder import Encoder
from ..chat.runs.generation import GenerationRun
from ..core import errors
from ..core.text import to_json
from .exchange import Exchange


def frame(chunk: str) -> bytes:
    """A server-sent event. `chunk` has no line ends. An unpaired surrogate is sent as "?"."""
    return f"data: {chunk}\n\n".encode("utf-8", "replace")


def frame_named(chunk: str) -> bytes:
    """A server-sent event whose name is the type of the chunk, which is the first field of its JSON."""
    return b"event: %b\n%b" % (chunk.split('"', 4)[3].encode(), frame(chunk))


@dataclass(frozen=True)
class StreamFormat:
    """The framing of the chunks of an interface. The default is that of OpenAI's chat completions."""

    content_type: str = "text/event-stream"
    frame: Callable[[str], bytes] = frame  # Frames a chunk, such as an SSE event or a line.
    end: str | None = "[DONE]"  # The last chunk, if the format has one.
    has_types: bool = False  # Whether the first field of each chunk is its type.


CHAT = StreamFormat()
WITHOUT_END = StreamFormat(end=None)  # For interfaces in which a field marks the last chunk.
NAMED = StreamFormat(frame=frame_named, end=None, has_types=True)  # For interfaces whose events have names.
# For Ollama.
LINES = StreamFormat("application/x-ndjson", lambda chunk: chunk.encode("utf-8", "replace") + b"\n", None)

# A server-sent event that clients ignore. Its blank line would end an event that has begun.
_EMPTY_COMMENT = b": \n\n"


class Stream:
    """A streamed response.

    Its head is sent with the first output or ping. An error before that has its own HTTP status; a later one is the
    last chunk.
    """

    def __init__(self, exchange: Exchange, format: StreamFormat, ping_s: float, ping_chunk: Any = None) -> None:
        """`ping_s` is the time without output after which a ping is sent; 0: never.

        `ping_chunk` is a chunk without news; None: the interface has none, and a ping is an empty comment.
        """
        self._exchange = exchange
        self._format = format
        self._ping_s = ping_s
        self._ping = _EMPTY_COMMENT if ping_chunk is None else format.frame(to_json(ping_chunk))
        self._sent_at = time.monotonic()
        self.encoder: Encoder[Any] | None = None  # None: the output has not begun.
        exchange.fail_stream = self._fail

    @property
    def next_ping_at(self) -> float:
        """When a ping is due, by `time.monotonic`, if nothing is sent before."""
        return self._sent_at + self._ping_s if self._ping_s else math.inf

    def send(self, *, has_events: bool, is_last: bool) -> None:
        """Send the new chunks of the encoder. The first events begin the response."""
        assert self.encoder is not None
        if is_last:
            self.encoder.finish()
        chunks = self.encoder.take()
        if chunks or is_last or (has_events and self._exchange.status is None):
            self._send(chunks, is_last=is_last)

    def ping(self) -> None:
        """Send a chunk without news, or bytes that clients ignore."""
        if self.encoder is not None:
            self.encoder.ping()
            if chunks := self.encoder.take():
                self._send(chunks, is_last=False)
                return
        self._write(self._ping)

    def _fail(self, error: errors.ApiError) -> None:
        body = self._exchange.routing.error_body(error)
        if self.encoder is not None:
            self.encoder.failed(error, body)
            chunks = self.encoder.take()
        else:
            chunks = [to_json({"type": "error", **body} if self._format.has_types else body)]
        self._send(chunks, is_last=True)

    def _send(self, chunks: list[str], *, is_last: bool) -> None:
        if is_last and self._format.end is not None:
            chunks = [*chunks, self._format.end]
        self._write(b"".join(map(self._format.frame, chunks)), is_last=is_last)

    def _write(self, payload: bytes, *, is_last: bool = False) -> None:
        if self._exchange.status is None:
            self._exchange.start_stream(self._format.content_type)
        self._exchange.send_part(payload, is_last=is_last)
        self._sent_at = time.monotonic()


def send_output(exchange: Exchange, run: GenerationRun, encoder: Encoder[Any], stream: Stream | None) -> None:
    """Generate, and send the response: a stream, or one body."""
    if stream is not None:
        stream.encoder = encoder
    while run.is_running:
        events = run.take()
        for index, event in events:
            encoder.add(index, event)
        if stream is not None:
            stream.send(has_events=bool(events), is_last=not run.is_running)
    if stream is None:
        exchange.send_json(200, encoder.body())
