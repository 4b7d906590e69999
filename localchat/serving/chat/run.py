"""A text generation request in flight: submits its sequences to the engine, and returns their output events."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from ..core import errors
from ..core.events import OutputEvent, ResponseHead
from ..core.request import TextRequest
from ..core.usage import Usage
from ..engine import Cancelled, EngineError, Finish, GenerationRequest
from .errors import api_error, wire_errors
from .model import Model
from .output import Output


@dataclass(frozen=True)
class Prepared:
    """The result of a prompt builder: the sequences for the engine, and the converters of their output."""

    sequences: Sequence[GenerationRequest]
    """All sequences of the first prompt, then all of the next one."""
    outputs: Sequence[Output]
    """One for each sequence."""
    per_prompt: int
    """The number of sequences for each prompt."""
    prompt_field: str
    """The field of the request that has the prompt, for error messages."""
    count_field: str = "n"
    """The field that sets the number of sequences, for error messages."""


Request = TypeVar("Request", bound=TextRequest)
PromptBuilder = Callable[[Model, Request], Prepared]
"""Prepares a request for a model; raises ApiError."""


class GenerationRun:
    """A request in flight, on the HTTP thread: makes output events of the results of the engine's `RequestRun`.

    `InFlight` has all requests in flight and stops them at shutdown. Leaving the `with` block cancels the sequences
    that are still running.
    """

    def __init__(self, model: Model, prepared: Prepared, id_prefix: str) -> None:
        """Submit the sequences.

        Raises:
            ApiError: The request cannot run; none of its sequences is in the engine.
        """
        n, max_open = len(prepared.sequences), model.engine.max_open
        if n > max_open:
            raise errors.BadRequest(
                f"'{prepared.count_field}' requests {n} sequences, and this server accepts {max_open} at once, running "
                "or queued: request fewer, or start the server with a larger --queue",
                prepared.count_field,
            )
        prompts = tuple(sequence.prompt for sequence in prepared.sequences[:: prepared.per_prompt])
        sampling = prepared.sequences[0].sampling
        self.head = ResponseHead(id_prefix + uuid.uuid4().hex, int(time.time()), model.name, prompts, sampling)
        self._engine = model.engine
        self._prepared = prepared
        self._is_stopped = False
        with wire_errors(model.engine, prepared.prompt_field):
            self._run = model.engine.submit(prepared.sequences)

    def __enter__(self) -> GenerationRun:
        return self

    def __exit__(self, *exception: object) -> None:
        self._run.cancel()

    @property
    def is_running(self) -> bool:
        return self._run.is_running

    def take(self, timeout_s: float | None = None) -> list[tuple[int, OutputEvent]]:
        """Wait for output, then return all events of it, each with the index of its sequence.

        The list is empty if the output makes no event yet, or after `timeout_s` seconds without output; None: no
        timeout.

        Raises:
            ApiError: The request failed.
            Cancelled: `cancel` was called.
        """
        try:
            items = self._run.take(timeout_s)
        except EngineError as error:
            if self._is_stopped:
                raise errors.ShuttingDown(errors.SHUTTING_DOWN) from error
            if isinstance(error, Cancelled):
                raise
            raise api_error(error, self._engine, self._prepared.prompt_field) from error
        events: list[tuple[int, OutputEvent]] = []
        for index, item in items:
            output = self._prepared.outputs[index]
            if output.is_over:
                continue
            events += [(index, event) for event in output.read(item, partial(self._run.prompt_tokens, index))]
            if output.is_over and not isinstance(item, Finish):
                # The output has ended before the sequence.
                self._run.end(index)
        return events

    def cancel(self) -> None:
        """End all sequences within one step of the engine. `take` then raises Cancelled. Thread-safe."""
        self._run.cancel()

    def stop(self) -> None:
        """Cancel the request because the server shuts down. `take` then raises ShuttingDown. Thread-safe."""
        self._is_stopped = True
        self.cancel()

    def suspend(self, is_suspended: bool) -> None:
        """Let queued requests take the slots of this one, or continue its sequences. Thread-safe."""
        self._run.suspend(is_suspended)

    def usage(self) -> Usage:
        """The usage so far, over all sequences."""
        outputs = self._prepared.outputs
        usages = [
            replace(self._run.usage(i), n_completion=output.n_completion, n_reasoning=output.n_reasoning)
            for i, output in enumerate(outputs)
        ]
        return Usage.total(usages, self._prepared.per_prompt)

    @property
    def summary(self) -> str:
        """Tokens, speeds and finish reasons, for the log."""
        usage = self.usage()
        counted = Counter(output.finish_reason or "cut" for output in self._prepared.outputs)
        ends = ", ".join(reason if n == 1 else f"{n} {reason}" for reason, n in counted.items())
        return (
            f"in {usage.n_prompt} ({usage.n_cached} cached) at {usage.prompt_rate or 0:.1f}/s, "
            f"out {usage.n_completion} at {usage.completion_rate or 0:.1f}/s, {ends}"
        )


def start(model: Model, request: Request, build: PromptBuilder[Request], id_prefix: str) -> GenerationRun:
    """Build the prompt of a request and submit its sequences.

    Raises:
        ApiError: The request cannot run.
    """
    with wire_errors(model.engine, "prompt"):
        prepared = build(model, request)
    return GenerationRun(model, prepared, id_prefix)
