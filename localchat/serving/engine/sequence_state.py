"""The state of one sequence on the engine: its request, tokens, sampler, and the run that gets its output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .backend import Backend
from .batch import BatchChunk, Sequence
from .end_conditions import EndConditions
from .run import Ended, Item, RequestRun
from .values import GenerationRequest, Progress


@dataclass(eq=False)
class SequenceState:
    """One sequence of a request. All methods run on the engine thread."""

    run: RequestRun
    index: int
    """The index of the sequence in its run."""
    request: GenerationRequest
    sequence: Sequence
    sampler: Any
    """The backend's sampler; the engine frees it when the sequence ends."""
    end_conditions: EndConditions

    def start(self) -> None:
        """Notes the start of the prefill and delivers progress. Call this before each step until the first token."""
        self.run.start(self.index, self.sequence.n_cached or 0)
        self.deliver_progress()

    def deliver(self, item: Item) -> None:
        self.run.deliver(self.index, item)

    def deliver_progress(self) -> None:
        """Delivers how much of the prompt is computed, if the request has `reports_progress`."""
        if self.request.reports_progress:
            sequence = self.sequence
            self.deliver(Progress(sequence.n_computed, sequence.n_prompt, sequence.n_cached or 0))

    def deliver_prompt_logprobs(self, chunk: BatchChunk, backend: Backend) -> None:
        """Adds the log probabilities of prompt tokens. The row of a token gives that of the next one.

        A preempted prompt is computed again; tokens that already have log probabilities are left out.
        """
        tokens, n_top = self.sequence.tokens, self.request.params.prompt_logprobs or 0
        for position, row in enumerate(chunk.scored_rows, self.sequence.n_computed + 1):
            if position > self.sequence.n_scored:
                self.run.add_prompt_logprob(self.index, *backend.logprobs(row, tokens[position], n_top))

    def first_token_s(self) -> float:
        """Seconds from the request to the first token of this sequence."""
        usage = self.run.usage(self.index)
        return usage.queue_s + usage.prompt_s

    def natural_end(self) -> Ended | None:
        """The end of the sequence, if its newest token ends it."""
        return self.end_conditions.check(self.sequence, lambda: self.run.usage(self.index).completion_s)
