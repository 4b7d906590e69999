"""A request for text in flight: submits its sequences to the engine, and returns their output events.

Errors of the engine and of chat templates get the field of the request here.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from ..core import errors
from ..core.events import OutputEnd, OutputEvent, ResponseHead
from ..core.usage import Usage
from ..engine import Cancelled, GenerationRequest
from .model import Model
from .output import Output
from .prompt.sandbox import TemplateError


class GenerationRun:
    """A request in flight, on the HTTP thread: makes output events of the results of the engine's `RequestRun`.

    Leaving the `with` block cancels the sequences that are still running.
    """

    def __init__(
        self,
        model: Model,
        sequences: Sequence[GenerationRequest],
        outputs: Sequence[Output],
        id_prefix: str,
        *,
        n_each: int,
        prompt_field: str,
        count_field: str = "n",
    ) -> None:
        """Submit the sequences.

        Args:
            sequences: All sequences of the first prompt, then all of the next one.
            outputs: The converter of the output of each sequence.
            n_each: The number of sequences for each prompt.
            prompt_field: The field of the request that has the prompt, for error messages.
            count_field: The field that sets the number of sequences, for error messages.

        Raises:
            ApiError: The request cannot run; none of its sequences is in the engine.
        """
        n, max_open = len(sequences), model.engine.max_open
        if n > max_open:
            raise errors.BadRequest(
                f"'{count_field}' requests {n} sequences, and this server accepts {max_open} at once, running or "
                "queued: request fewer, or start the server with a larger --queue",
                count_field,
            )
        prompts = tuple(sequence.prompt for sequence in sequences[::n_each])
        id = id_prefix + uuid.uuid4().hex
        self.head = ResponseHead(id, int(time.time()), model.name, prompts, sequences[0].sampling)
        self._outputs = outputs
        self._n_each = n_each
        self._prompt_field = prompt_field
        self._is_stopped = False
        with wire_errors(prompt_field):
            self._run = model.engine.submit(sequences)

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
        with wire_errors(self._prompt_field, is_stopped=lambda: self._is_stopped):
            items = self._run.take(timeout_s)
        events: list[tuple[int, OutputEvent]] = []
        for index, item in items:
            output = self._outputs[index]
            if output.is_over:
                continue
            events += [(index, event) for event in output.read(item, partial(self._run.prompt_tokens, index))]
            if output.is_over and not isinstance(item, OutputEnd):
                # The output has ended before the sequence.
                self._run.end(index)
        return events

    def cancel(self) -> None:
        """End all sequences within one step of the engine. `take` then raises Cancelled. Thread-safe."""
        self._run.cancel()

    def stop(self) -> None:
        """Cancel the request because the server shuts down. `take` then raises ShuttingDown. Thread-safe."""
        self._is_stopped = True
        self._run.cancel()

    def usage(self) -> Usage:
        """The usage so far, over all sequences."""
        usages = [
            replace(self._run.usage(i), n_completion=output.n_completion, n_reasoning=output.n_reasoning)
            for i, output in enumerate(self._outputs)
        ]
        return Usage.total(usages, self._n_each)

    @property
    def summary(self) -> str:
        """Tokens, speeds and finish reasons, for the log."""
        usage = self.usage()
        counted = Counter(output.finish_reason or "cut" for output in self._outputs)
        ends = ", ".join(reason if n == 1 else f"{n} {reason}" for reason, n in counted.items())
        return (
            f"in {usage.n_prompt} ({usage.n_cached} cached) at {usage.prompt_rate or 0:.1f}/s, "
            f"out {usage.n_completion} at {usage.completion_rate or 0:.1f}/s, {ends}"
        )


def copies(sequence: GenerationRequest, n: int) -> list[GenerationRequest]:
    """`n` sequences of one prompt. Each has the next seed, since equal seeds generate equal texts."""
    sampling = sequence.sampling
    seeds = [None if sampling.seed is None else sampling.seed + i for i in range(1, n)]
    # The first sequence reports the progress of the prompt for all.
    others = (replace(sequence, sampling=replace(sampling, seed=seed), reports_progress=False) for seed in seeds)
    return [sequence, *others]


@contextlib.contextmanager
def wire_errors(prompt_field: str, is_stopped: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Complete errors of the engine and the template, which do not know the fields of requests.

    Args:
        prompt_field: The field of the request that has the prompt, such as "messages".
        is_stopped: Whether a cancelled request was cancelled because the server shuts down.
    """
    try:
        yield
    except Cancelled as error:
        if not is_stopped():
            raise
        raise errors.ShuttingDown(errors.SHUTTING_DOWN) from error
    except TemplateError as error:
        raise errors.BadRequest(str(error), prompt_field) from error
    except errors.BadRequest as error:
        error.param = error.param or prompt_field
        raise
