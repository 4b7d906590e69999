"""Sends what a chat request generates through the encoder of an interface, as a stream or as one body."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ..protocol.errors import ApiError
from ..protocol.events import (
    ContentDelta,
    Event,
    OutputEnd,
    OutputEvent,
    ReasoningDelta,
    SampledTokens,
    ToolCallArguments,
    ToolCallStart,
)
from ..protocol.logprobs import logprob_entry
from ..protocol.request import TextRequest
from ..protocol.usage import Usage
from .exchange import Exchange
from .stream import StreamFormat, chunks_of, send_stream

if TYPE_CHECKING:
    from ..generation.run import GenerationRun


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


def send_encoded(
    exchange: Exchange,
    run: GenerationRun,
    request: TextRequest,
    encoder: Encoder,
    format: StreamFormat,
    patience_s: float | None,
    finished: Callable[[], None] = lambda: None,
) -> None:
    """Generate and send the response. A stream sends a ping after `patience_s` seconds of silence.

    `finished` is called once all is generated, before the client can know it.
    """
    stream = _Stream(run, request, encoder, finished)
    encoder.start()
    if request.stream:
        send_stream(exchange, chunks_of(run, stream, patience_s), encoder.failed, patience_s, format)
        return
    while run.is_running:
        for index, event in run.take():
            stream.add(index, event)
    stream.finish()
    exchange.send_json(200, encoder.body())


class _Stream:
    """The StreamEncoder of a request of one choice."""

    def __init__(
        self, run: GenerationRun, request: TextRequest, encoder: Encoder, finished: Callable[[], None]
    ) -> None:
        self._run = run
        self._wants_logprobs = request.params.top_logprobs is not None
        self._encoder = encoder
        self._finished = finished
        self._end = OutputEnd("stop")

    def add(self, index: int, event: OutputEvent) -> None:
        if isinstance(event, SampledTokens):
            if self._wants_logprobs:
                self._encoder.logprobs([logprob_entry(token) for token in event.tokens])
        elif isinstance(event, (ContentDelta, ReasoningDelta, ToolCallStart, ToolCallArguments)):
            self._encoder.event(event)
        elif isinstance(event, OutputEnd):
            self._end = event

    def take(self) -> list[str]:
        return self._encoder.take()

    def finish(self) -> list[str]:
        self._encoder.finish(self._end.reason, self._end.stop, self._run.usage(), time.time())
        self._finished()
        return self._encoder.take()

    def failed(self, error: ApiError) -> list[str]:
        return self._encoder.failed(error)
