"""Engines on fake backends, stepped by hand or with their thread, and runs with one sequence, read item by item."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, NamedTuple, Union

from localchat.serving.core.errors import ApiError
from localchat.serving.core.events import OutputEnd, OutputToken, PromptProgress, SampledTokens, Usage
from localchat.serving.core.params import GenerationParams
from localchat.serving.engine.engine import Engine
from localchat.serving.engine.run import RequestRun, Result
from localchat.serving.engine.values import Cancelled, GenerationRequest

from .fakes import FakeBackend

DEADLINE_S = 20
_PARAMS = {field.name for field in fields(GenerationParams)} - {"sampling"}


def request_for(prompt: tuple[int, ...], **options: Any) -> GenerationRequest:
    """A request with fields of GenerationRequest and of GenerationParams, by their names."""
    params = {name: options.pop(name) for name in list(options) if name in _PARAMS}
    return GenerationRequest(prompt, GenerationParams(**params), **options)


def request(text: str = "hello", **options: Any) -> GenerationRequest:
    return request_for(tuple(text.encode()), **options)


class Finish(NamedTuple):
    """The end of a generation, with its usage."""

    reason: str
    stop: str | int | None
    last: OutputToken | None
    usage: Usage


Item = Union[PromptProgress, SampledTokens, Finish]


class Generation:
    """An iterator of the items of a run with one sequence. Leaving the `with` cancels it."""

    def __init__(self, run: RequestRun) -> None:
        self.run = run
        self._items: list[Result] = []
        self._error: Exception | None = None
        self._has_failed = False

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *exception: object) -> None:
        self.cancel()

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        self.wait(None)
        error, self._error = self._error, None
        if error is not None:
            raise error
        if not self._items:
            raise StopIteration
        item = self._items.pop(0)
        return Finish(item.reason, item.stop, item.last, self.run.usage(0)) if isinstance(item, OutputEnd) else item

    def wait(self, timeout_s: float | None) -> bool:
        """Whether there is an item or an error within the timeout."""
        if not self._items and not self._has_failed:
            try:
                self._items = [item for _, item in self.run.take(timeout_s)]
            except (ApiError, Cancelled) as error:
                self._error, self._has_failed = error, True
        return bool(self._items or self._error)

    def cancel(self) -> None:
        self.run.cancel()

    def prompt_tokens(self) -> tuple[OutputToken, ...]:
        return self.run.prompt_tokens()


def submit(engine: Engine, request: GenerationRequest) -> Generation:
    return Generation(engine.submit([request]))


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
        assert_left_clean(engine)
    assert backend.is_closed


@contextmanager
def running(backend: FakeBackend, **options: Any) -> Iterator[Engine]:
    """An engine with its thread."""
    with Engine(backend, **options).start() as engine:
        yield engine
    assert backend.is_closed


def assert_left_clean(engine: Engine) -> None:
    stats = engine.stats()
    is_idle = not engine._open and engine.failure is None
    assert not is_idle or (stats.n_running, stats.n_waiting, stats.n_cells_active) == (0, 0, 0)


class ScoringBackend(FakeBackend):
    """The log probability of a token is minus the number of tokens before it."""

    def logprobs(self, row: int, token: int, n_top: int) -> tuple[float, list[tuple[int, float]]]:
        known = self._outputs[row]
        return -float(len(known)), [(known[-1], -0.25)][:n_top]
