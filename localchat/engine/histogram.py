"""How often values fell where: counts by upper bounds, for latencies. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class HistogramValues:
    """For each bound how many values were at most that, how many there were at all, and their sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    n: int
    total: float


class Histogram:
    """Counts values. One thread at a time adds, without a lock; any thread reads.

    A reader may see a value counted and not yet summed: figures of two neighbouring moments.
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
