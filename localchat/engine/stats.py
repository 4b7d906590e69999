"""Counts of the engine, for /metrics, /slots and the log. The engine thread writes them; any thread reads them."""

from __future__ import annotations

from dataclasses import dataclass

from ..protocol.server_state import SequenceStats
from .batch import Sequence
from .histogram import Histogram, HistogramValues

# Bounds in seconds: from a cached prompt on a GPU to a long prompt on a laptop.
_FIRST_TOKEN_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


@dataclass(frozen=True)
class EngineStats:
    """The state of the engine. It is read without stopping the engine, so the counts may be of two successive steps."""

    n_running: int
    """Sequences that have a slot."""
    n_waiting: int
    """Sequences in the queue, with those whose cached prefix is being read from a file."""
    n_cells_active: int
    """Cells of running sequences."""
    n_cells_idle: int
    """Cells of cached prefixes that no running sequence uses."""
    n_computed: int
    """Tokens decoded since the start, of prompts and of outputs."""
    n_sampled: int
    """Tokens sampled since the start."""
    n_cached: int
    """Prompt tokens that were found in the cache since the start."""
    n_drafted: int
    """Draft tokens computed since the start."""
    n_draft_accepted: int
    """Draft tokens that were accepted since the start."""
    first_token_s: HistogramValues
    """Seconds from a request to its first token."""


def sequence_stats(sequence: Sequence) -> SequenceStats:
    return SequenceStats(
        id=sequence.id,
        n_prompt=sequence.n_prompt,
        n_cached=sequence.n_cached or 0,
        n_computed=sequence.n_computed,
        n_sampled=sequence.n_sampled,
        max_length=sequence.max_length,
    )


class EngineCounters:
    """The counts since the start; EngineStats describes them."""

    def __init__(self) -> None:
        self.n_computed = 0
        self.n_sampled = 0
        self.n_cached = 0
        self.n_drafted = 0
        self.n_draft_accepted = 0
        self._first_token_s = Histogram(_FIRST_TOKEN_BOUNDS_S)

    def add_step(self, n_computed: int, n_sampled: int) -> None:
        self.n_computed += n_computed
        self.n_sampled += n_sampled

    def add_draft(self, n_drafted: int, n_accepted: int) -> None:
        self.n_drafted += n_drafted
        self.n_draft_accepted += n_accepted

    def add_first_token(self, n_cached: int, seconds: float) -> None:
        """Counts a sequence whose first token was sampled `seconds` after the request."""
        self.n_cached += n_cached
        self._first_token_s.add(seconds)

    def stats(self, *, n_running: int, n_waiting: int, n_cells_active: int, n_cells_idle: int) -> EngineStats:
        return EngineStats(
            n_running=n_running,
            n_waiting=n_waiting,
            n_cells_active=n_cells_active,
            n_cells_idle=n_cells_idle,
            n_computed=self.n_computed,
            n_sampled=self.n_sampled,
            n_cached=self.n_cached,
            n_drafted=self.n_drafted,
            n_draft_accepted=self.n_draft_accepted,
            first_token_s=self._first_token_s.values(),
        )
