"""Sends an answer as events while it is made: what comes first decides the status, and exactly one end comes last."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass

from .. import sse
from ..engine import Cancelled
from ..protocol import errors
from .exchange import Exchange, printable

log = logging.getLogger("localchat.server")


@dataclass(frozen=True)
class StreamFormat:
    """How the chunks of an interface are written."""

    content_type: str
    encode: Callable[[str], bytes]
    # The last chunk, None for no such thing.
    end: str | None
    # Written where there has been no chunk for a while; empty if the format has nothing that clients skip.
    ping: bytes


CHAT = StreamFormat("text/event-stream", sse.encode, "[DONE]", sse.comment())

# The chunks as they come, none where there is nothing to send yet; what it returns are the last ones.
News = Generator[list[str], None, list[str]]


def send_stream(
    exchange: Exchange,
    news: News,
    failed: Callable[[errors.ApiError], list[str]],
    patience_s: float | None,
    format: StreamFormat = CHAT,
) -> None:
    """Chunks as they come. The status line waits for the first news or an error (K31).

    When nothing has been sent for `patience_s`, a comment shows that the stream lives. What fails after the
    status line is an event, of the chunks that `failed` makes, and then the end (K5).
    """
    is_begun = is_over = False
    end = [] if format.end is None else [format.end]
    sent_at = time.monotonic()
    while not is_over:
        try:
            chunks = next(news)
        except StopIteration as stop:
            chunks, is_over = [*stop.value, *end], True
        except (Cancelled, OSError):
            raise
        except Exception as error:
            if not is_begun:
                raise
            chunks, is_over = [*failed(_told(exchange, error)), *end], True
        if not is_begun:
            exchange.start_stream(format.content_type)
            is_begun = True
        if chunks or is_over:
            exchange.send_part(b"".join(map(format.encode, chunks)), is_last=is_over)
            sent_at = time.monotonic()
        elif patience_s is not None and format.ping and time.monotonic() - sent_at >= patience_s:
            exchange.send_part(format.ping)
            sent_at = time.monotonic()


def _told(exchange: Exchange, error: Exception) -> errors.ApiError:
    if isinstance(error, errors.ApiError):
        log.warning("%s broke off: %s", exchange.id, printable(error.message))
        return error
    log.exception("%s failed", exchange.id)
    return errors.InferenceError(errors.INTERNAL_ERROR)
