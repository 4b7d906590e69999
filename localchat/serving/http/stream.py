"""Sends generated text as a stream or as one body, and frames events of streams. A stream has exactly one end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..api.encoder import Encoder
from ..chat.run import GenerationRun
from ..core import errors
from ..core.text import printable, to_json
from ..engine.values import Cancelled
from .exchange import MAX_LOGGED_CHARS, Exchange
from .request import PeerGone

log = logging.getLogger("localchat.server")

# An empty comment of server-sent events. Clients ignore it. It must not be sent within an event.
COMMENT = b": \n\n"


def encode(chunk: str) -> bytes:
    """A server-sent event. `chunk` is JSON, so it has no line ends. An unpaired surrogate is sent as "?"."""
    return f"data: {chunk}\n\n".encode("utf-8", "replace")


def encode_named(chunk: str) -> bytes:
    """A server-sent event whose name is the type of the chunk, which is the first field of its JSON."""
    return b"event: %b\n%b" % (chunk.split('"', 4)[3].encode(), encode(chunk))


@dataclass(frozen=True)
class StreamFormat:
    """The framing of the chunks of an interface. The default is that of OpenAI's chat completions."""

    content_type: str = "text/event-stream"
    encode: Callable[[str], bytes] = encode  # Frames a chunk, such as an SSE event or a line.
    end: str | None = "[DONE]"  # The last chunk, if the format has one.
    ping: bytes = COMMENT  # Bytes that clients ignore, sent after some time without a chunk; empty if there are none.


CHAT = StreamFormat()
# For interfaces in which a field marks the last chunk.
WITHOUT_END = StreamFormat(end=None)
# For interfaces whose events have names.
NAMED = StreamFormat(encode=encode_named, end=None)
# For Ollama. Clients parse every line, so there is no ping.
LINES = StreamFormat("application/x-ndjson", lambda chunk: chunk.encode("utf-8", "replace") + b"\n", None, b"")


class Stream:
    """A streamed response. Its head is sent when the first output arrives, or after `ping_s` with a ping (None: no
    pings), so that an early error has its own status."""

    def __init__(self, exchange: Exchange, format: StreamFormat, ping_s: float | None) -> None:
        self.ping_s = ping_s
        self._exchange = exchange
        self._format = format
        self._sent_at = time.monotonic()

    def run(self, run: GenerationRun, encoder: Encoder[Any]) -> None:
        """Send chunks as they are generated. An error before the head is raised; a later one is the last chunk."""
        is_over = False
        while not is_over:
            try:
                for index, event in run.take(self.ping_s):
                    encoder.add(index, event)
                is_over = not run.is_running
                if is_over:
                    encoder.finish()
                new = encoder.take()
            except Exception as error:
                encoder.failed(self._late(error))
                new, is_over = encoder.take(), True
            if new or is_over:
                self._send(new, is_last=is_over)
            else:
                self._begin()
                self.ping()

    def ping(self) -> None:
        """Send a ping if nothing was sent for `ping_s`."""
        if self.ping_s is not None and time.monotonic() - self._sent_at >= self.ping_s:
            self._send_part(self._format.ping)

    def fail(self, error: Exception) -> None:
        """End a stream that has no events yet. An error before the head is raised."""
        late = self._late(error)
        self._exchange.summary = printable(late.message)[:MAX_LOGGED_CHARS]
        body = self._exchange.error_body(late)
        if self._format.encode is encode_named and "type" not in body:
            body = {"type": "error", **body}
        self._send([to_json(body)], is_last=True)

    def _late(self, error: Exception) -> errors.ApiError:
        """The error of a stream whose head has been sent; raises one that has its own response, or needs none."""
        if self._exchange.status is None or isinstance(error, (Cancelled, PeerGone, OSError)):
            raise error
        if isinstance(error, errors.ApiError):
            log.warning("%s failed: %s", self._exchange.id, printable(error.message))
            return error
        log.error("%s failed", self._exchange.id, exc_info=error)
        return errors.InferenceError(errors.INTERNAL_ERROR)

    def _send(self, chunks: list[str], *, is_last: bool) -> None:
        if is_last and self._format.end is not None:
            chunks = [*chunks, self._format.end]
        self._send_part(b"".join(map(self._format.encode, chunks)), is_last=is_last)

    def _begin(self) -> None:
        if self._exchange.status is None:
            self._exchange.start_stream(self._format.content_type)

    def _send_part(self, payload: bytes, *, is_last: bool = False) -> None:
        self._begin()
        self._exchange.send_part(payload, is_last=is_last)
        self._sent_at = time.monotonic()


def send_whole(exchange: Exchange, run: GenerationRun, encoder: Encoder[Any]) -> None:
    """Generate, and send the response as one body."""
    while run.is_running:
        for index, event in run.take():
            encoder.add(index, event)
    exchange.send_json(200, encoder.body())
