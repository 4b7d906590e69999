"""Which tokens run in the next turn: pure bookkeeping of sequences, slots and cells.

Knows tokens, positions, cells and budgets; knows nothing of llama.cpp, threads, clocks or text. There
is no prefill or decode phase: a sequence has tokens known and tokens computed, and each turn it
catches up. A turn is `schedule()`, then decoding the batch elsewhere, then `update()`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Optional


class Sequence:
    """One generation as the scheduler sees it.

    `tokens` are the tokens known (the prompt, then what was drawn), of which the first `n_computed`
    have cells in `slot`. `max_tokens` bounds the prompt and the drawn tokens together.
    """

    def __init__(self, id: int, prompt: list[int], max_tokens: int):
        self.id = id
        self.tokens = prompt
        self.max_tokens = max_tokens
        self.n_prompt = len(prompt)
        self.n_computed = 0
        self.slot: Optional[int] = None

    @property
    def n_missing(self) -> int:
        """Tokens known and not yet computed; 1 when only the token drawn last is missing."""
        return len(self.tokens) - self.n_computed

    @property
    def is_full(self) -> bool:
        return len(self.tokens) >= self.max_tokens


@dataclass(frozen=True)
class Part:
    """A sequence's share of a batch: rows `first` to `first + n_tokens`.

    With `wants_output` the last of these rows is the sequence's newest token, whose logits give the
    next one.
    """

    sequence: Sequence
    slot: int
    first: int
    n_tokens: int
    wants_output: bool

    @property
    def output_row(self) -> int:
        return self.first + self.n_tokens - 1

    def tokens(self) -> list[int]:
        start = self.sequence.n_computed
        return self.sequence.tokens[start : start + self.n_tokens]


@dataclass(frozen=True)
class Batch:
    """What one turn computes. The slots in `cleared` lose their cells before that."""

    cleared: tuple[int, ...] = ()
    parts: tuple[Part, ...] = ()

    @property
    def n_tokens(self) -> int:
        return sum(part.n_tokens for part in self.parts)

    def outputs(self) -> Iterator[Part]:
        return (part for part in self.parts if part.wants_output)

    def alone(self) -> Iterator[Batch]:
        """The same work as one batch for each sequence."""
        for part in self.parts:
            yield Batch(parts=(Part(part.sequence, part.slot, 0, part.n_tokens, part.wants_output),))


@dataclass
class Scheduler:
    """Sequences in order of arrival over `n_slots` slots that share `n_cells` cells.

    `n_batch` bounds the tokens of one turn. The rule that keeps everything within its room: the
    tokens known of all running sequences together never exceed the cells, so whatever is running can
    always be computed. What runs is always older than what waits.
    """

    n_cells: int
    n_slots: int
    n_batch: int
    running: list[Sequence] = field(default_factory=list)
    waiting: deque[Sequence] = field(default_factory=deque)

    def __post_init__(self) -> None:
        if not 0 < self.n_slots <= self.n_batch:
            raise ValueError(f"a batch of {self.n_batch} tokens cannot serve {self.n_slots} slots each turn")
        self._n_usable = self.n_cells
        self._free_slots = list(range(self.n_slots - 1, -1, -1))
        self._to_clear: list[int] = []

    def add(self, sequence: Sequence) -> None:
        """Queues a sequence.

        Raises:
            ValueError: it could not run even alone (its tokens are more than the cells).
        """
        if not 0 < sequence.n_prompt < sequence.max_tokens <= self.n_cells:
            raise ValueError(
                f"a sequence of {sequence.n_prompt} prompt tokens and at most {sequence.max_tokens} in all "
                f"does not fit {self.n_cells} cells"
            )
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forgets a sequence, running or waiting, and gives its slot and cells back."""
        if sequence.slot is None:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
            self._release(sequence)

    def schedule(self) -> Batch:
        """The next turn: first the newest token of every running sequence, then as much of the prompts as fits."""
        while len(self.running) > 1 and self._n_known > self._n_usable:
            self._preempt_newest()
        self._admit()
        cleared, self._to_clear = tuple(self._to_clear), []
        return Batch(cleared, tuple(self._parts()))

    def update(self, batch: Batch, drawn: list[int]) -> None:
        """Enters what a decoded batch computed, and the tokens drawn for `batch.outputs()`, in that order."""
        for part in batch.parts:
            part.sequence.n_computed += part.n_tokens
        for part, token in zip(batch.outputs(), drawn):
            part.sequence.tokens.append(token)

    def shrink(self, batch: Batch) -> bool:
        """Learns that a batch found no room, so that the memory holds less than was said.

        From now on less is planned with, and the newest sequence gives way. False if only one is
        running, which then can never fit.
        """
        if len(self.running) == 1:
            return False
        self._n_usable = min(self._n_usable, self.n_cells_used + batch.n_tokens - 1)
        self._preempt_newest()
        return True

    @property
    def n_cells_used(self) -> int:
        return sum(sequence.n_computed for sequence in self.running)

    @property
    def _n_known(self) -> int:
        return sum(len(sequence.tokens) for sequence in self.running)

    def _admit(self) -> None:
        # A newcomer has to leave one cell for the next token of everybody: less, and it would be
        # preempted in the next turn. The queue is first come, first served, so nobody starves.
        while self.waiting and self._free_slots:
            sequence = self.waiting[0]
            room = self._n_usable - self._n_known - len(self.running)
            if self.running and len(sequence.tokens) + 1 > room:
                return
            self.waiting.popleft()
            sequence.slot = self._free_slots.pop()
            self.running.append(sequence)

    def _parts(self) -> Iterator[Part]:
        first, budget = 0, self.n_batch
        # The sort is stable: sequences that only miss their newest token first, each group by age.
        for sequence in sorted(self.running, key=lambda sequence: sequence.n_missing > 1):
            n_tokens = min(sequence.n_missing, budget)
            if n_tokens == 0:
                return
            assert sequence.slot is not None
            yield Part(sequence, sequence.slot, first, n_tokens, n_tokens == sequence.n_missing)
            first, budget = first + n_tokens, budget - n_tokens

    def _preempt_newest(self) -> None:
        # What it had computed is lost and will be computed again; what it has said stays said.
        sequence = self.running.pop()
        self._release(sequence)
        self.waiting.appendleft(sequence)

    def _release(self, sequence: Sequence) -> None:
        assert sequence.slot is not None
        self._to_clear.append(sequence.slot)
        self._free_slots.append(sequence.slot)
        sequence.slot, sequence.n_computed = None, 0
