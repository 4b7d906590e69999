"""Streams a response, or sends it whole. The first events decide the status; a stream has exactly one end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..engine import Cancelled
from ..protocol import errors
from ..protocol.interface import BodyEncoder, StreamEncoder
from . import sse
from .exchange import Exchange, printable

if TYPE_CHECKING:
    from ..generation.run import GenerationRun

log = logging.getLogger("localchat.server")


@dataclass(frozen=True)
class StreamFormat:
    """How the chunks of an interface are written."""

    content_type: str
    encode: Callable[[str], bytes]
    """Frames a chunk, such as an SSE event or a line."""
    end: str | None
    """The last chunk, if the format has one."""
    ping: bytes
    """Sent when no chunk has come for a while; empty if clients of this format skip nothing."""


CHAT = StreamFormat("text/event-stream", sse.encode, "[DONE]", sse.comment())
# For interfaces whose last chunk shows that it is the last.
WITHOUT_END = StreamFormat("text/event-stream", sse.encode, None, sse.comment())

# The type of an event is the first field of its JSON text.
_TYPE_START = len('{"type":"')


def encode_named(chunk: str) -> bytes:
    """An event whose name is its type."""
    return sse.encode(chunk, event=chunk[_TYPE_START : chunk.index('"', _TYPE_START)])


def send_whole(exchange: Exchange, run: GenerationRun, encoder: BodyEncoder) -> None:
    """Generate, and send the response as one body."""
    while run.is_running:
        for index, event in run.take():
            encoder.add(index, event)
    exchange.send_json(200, encoder.body(run.usage()))


def send_stream(
    exchange: Exchange, run: GenerationRun, encoder: StreamEncoder, silence_s: float | None, format: StreamFormat
) -> None:
    """Generate, and send chunks as they come. The status line waits for the first chunks, an error or `silence_s`.

    After `silence_s` without a chunk a ping shows that the stream is alive. An error after the status line becomes the
    last chunks, and then the stream ends.
    """
    is_begun = is_over = False
    sent_at = time.monotonic()
    while not is_over:
        try:
            new, is_over = _next_chunks(run, encoder, silence_s)
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
        elif silence_s is not None and format.ping and time.monotonic() - sent_at >= silence_s:
            exchange.send_part(format.ping)
            sent_at = time.monotonic()


def _next_chunks(run: GenerationRun, encoder: StreamEncoder, timeout_s: float | None) -> tuple[list[str], bool]:
    """The chunks of the next events, none if no event comes in time; and whether they are the last."""
    events = run.take(timeout_s)
    for index, event in events:
        encoder.add(index, event)
    if not run.is_running:
        return encoder.finish(), True
    return encoder.take() if events else [], False


def _as_api_error(exchange: Exchange, error: Exception) -> errors.ApiError:
    if isinstance(error, errors.ApiError):
        log.warning("%s broke off: %s", exchange.id, printable(error.message))
        return error
    log.exception("%s failed", exchange.id)
    return errors.InferenceError(errors.INTERNAL_ERROR)
