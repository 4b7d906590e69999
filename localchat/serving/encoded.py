"""Sends what a chat request generates through the encoder of an interface, as a stream or as one body."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ..protocol.errors import ApiError
from ..protocol.events import ContentDelta, Event, ReasoningDelta, ToolCallArguments, ToolCallStart
from ..protocol.usage import Usage
from .exchange import Exchange
from .stream import News, StreamFormat, send_stream

if TYPE_CHECKING:
    from ..generation.answer import Answer


class Encoder(Protocol):
    """What an interface makes of output events, for a request of one choice."""

    def start(self) -> None:
        """The request has been accepted."""

    def logprobs(self, entries: list[dict[str, Any]]) -> None:
        """Log probabilities (see `logprob_entry`) of tokens whose text comes now or later."""

    def event(self, event: Event) -> None: ...

    def finish(self, reason: str, stop: str | int | None, usage: Usage, now: float) -> None:
        """The end, with the reason and the stop of chat; `now` is in seconds since 1970."""

    def failed(self, error: ApiError) -> list[str]:
        """The last chunks of a stream that fails."""

    def take(self) -> list[str]:
        """The chunks since the last time."""

    def body(self) -> Any:
        """The whole response."""


class _Events:
    """The Reply of a chat request that gives its events to an encoder."""

    wants_figures = False

    def __init__(self, encoder: Encoder) -> None:
        self.end: tuple[str, str | int | None] = ("stop", None)
        self._encoder = encoder

    def figures(self, usage: Usage) -> None: ...

    def progress(self, n_done: int, n_prompt: int, n_cached: int, seconds: float) -> None: ...

    def token_ids(self, i: int, ids: list[int]) -> None: ...

    def content(self, i: int, text: str) -> None:
        self._encoder.event(ContentDelta(text))

    def reasoning(self, i: int, text: str) -> None:
        self._encoder.event(ReasoningDelta(text))

    def tool_head(self, i: int, call: int, id: str, name: str) -> None:
        self._encoder.event(ToolCallStart(call, id, name))

    def tool_arguments(self, i: int, call: int, text: str) -> None:
        self._encoder.event(ToolCallArguments(call, text))

    def logprobs(self, i: int, entries: list[dict[str, Any]]) -> None:
        self._encoder.logprobs(entries)

    def finish(self, i: int, reason: str, stop: str | int | None) -> None:
        self.end = reason, stop


def send_encoded(
    exchange: Exchange,
    answer: Answer,
    encoder: Encoder,
    format: StreamFormat,
    patience_s: float | None,
    finished: Callable[[], None] = lambda: None,
) -> None:
    """Generate and send the response. A stream sends a ping after `patience_s` seconds of silence.

    `finished` is called once all is generated, before the client can know it.
    """
    encoder.start()
    reply = _Events(encoder)
    if answer.request.stream:
        chunks = _chunks(answer, encoder, reply, patience_s, finished)
        send_stream(exchange, chunks, encoder.failed, patience_s, format)
        return
    while answer.is_running:
        answer.advance(reply)
    encoder.finish(*reply.end, answer.usage, time.time())
    finished()
    exchange.send_json(200, encoder.body())


def _chunks(
    answer: Answer, encoder: Encoder, reply: _Events, patience_s: float | None, finished: Callable[[], None]
) -> News:
    has_news = answer.advance(reply, patience_s)
    while answer.is_running:
        yield encoder.take() if has_news else []
        has_news = answer.advance(reply, patience_s)
    encoder.finish(*reply.end, answer.usage, time.time())
    finished()
    return encoder.take()
