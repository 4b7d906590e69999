"""What the server has done, counted: requests by path and status, and how long they took.

The engine counts tokens itself, without a lock on its thread; here a lock is taken once a request.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

from ..engine import Engine, Histogram, HistogramValues
from ..generation.service import Service
from ..protocol import errors
from ..protocol.status import Metric, Series, counter, gauge, histogram

_DURATION_BOUNDS_S = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Metrics:
    """Counts requests as they end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str]] = Counter()
        self._duration_s = Histogram(_DURATION_BOUNDS_S)

    def count(self, path: str, status: int | None, seconds: float) -> None:
        """A request has ended. `path` must be one of few: each gets a number of its own for ever."""
        with self._lock:
            self._requests[path, str(status or 0)] += 1
            self._duration_s.add(seconds)

    def of_requests(self) -> Iterator[Metric]:
        with self._lock:
            requests, duration_s = sorted(self._requests.items()), self._duration_s.values()
        series = [Series(n, (("path", path), ("status", status))) for (path, status), n in requests]
        yield counter("requests_total", "Requests that have ended, 499 where the client left.", *series)
        yield _histogram("request_duration_seconds", "Time from a request's head to the end of its answer.", duration_s)


def up(service: Service) -> Metric:
    try:
        service.model()
        value = 1
    except errors.ApiError:
        value = 0
    return gauge("up", "1 while requests are served; 0 while the model loads and after its engine has failed.", value)


def of_engine(engine: Engine) -> Iterator[Metric]:
    stats = engine.stats()
    yield gauge("requests_running", "Generations that are being computed.", stats.n_running)
    yield gauge("requests_waiting", "Generations in the queue.", stats.n_waiting)
    yield gauge("slots", "Generations that can be computed at once.", engine.facts.n_slots)
    yield gauge("cells", "Tokens that the context's memory holds.", engine.facts.n_cells)
    yield gauge("cells_used", "Tokens in it of running generations.", stats.n_cells_used)
    yield gauge("cells_resting", "Tokens in it that are kept in case they come again.", stats.n_cells_resting)
    for name, help, value in (
        ("tokens_computed_total", "Tokens computed, of prompts and of answers.", stats.n_tokens_computed),
        ("tokens_drawn_total", "Tokens of answers.", stats.n_tokens_drawn),
        ("tokens_drafted_total", "Tokens of answers that were guessed.", stats.n_tokens_drafted),
        ("drafts_accepted_total", "Guessed tokens that were right.", stats.n_drafts_accepted),
        ("prompt_tokens_cached_total", "Tokens of prompts that were in the memory already.", stats.n_tokens_cached),
    ):
        yield counter(name, help, Series(value))
    yield _histogram(
        "time_to_first_token_seconds", "Time from a generation's start to its first token.", stats.first_token_s
    )


def _histogram(name: str, help: str, values: HistogramValues) -> Metric:
    return histogram(name, help, bounds=values.bounds, counts=values.counts, n=values.n, total=values.total)
