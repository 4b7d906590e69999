"""Runs with one sequence, read item by item."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from localchat.serving.core.params import GenerationParams
from localchat.serving.engine import (
    Delta,
    Engine,
    EngineError,
    Finish,
    GenerationRequest,
    OutputToken,
    Progress,
    RequestRun,
)

_PARAMS = {field.name for field in fields(GenerationParams)} - {"sampling"}


def request_for(prompt: tuple[int, ...], **options: Any) -> GenerationRequest:
    """A request with fields of GenerationRequest and of GenerationParams, by their names."""
    params = {name: options.pop(name) for name in list(options) if name in _PARAMS}
    return GenerationRequest(prompt, GenerationParams(**params), **options)


class Generation:
    """An iterator of the items of a run with one sequence. Leaving the `with` cancels it."""

    def __init__(self, run: RequestRun) -> None:
        self.run = run
        self._items: list[Progress | Delta | Finish] = []
        self._error: EngineError | None = None
        self._has_failed = False

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *exception: object) -> None:
        self.cancel()

    def __iter__(self) -> Iterator[Progress | Delta | Finish]:
        return self

    def __next__(self) -> Progress | Delta | Finish:
        self.wait(None)
        error, self._error = self._error, None
        if error is not None:
            raise error
        if not self._items:
            raise StopIteration
        return self._items.pop(0)

    def wait(self, timeout_s: float | None) -> bool:
        """Whether there is an item or an error within the timeout."""
        if not self._items and not self._has_failed:
            try:
                self._items = [item for _, item in self.run.take(timeout_s)]
            except EngineError as error:
                self._error, self._has_failed = error, True
        return bool(self._items or self._error)

    def cancel(self) -> None:
        self.run.cancel()

    def prompt_tokens(self) -> tuple[OutputToken, ...]:
        return self.run.prompt_tokens()


def submit(engine: Engine, request: GenerationRequest) -> Generation:
    return Generation(engine.submit([request]))
