"""What a step computes: sequences, their chunks of a batch, and the limits of all. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .step_cost import StepSize, attended

# Of shorter prompts no snapshot is taken: they are computed as fast.
MIN_CHECKPOINT = 32


class Sequence:
    """One generation as the scheduler sees it.

    `tokens` are the tokens known (the prompt, then what was drawn), of which the first `n_computed`
    have cells in `slot`. `max_tokens` bounds the prompt and the drawn tokens together. `n_cached` of the
    prompt were there already when it first ran. `draft` is a guess for the next turn alone. With `scores_prompt`
    the logits of all its prompt are looked at, of which `n_scored` have been.
    """

    def __init__(self, id: int, prompt: list[int], max_tokens: int, *, scores_prompt: bool = False):
        self.id = id
        self.tokens = prompt
        self.max_tokens = max_tokens
        self.n_prompt = len(prompt)
        self.n_computed = 0
        self.n_cached: int | None = None
        self.slot: int | None = None
        self.draft: list[int] = []
        # Whether it gives up its slot while others wait for one.
        self.is_suspended = False
        # Whether snapshots have been searched for a prefix of it.
        self.has_searched_snapshots = False
        self.scores_prompt = scores_prompt
        self.n_scored = 0

    @property
    def is_to_score(self) -> bool:
        """Whether tokens of the prompt are left to be scored; those of its last one give the first of the answer."""
        return self.scores_prompt and self.n_scored < self.n_prompt - 1

    @property
    def reusable_tokens(self) -> list[int]:
        """The tokens whose cells may be reused. The last one is always computed, since its logits are needed."""
        return self.tokens[: self.n_scored] if self.is_to_score else self.tokens[:-1]

    @property
    def n_missing(self) -> int:
        """Tokens known and not yet computed; 1 when only the token drawn last is missing."""
        return len(self.tokens) - self.n_computed

    @property
    def n_sampled(self) -> int:
        return len(self.tokens) - self.n_prompt

    @property
    def is_at_checkpoint(self) -> bool:
        """Whether all of the prompt is computed that others may have in common with it: all but its last token."""
        return self.n_computed == self.n_prompt - 1 >= MIN_CHECKPOINT

    @property
    def is_full(self) -> bool:
        return len(self.tokens) >= self.max_tokens


@dataclass(frozen=True)
class Part:
    """A sequence's share of a batch: rows `first` to `first + n_tokens`.

    With `wants_output` they end with the sequence's newest token, whose logits give the next one, and
    then with its draft, whose logits give the one after each token of it. With `is_scored` the logits of the
    others are wanted too; then there is no draft.
    """

    sequence: Sequence
    slot: int
    first: int
    n_tokens: int
    wants_output: bool
    draft: tuple[int, ...] = ()
    is_scored: bool = False

    @property
    def output_rows(self) -> range:
        end = self.first + self.n_tokens
        return range(end - 1 - len(self.draft), end) if self.wants_output else range(0)

    @property
    def scored_rows(self) -> range:
        return range(self.first, self.first + self.n_tokens - self.wants_output) if self.is_scored else range(0)

    @property
    def rows_with_logits(self) -> tuple[int, ...]:
        return (*self.scored_rows, *self.output_rows)

    def tokens(self) -> list[int]:
        start = self.sequence.n_computed
        return self.sequence.tokens[start : start + self.n_tokens - len(self.draft)] + list(self.draft)


@dataclass(frozen=True)
class Batch:
    """What one step computes."""

    parts: tuple[Part, ...] = ()

    @property
    def n_tokens(self) -> int:
        return sum(part.n_tokens for part in self.parts)

    @property
    def size(self) -> StepSize:
        """What the step has to compute, before `update` changes the sequences."""
        n_outputs = sum(len(part.rows_with_logits) for part in self.parts)
        n_attended = sum(attended(part.sequence.n_computed, part.n_tokens) for part in self.parts)
        return StepSize(n_outputs, self.n_tokens - n_outputs, n_attended)

    def outputs(self) -> Iterator[Part]:
        return (part for part in self.parts if part.wants_output)

    def alone(self) -> Iterator[Batch]:
        """The same work as one batch for each sequence, without guesses."""
        for part in self.parts:
            yield Batch(parts=(replace(part, first=0, n_tokens=part.n_tokens - len(part.draft), draft=()),))


@dataclass(frozen=True)
class Room:
    """What there is to schedule with.

    `n_running` sequences run at once; `n_slots` slots, of which there must be more, hold them and the
    prefixes that rest; all share `n_cells` cells. `n_batch` bounds the tokens of a turn, `n_drafted` those
    that are guesses, 0 where none are wanted. A memory that cannot be cut (recurrent models) shares no
    parts, only a whole resting prefix is of use there; and what was guessed could not be taken back. A
    prompt is read there up to its last token first, so that a copy can be made of what others may begin with.
    Without `can_copy` a copy of a slot does not have all that the slot holds. `n_outputs` bounds the rows with
    logits of a step. With `is_unified` all slots share the cells; otherwise each has as many as a request may use,
    a prefix is shared by a copy, and what a sequence computes must not depend on what runs beside it.
    """

    n_cells: int
    n_running: int
    n_slots: int
    n_batch: int
    can_cut: bool = True
    n_drafted: int = 0
    can_copy: bool = True
    is_unified: bool = True
    n_outputs: int = 0

    @property
    def n_scored(self) -> int:
        """Tokens of prompts that a step may score: rows of logits beside those of the running sequences."""
        return (self.n_outputs or self.n_slots) - self.n_running

    def __post_init__(self) -> None:
        if not 0 < self.n_running < self.n_slots or self.n_running > self.n_batch:
            raise ValueError(
                f"{self.n_running} sequences at once need more slots than that and as many rows; "
                f"there are {self.n_slots} slots and batches of {self.n_batch} tokens"
            )
        if self.n_drafted and (not self.can_cut or self.n_running + self.n_drafted > self.n_batch):
            raise ValueError(
                f"{self.n_drafted} guesses a turn need a memory that can be cut and as many rows beside those of "
                f"{self.n_running} sequences; there are batches of {self.n_batch} tokens"
            )
