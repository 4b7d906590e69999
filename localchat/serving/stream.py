"""Sends a response as a stream: the first events decide the status, and there is exactly one end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any

from .. import sse
from ..engine import Cancelled
from ..protocol import errors
from ..protocol.interface import EVENT_STREAM, Chunk, Interface, NamedChunk, StreamEncoder
from .exchange import Exchange, printable

if TYPE_CHECKING:
    from ..generation.run import GenerationRun

log = logging.getLogger("localchat.server")

# Chunks as they come, none where there is nothing to send yet; it returns the last ones.
Chunks = Generator["list[Chunk]", None, "list[Chunk]"]


def chunks_of(run: GenerationRun, encoder: StreamEncoder, timeout_s: float | None) -> Chunks:
    """The chunks of a run. After `timeout_s` without an event it yields none."""
    while True:
        events = run.take(timeout_s)
        for index, event in events:
            encoder.add(index, event)
        if not run.is_running:
            return encoder.finish()
        yield encoder.take() if events else []


def send_stream(
    exchange: Exchange,
    interface: Interface[Any],
    chunks: Chunks,
    failed: Callable[[errors.ApiError], list[Chunk]],
    silence_s: float | None,
) -> None:
    """Sends chunks as they come. The status line waits for the first chunks or an error.

    After `silence_s` without a chunk a ping shows that the stream is alive. An error after the status line becomes the
    chunks that `failed` gives, and then the stream ends.
    """
    is_begun = is_over = False
    sent_at = time.monotonic()
    done = [] if interface.done is None else [interface.done]
    while not is_over:
        try:
            new = next(chunks)
        except StopIteration as end:
            new, is_over = [*end.value, *done], True
        except (Cancelled, OSError):
            raise
        except Exception as error:
            if not is_begun:
                raise
            new, is_over = [*failed(_as_api_error(exchange, error)), *done], True
        if not is_begun:
            exchange.start_stream(interface.content_type)
            is_begun = True
        if new or is_over:
            exchange.send_piece(_framed(interface, new), is_last=is_over)
            sent_at = time.monotonic()
        elif silence_s is not None and time.monotonic() - sent_at >= silence_s:
            exchange.send_piece(_ping(interface))
            sent_at = time.monotonic()


def _framed(interface: Interface[Any], chunks: Iterable[Chunk]) -> bytes:
    if interface.content_type != EVENT_STREAM:
        return b"".join(f"{chunk}\n".encode("utf-8", "replace") for chunk in chunks)
    return b"".join(
        sse.encode(chunk.data, chunk.event) if isinstance(chunk, NamedChunk) else sse.encode(chunk) for chunk in chunks
    )


def _ping(interface: Interface[Any]) -> bytes:
    return sse.comment() if interface.ping is None else _framed(interface, [interface.ping])


def _as_api_error(exchange: Exchange, error: Exception) -> errors.ApiError:
    if isinstance(error, errors.ApiError):
        log.warning("%s broke off: %s", exchange.id, printable(error.message))
        return error
    log.exception("%s failed", exchange.id)
    return errors.InferenceError(errors.INTERNAL_ERROR)
