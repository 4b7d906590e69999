"""Engines on fake backends, stepped by hand or with their thread, and runs with one sequence, read item by item."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, NamedTuple, Union, cast

from localchat.serving.chat.dialects.parser import OutputParser
from localchat.serving.chat.model import Model
from localchat.serving.chat.runs.generation import GenerationRun, Output, PlainText
from localchat.serving.core.errors import ApiError
from localchat.serving.core.events import (
    ContentDelta,
    Event,
    OutputEnd,
    OutputEvent,
    OutputToken,
    PromptProgress,
    SampledTokens,
    Usage,
)
from localchat.serving.core.params import GenerationParams
from localchat.serving.engine.engine import Engine
from localchat.serving.engine.process import AnyEngine
from localchat.serving.engine.values import Cancelled, GenerationRequest, StepOutput, TokenTexts
from tests.support.fakes import FakeBackend

DEADLINE_S = 20
_PARAMS = {field.name for field in fields(GenerationParams)} - {"sampling"}


def request_for(prompt: tuple[int, ...], **options: Any) -> GenerationRequest:
    """A request with fields of GenerationRequest and of GenerationParams, by their names. It returns token ids."""
    params = {name: options.pop(name) for name in list(options) if name in _PARAMS}
    return GenerationRequest(prompt, GenerationParams(**params), **{"returns_ids": True, **options})


def request(text: str = "hello", **options: Any) -> GenerationRequest:
    return request_for(tuple(text.encode()), **options)


class Finish(NamedTuple):
    """The end of a generation, with its usage."""

    reason: str
    stop: str | int | None
    last: OutputToken | None
    usage: Usage


Item = Union[PromptProgress, SampledTokens, Finish]


def output_of(
    pieces: Sequence[bytes], parser: OutputParser | None = None, echo: Sequence[Event] = (), **options: Any
) -> Output:
    """An output of tokens with these bytes, whose ids are their indexes. Options are those of the request."""
    texts = TokenTexts(pieces, frozenset(), frozenset())
    return Output(request_for((0,), **options), texts, parser or PlainText(), echo)


def events_of(output: Output, *tokens: int, end: str | None = None) -> list[OutputEvent]:
    """The events of a step with these tokens."""
    return output.read([StepOutput(0, 0.0, tokens=tokens, end=end)])


def run_of(engine: AnyEngine, requests: Sequence[GenerationRequest]) -> GenerationRun:
    """A run whose events have the tokens and, beside them, their text."""
    outputs = [Output(request, engine.texts, PlainText()) for request in requests]
    model = cast(Model, SimpleNamespace(name="m", engine=engine))
    return GenerationRun(model, outputs, "id-", n_each=len(requests), prompt_field="prompt")


class Generation:
    """An iterator of the items of a run with one sequence. Leaving the `with` cancels it."""

    def __init__(self, run: GenerationRun) -> None:
        self.run = run
        self._items: list[OutputEvent] = []
        self._error: Exception | None = None

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *exception: object) -> None:
        self.cancel()

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        self.wait(math.inf)
        error, self._error = self._error, None
        if error is not None:
            raise error
        if not self._items:
            raise StopIteration
        item = self._items.pop(0)
        if isinstance(item, OutputEnd):
            return Finish(item.reason, item.stop, item.last, self.run.usage())
        assert isinstance(item, (PromptProgress, SampledTokens))
        return item

    def wait(self, timeout_s: float) -> bool:
        """Whether there is an item or an error within the timeout."""
        ends_at = time.monotonic() + timeout_s
        try:
            while not self._items and self.run.is_running:
                events = self.run.take(min(timeout_s, DEADLINE_S))
                self._items = [event for _, event in events if not isinstance(event, ContentDelta)]
                if time.monotonic() >= ends_at:
                    break
        except (ApiError, Cancelled) as error:
            self._error = error
        return bool(self._items or self._error)

    def cancel(self) -> None:
        self.run.cancel()


def submit(engine: AnyEngine, request: GenerationRequest) -> Generation:
    return Generation(run_of(engine, [request]))


def text_of(items: Iterable[object]) -> str:
    pieces = (token.piece for item in items if isinstance(item, SampledTokens) for token in item.tokens)
    return b"".join(pieces).decode("utf-8", "replace")


def read(generation: Generation) -> tuple[str, Finish]:
    """The text and the finish of a generation. Fails unless the last item is the only Finish."""
    items = list(generation)
    assert all(isinstance(item, SampledTokens) for item in items[:-1])
    assert isinstance(items[-1], Finish)
    return text_of(items), items[-1]


def step_until_idle(engine: Engine) -> int:
    n_steps = 0
    while engine.step():
        n_steps += 1
        assert n_steps < 10_000
    return n_steps


def complete(engine: Engine, request: GenerationRequest) -> tuple[str, Finish]:
    """Step the engine until a request has ended; returns its text and its finish."""
    generation = submit(engine, request)
    step_until_idle(engine)
    return read(generation)


@contextmanager
def stepped(backend: FakeBackend, **options: Any) -> Iterator[Engine]:
    """An engine that is stepped by hand. At the end it must have released everything."""
    with Engine(backend, **options) as engine:
        yield engine
        stats = engine.stats()
        is_idle = not engine._open and engine.failure is None
        assert not is_idle or (stats.n_running, stats.n_waiting, stats.n_cells_active) == (0, 0, 0)
    assert backend.is_closed


def started(backend: FakeBackend, **options: Any) -> Engine:
    """An engine with its thread."""
    engine, has_started = Engine(backend, **options), threading.Event()
    threading.Thread(target=engine.run, args=(has_started.set,), name="localchat-engine").start()
    assert has_started.wait(DEADLINE_S)
    return engine


@contextmanager
def running(backend: FakeBackend, **options: Any) -> Iterator[Engine]:
    with started(backend, **options) as engine:
        yield engine
    assert backend.is_closed
