"""The scheduler: which sequences run, and which of them have the next step.

There are no prefill and decode phases: each step computes some of the known tokens of a sequence that are not computed
yet. What a step computes of the running sequences is planned by the KV cache, whose layout decides what llama.cpp
computes well together.

For each step the engine calls `schedule()`, decodes the batch, and calls `update()`, or `preempt_newest()` if there
were no cells for it. Draft tokens are computed after the newest token as if they were known; rejected ones are then
removed from the KV cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .adapter_turns import AdapterTurns
from .batch import Batch, CacheLimits
from .kv_cache import KVCache, Match
from .sequence import Sequence

# A sequence waits for another one to compute their common prefix only if this prefix has more tokens. With a chat
# template, all prompts have a short prefix in common.
_MIN_AWAITED = 16


class Scheduler:
    """Sequences in order of arrival.

    A waiting sequence starts if its known tokens fit into the cells beside those of the running ones. If their outputs
    fill the cells later, the newest sequence is preempted, and none starts until another one has ended.
    """

    def __init__(
        self, limits: CacheLimits, cache: KVCache, encode: Callable[[Iterable[Any]], None] = lambda media: None
    ):
        """`encode` is called with the images and sounds that a waiting sequence needs before it can start."""
        self._limits = limits
        self._cache = cache
        self._encode = encode
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        # Whether a sequence was preempted for lack of cells, and none has ended since.
        self._is_full = False
        self._turns = AdapterTurns()

    def add(self, *sequences: Sequence) -> None:
        """Queue sequences, each with a prompt and at most as many tokens as there are cells."""
        self.waiting.extend(sequences)

    def remove(self, sequence: Sequence, *, keep: bool = True) -> None:
        """End a sequence, running or waiting. With `keep` its tokens stay as an idle prefix."""
        if sequence.slot is None:
            self.waiting.remove(sequence)
        else:
            self._is_full = False
            self.running.remove(sequence)
            self._cache.release(sequence, keep=keep)

    def waiting_for(self, medium: Any) -> list[Sequence]:
        """The waiting sequences that can only start when an image or a sound is encoded: no cached prefix has it."""
        return [s for s in self.waiting if medium in _missing_media(s, self._cache.find(s))]

    def schedule(self) -> Batch:
        """Plan the next step; its batch has no chunks if nothing can run."""
        self._admit()
        self._wait_for_media()
        sequences = self._turns.next_sequences(self.running)
        batch = self._cache.plan(sequences, others_wait=self._turns.others_wait)
        self._turns.count(batch)
        return batch

    def update(self, batch: Batch, sampled: list[list[int]]) -> None:
        """Update the sequences and the KV cache after a decoded batch.

        `sampled` has the tokens for each of `batch.outputs()`.
        """
        sampled_of_outputs = iter(sampled)
        for chunk in batch.chunks:
            tokens = next(sampled_of_outputs) if chunk.wants_output else []
            # Before the sequence knows the sampled tokens: the rows belong to the texts that it had in the step.
            self._cache.advance(chunk, chunk.n_tokens - len(chunk.draft) + chunk.n_accepted(tokens))
            chunk.sequence.tokens.extend(tokens)

    def preempt_newest(self) -> Sequence | None:
        """Preempt the newest sequence, for a batch that lacks cells although no idle prefix is left.

        If only one sequence runs, no cells can be freed for it: returns that sequence, which must be ended.
        """
        newest = self.running[-1]
        if len(self.running) == 1:
            return newest
        self._preempt(newest)
        self._is_full = True
        return None

    def _preempt(self, sequence: Sequence) -> None:
        """Let a running sequence wait again. Its tokens stay as an idle prefix, whose cells others may get."""
        self.running.remove(sequence)
        self._cache.release(sequence, keep=True)
        self.waiting = sorted([*self.waiting, sequence], key=lambda sequence: sequence.id)

    def _wait_for_media(self) -> None:
        """Preempt the sequences that have lost the cells of an image or a sound that is not encoded any more.

        They lose them if cells cannot be copied or truncated.
        """
        for sequence in [sequence for sequence in self.running if sequence.spans]:
            missing = sequence.missing_media(sequence.n_computed)
            if missing:
                self._preempt(sequence)
                self._is_full = False
                self._encode(missing)

    def _admit(self) -> None:
        """Start waiting sequences in order while they fit.

        Those whose prefix is being computed, or whose media are encoded, are left waiting.
        """
        n_encoding = 0
        for sequence in list(self.waiting):
            if len(self.running) == self._limits.n_parallel or self._is_full:
                return
            match = self._cache.find(sequence)
            if self._is_being_computed(sequence, match):
                continue
            missing = _missing_media(sequence, match)
            if missing:
                if n_encoding < self._limits.n_parallel:  # Each keeps what is encoded for it.
                    self._encode(missing)
                n_encoding += 1
            elif self._fits(sequence, match):
                self._start(sequence, match)
            else:
                return

    def _fits(self, sequence: Sequence, match: Match | None) -> bool:
        """Whether the cells hold the known tokens of a sequence beside those of the running ones.

        Each needs a cell for its next token, too, or one of them would be preempted in the next step.
        """
        n_running = sum(len(other.tokens) - other.n_shared + 1 for other in self.running)
        n_new = len(sequence.tokens) - (match.n_shared if match else 0) + 1
        return not self.running or n_running + n_new <= self._limits.n_cells

    def _start(self, sequence: Sequence, match: Match | None) -> None:
        self.waiting.remove(sequence)
        self._cache.acquire(sequence, match)
        self.running = sorted([*self.running, sequence], key=lambda sequence: sequence.id)
        if sequence.n_cached is None:
            sequence.n_cached = sequence.n_computed

    def _is_being_computed(self, sequence: Sequence, match: Match | None) -> bool:
        """Whether an older sequence is computing a prefix of this one that is longer than what can be reused now."""
        n_known = 0 if match is None else match.length
        return any(
            other.n_missing > 1
            and other.id < sequence.id
            and self._cache.n_awaited(other, sequence) > max(n_known, _MIN_AWAITED)
            for other in self.running
        )


def _missing_media(sequence: Sequence, match: Match | None) -> list[Any]:
    """The images and sounds behind a cached prefix that are not encoded."""
    return sequence.missing_media(match.length if match else 0)
