"""Sends a response as a stream or as one body.

The status line of a stream is sent after its first events, so that an early error has its own status. A stream has
exactly one end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from ..chat.run import GenerationRun
from ..core import errors
from ..core.interface import BodyEncoder, StreamEncoder
from ..engine import Cancelled
from . import sse
from .exchange import Exchange, printable

log = logging.getLogger("localchat.server")


@dataclass(frozen=True)
class StreamFormat:
    """The framing of the chunks of an interface."""

    content_type: str
    encode: Callable[[str], bytes]
    """Frames a chunk, such as an SSE event or a line."""
    end: str | None
    """The last chunk, if the format has one."""
    ping: bytes
    """Bytes that clients ignore, sent after some time without a chunk; empty if the format has none."""


CHAT = StreamFormat("text/event-stream", sse.encode, "[DONE]", sse.COMMENT)
# For interfaces in which a field marks the last chunk.
WITHOUT_END = StreamFormat("text/event-stream", sse.encode, None, sse.COMMENT)

# The type of an event is the first field of its JSON text.
_TYPE_START = len('{"type":"')


def encode_named(chunk: str) -> bytes:
    """An SSE event with the type of the chunk as its name."""
    return sse.encode(chunk, event=chunk[_TYPE_START : chunk.index('"', _TYPE_START)])


def send_whole(exchange: Exchange, run: GenerationRun, encoder: BodyEncoder) -> None:
    """Generate, and send the response as one body."""
    while run.is_running:
        for index, event in run.take():
            encoder.add(index, event)
    exchange.send_json(200, encoder.body(run.usage()))


def send_stream(
    exchange: Exchange, run: GenerationRun, encoder: StreamEncoder, ping_s: float | None, format: StreamFormat
) -> None:
    """Send chunks as they are generated, and a ping after each `ping_s` without a chunk (None: no pings).

    The status line is sent with the first chunks, or after `ping_s`. An error before the status line is raised. A later
    error is sent as the last chunks of the stream.
    """
    is_begun = is_over = False
    sent_at = time.monotonic()
    while not is_over:
        try:
            new, is_over = _next_chunks(run, encoder, ping_s)
        except (Cancelled, OSError):
            raise
        except Exception as error:
            if not is_begun:
                raise
            new, is_over = encoder.failed(_as_api_error(exchange, error)), True
        if not is_begun:
            exchange.start_stream(format.content_type)
            is_begun = True
        if is_over and format.end is not None:
            new = [*new, format.end]
        if new or is_over:
            exchange.send_part(b"".join(map(format.encode, new)), is_last=is_over)
            sent_at = time.monotonic()
        elif ping_s is not None and format.ping and time.monotonic() - sent_at >= ping_s:
            exchange.send_part(format.ping)
            sent_at = time.monotonic()


def _next_chunks(run: GenerationRun, encoder: StreamEncoder, timeout_s: float | None) -> tuple[list[str], bool]:
    """The chunks of the next events, and whether they are the last. Without an event in `timeout_s`, there is none."""
    events = run.take(timeout_s)
    for index, event in events:
        encoder.add(index, event)
    if not run.is_running:
        return encoder.finish(), True
    return encoder.take() if events else [], False


def _as_api_error(exchange: Exchange, error: Exception) -> errors.ApiError:
    if isinstance(error, errors.ApiError):
        log.warning("%s failed: %s", exchange.id, printable(error.message))
        return error
    log.exception("%s failed", exchange.id)
    return errors.InferenceError(errors.INTERNAL_ERROR)
