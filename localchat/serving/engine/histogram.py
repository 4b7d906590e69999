"""Histograms of latencies: how many values are at most each of some bounds. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


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

    def __init__(self, bounds: Sequence[float]):
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def values(self) -> HistogramValues:
        *counts, n = accumulate(self._counts)
        return HistogramValues(self._bounds, tuple(counts), n, self._total)
