"""Engines on fake backends, stepped by hand or with their thread. At the end they must have released everything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from localchat.serving.engine import Delta, Engine, Finish, GenerationRequest

from .fakes import FakeBackend
from .generations import Generation, request_for, submit

DEADLINE_S = 20


def request(text: str = "hello", **options: Any) -> GenerationRequest:
    return request_for(tuple(text.encode()), **options)


def text_of(items: Iterable[object]) -> str:
    pieces = (token.piece for item in items if isinstance(item, Delta) for token in item.tokens)
    return b"".join(pieces).decode("utf-8", "replace")


def read(generation: Generation) -> tuple[str, Finish]:
    """The text and the finish of a generation. Fails unless the last item is the only Finish."""
    items = list(generation)
    assert all(isinstance(item, Delta) for item in items[:-1])
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
    with Engine(backend, **options) as engine:
        yield engine
    assert_left_clean(engine, backend)


@contextmanager
def running(backend: FakeBackend, **options: Any) -> Iterator[Engine]:
    with Engine(backend, **options).start() as engine:
        yield engine
    assert_left_clean(engine, backend)


def assert_left_clean(engine: Engine, backend: FakeBackend) -> None:
    assert backend.is_closed
    assert backend.n_samplers == 0
    stats = engine.stats()
    assert (stats.n_running, stats.n_waiting, stats.n_cells_active) == (0, 0, 0)


class ScoringBackend(FakeBackend):
    """The log probability of a token is minus the number of tokens before it."""

    def logprobs(self, row: int, token: int, n_top: int) -> tuple[float, list[tuple[int, float]]]:
        known = self._outputs[row]
        return -float(len(known)), [(known[-1], -0.25)][:n_top]
