"""Counts of the engine, for /metrics, /slots and the log. The engine thread writes them; any thread reads them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import accumulate

from ..core.server_state import SequenceStats
from .batch import Sequence

# Bounds in seconds: from a cached prompt on a GPU to a long prompt on a laptop.
FIRST_TOKEN_BOUNDS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


@dataclass(frozen=True)
class HistogramValues:
    """The counts of a histogram."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    """For each bound the number of values up to it."""
    n: int
    """The number of all values."""
    total: float
    """The sum of all values."""


class Histogram:
    """Counts values. One thread adds them, without a lock; any thread reads.

    A reader may see a value that is counted and not yet in the sum.
    """

    def __init__(self, bounds: Many[float]):
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def values(self) -> HistogramValues:
        *counts, n = accumulate(self._counts)
        return HistogramValues(self._bounds, tuple(counts), n, self._total)


@dataclass
class EngineCounts:
    """Counts since the start of the engine."""

    n_computed: int = 0
    """Tokens decoded, of prompts and of outputs."""
    n_sampled: int = 0
    """Tokens sampled."""
    n_cached: int = 0
    """Prompt tokens that were found in the cache."""
    n_drafted: int = 0
    """Draft tokens computed."""
    n_draft_accepted: int = 0
    """Draft tokens that were accepted."""


@dataclass(frozen=True)
class EngineStats:
    """The state of the engine. It is read without stopping the engine, so the counts may be of two successive steps."""

    n_running: int
    """Sequences that have a slot."""
    n_waiting: int
    """Sequences in the queue."""
    n_cells_active: int
    """Cells of running sequences."""
    n_cells_idle: int
    """Cells of cached prefixes that no running sequence uses."""
    counts: EngineCounts
    """A copy of the counts."""
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
