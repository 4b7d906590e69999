"""A request for text in flight: starts its sequences in the engine, and collects the events of all of them.

Errors of the engine get the field of the request here.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ...core import errors
from ...core.events import OutputEvent, ResponseHead, Usage
from ...core.mailbox import Mailbox
from ...engine.values import StepOutput
from ..model import Model
from .output_reader import OutputReader

Events = list[tuple[int, OutputEvent]]
"""Events of a request, each with the index of its sequence."""


class GenerationRun:
    """A request in flight: makes output events of what the engine produces for its sequences.

    Leaving the `with` block ends the sequences that are still running.
    """

    def __init__(
        self,
        model: Model,
        outputs: Sequence[OutputReader],
        id_prefix: str,
        mailbox: Mailbox,
        *,
        n_each: int,
        prompt_field: str,
    ) -> None:
        """Start all sequences or none: `n_each` for each prompt, those of the first one first.

        The output comes through `mailbox`, which belongs to the calling thread. `prompt_field` is the field of the
        request that has the prompt, for errors. Raises ApiError, and what the mailbox raises.
        """
        self.outputs = outputs
        self._n_each = n_each
        self._prompt_field = prompt_field
        self._running = set(range(len(outputs)))  # The indexes of the outputs that have not ended.
        sequences = [output.request for output in outputs]
        with errors.adding_field(prompt_field):
            self._request = model.engine.generate(sequences, mailbox)
            try:
                # The first item is the TokenizedPrompts, all others are StepOutputs.
                prompts, *self._steps = self._request.take()
            except BaseException:
                self._request.drop()
                raise
        for output, n_tokens in zip(outputs, prompts.n_tokens):
            output.n_prompt = n_tokens
        id = id_prefix + uuid.uuid4().hex
        ids = tuple(map(tuple, prompts.tokens[::n_each]))
        self.head = ResponseHead(id, int(time.time()), model.name, ids, sequences[0].sampling)

    def __enter__(self) -> GenerationRun:
        return self

    def __exit__(self, *exception: object) -> None:
        self.drop()

    @property
    def is_running(self) -> bool:
        """Whether `take` may still return or raise something."""
        return bool(self._running)

    def take(self, timeout_s: float | None = None) -> Events:
        """Wait for output, then return all events of it, each with the index of its sequence; none after `timeout_s`.

        If a sequence fails, all end: the error, an ApiError, is raised after the last events. The events may be empty,
        as those of a token that may begin a stop text.
        """
        steps, self._steps = self._steps, list[Any]()
        if not steps:
            try:
                with errors.adding_field(self._prompt_field):
                    steps = self._request.take(timeout_s)
            except BaseException:
                self.drop()
                raise
        by_sequence: dict[int, list[StepOutput]] = {}
        for step in steps:
            by_sequence.setdefault(step.sequence, []).append(step)
        events: Events = []
        for index, new_steps in by_sequence.items():
            if index not in self._running:  # It ended at a stop text.
                continue
            output = self.outputs[index]
            events += ((index, event) for event in output.read(new_steps))
            if output.finish_reason is not None:
                self._running.remove(index)
                if new_steps[-1].end is None:  # The output has ended before the sequence.
                    self._request.drop(index)
        return events

    def drop(self) -> None:
        """End all sequences. They produce nothing more."""
        if self._running:
            self._running.clear()
            self._request.drop()

    def usage(self, index: int | None = None) -> Usage:
        """The usage so far of one sequence; None: over all sequences."""
        if index is not None:
            return self.outputs[index].usage()
        return Usage.total([output.usage() for output in self.outputs], self._n_each)

    @property
    def summary(self) -> str:
        """Tokens, speeds and finish reasons, for the log."""
        usage = self.usage()
        counted = Counter(output.finish_reason or "cut" for output in self.outputs)
        ends = ", ".join(reason if n == 1 else f"{n} {reason}" for reason, n in counted.items())
        prompt_rate, completion_rate = (
            "" if rate is None else f" at {rate:.1f}/s" for rate in (usage.prompt_rate, usage.completion_rate)
        )
        n_in = f"in {usage.n_prompt} ({usage.n_cached} cached){prompt_rate}"
        return f"{n_in}, out {usage.n_completion}{completion_rate}, {ends}"
