"""Sends generated text as a stream or as one body, and frames events of streams.

The status line of a stream is sent after its first events, so that an early error has its own status. A stream has
exactly one end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..api.encoder import Encoder
from ..chat.run import GenerationRun
from ..core import errors
from ..core.json_text import to_json
from ..engine import Cancelled
from .connections import has_disconnected
from .exchange import Exchange
from .logs import printable
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
    encode: Callable[[str], bytes] = encode
    """Frames a chunk, such as an SSE event or a line."""
    end: str | None = "[DONE]"
    """The last chunk, if the format has one."""
    ping: bytes = COMMENT
    """Bytes that clients ignore, sent after some time without a chunk; empty if the format has none."""

    def failed(self, body: Any) -> bytes:
        """The end of a stream that fails before its first event. Events with names begin with their type."""
        body = body if self.encode is not encode_named or "type" in body else {"type": "error", **body}
        return b"".join(map(self.encode, [to_json(body), *([self.end] if self.end else [])]))


CHAT = StreamFormat()
# For interfaces in which a field marks the last chunk.
WITHOUT_END = StreamFormat(end=None)
# For interfaces whose events have names.
NAMED = StreamFormat(encode=encode_named, end=None)
# For Ollama. Clients parse every line, so there is no ping.
LINES = StreamFormat("application/x-ndjson", lambda chunk: chunk.encode("utf-8", "replace") + b"\n", None, b"")


def send_whole(exchange: Exchange, run: GenerationRun, encoder: Encoder[Any]) -> None:
    """Generate, and send the response as one body."""
    while run.is_running:
        for index, event in run.take():
            encoder.add(index, event)
    exchange.send_json(200, encoder.body())


def send_stream(
    exchange: Exchange, run: GenerationRun, encoder: Encoder[Any], ping_s: float | None, format: StreamFormat
) -> None:
    """Send chunks as they are generated, and a ping after each `ping_s` without a chunk (None: no pings).

    The status line is sent with the first chunks, or after `ping_s`. An error before the status line is raised. A later
    error is sent as the last chunks of the stream.
    """
    is_begun, is_over = exchange.status is not None, False  # It has begun if the request waited for its model.
    exchange.failed_stream = None
    sent_at = time.monotonic()
    while not is_over:
        try:
            for index, event in run.take(ping_s):
                encoder.add(index, event)
            is_over = not run.is_running
            if is_over:
                encoder.finish()
            new = encoder.take()
        except (Cancelled, OSError):
            raise
        except Exception as error:
            if not is_begun:
                raise
            encoder.failed(_as_api_error(exchange, error))
            new, is_over = encoder.take(), True
        if not is_begun:
            exchange.start_stream(format.content_type)
            is_begun = True
        if is_over and format.end is not None:
            new = [*new, format.end]
        if new or is_over:
            exchange.send_part(b"".join(map(format.encode, new)), is_last=is_over)
        elif ping_s is not None and format.ping and time.monotonic() - sent_at >= ping_s:
            exchange.send_part(format.ping)
        else:
            continue
        sent_at = time.monotonic()


def pinging(exchange: Exchange, ping_s: float | None, format: StreamFormat) -> Callable[[], None]:
    """A function that keeps a stream alive whose model loads: it begins the stream, and sends a ping after each
    `ping_s`. It raises PeerGone if the client has disconnected."""
    sent_at = time.monotonic()

    def ping() -> None:
        nonlocal sent_at
        if has_disconnected(exchange.socket):
            raise PeerGone
        if ping_s is None or not format.ping or time.monotonic() - sent_at < ping_s:
            return
        if exchange.status is None:
            exchange.start_stream(format.content_type)
            exchange.failed_stream = lambda error: format.failed(exchange.error_body(error))
        exchange.send_part(format.ping)
        sent_at = time.monotonic()

    return ping


def _as_api_error(exchange: Exchange, error: Exception) -> errors.ApiError:
    if isinstance(error, errors.ApiError):
        log.warning("%s failed: %s", exchange.id, printable(error.message))
        return error
    log.exception("%s failed", exchange.id)
    return errors.InferenceError(errors.INTERNAL_ERROR)
