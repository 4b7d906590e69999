"""Chooses the drafter for each sequence: prompt lookup, then the draft model."""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

from .batch import Sequence
from .drafting import Drafter
from .step_timer import StepTimer

# The weight of a new measurement in the average time of a draft token.
_WEIGHT_OF_NEW = 0.1


@dataclass(eq=False)
class _Source:
    drafter: Drafter
    token_s: float = 0.0
    """Seconds to draft a token: a moving average."""

    def note_time(self, n_drafted: int, seconds: float) -> None:
        if n_drafted:
            self.token_s += _WEIGHT_OF_NEW * (seconds / n_drafted - self.token_s)


class DraftSources:
    """Drafters in order: a later one drafts only for the sequences that have no draft yet."""

    def __init__(self, drafters: Many[Drafter], timer: StepTimer):
        self._sources = [_Source(drafter) for drafter in drafters]
        self._timer = timer
        # By sequence id: the last source that was called. If the sequence has a draft, this source made it.
        self._last: dict[int, _Source] = {}

    def draft(self, running: list[Sequence], n_tokens: int) -> None:
        """Gives the sequences drafts of at most `n_tokens` tokens."""
        if not n_tokens:
            return
        for source in self._sources:
            without = [sequence for sequence in running if not sequence.draft]
            started_at = self._timer.clock()
            source.drafter.draft(without, n_tokens, self._timer.draft_token_cost(running, source.token_s))
            source.note_time(sum(len(sequence.draft) for sequence in without), self._timer.clock() - started_at)
            for sequence in without:
                self._last[sequence.id] = source

    def note(self, sequence: Sequence, running: list[Sequence], n_drafted: int, n_accepted: int) -> None:
        """Reports to the drafter how many draft tokens were accepted. The sequence already has the sampled tokens."""
        source = self._last[sequence.id]
        cost = self._timer.draft_token_cost(running, source.token_s)
        source.drafter.note(sequence, n_drafted, n_accepted, cost)

    def forget(self, sequence: Sequence) -> None:
        """Drops the state of a sequence that has ended."""
        self._last.pop(sequence.id, None)
        for source in self._sources:
            source.drafter.forget(sequence)

    def close(self) -> None:
        """Frees the drafters, after the last step."""
        for source in self._sources:
            source.drafter.close()
