"""Metrics of the server for GET /metrics: requests by path and status, durations, and the engine's counters.

Requests are counted here under a lock. The engine counts tokens on its own thread without a lock.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

from ..chat.service import Service
from ..core import errors
from ..core.server_state import Metric, Series, counter, gauge, histogram
from ..engine import AnyEngine, Histogram, HistogramValues

_DURATION_BOUNDS_S = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Metrics:
    """Counts of ended requests, and a histogram of their durations."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str]] = Counter()
        self._duration_s = Histogram(_DURATION_BOUNDS_S)

    def count(self, path: str, status: int | None, seconds: float) -> None:
        """Count an ended request. `path` must come from a bounded set, since each gets a time series of its own."""
        with self._lock:
            self._requests[path, str(status or 0)] += 1
            self._duration_s.add(seconds)

    def of_requests(self) -> Iterator[Metric]:
        with self._lock:
            requests, duration_s = sorted(self._requests.items()), self._duration_s.values()
        series = [Series(n, (("path", path), ("status", status))) for (path, status), n in requests]
        yield counter("requests_total", "Requests that have ended; status 499 if the client disconnected.", *series)
        yield _histogram(
            "request_duration_seconds", "Time from the head of a request to the end of its response.", duration_s
        )


def up(service: Service) -> Metric:
    try:
        service.model()
        value = 1
    except errors.ApiError:
        value = 0
    return gauge("up", "1 while requests are served; 0 while the model loads and after its engine has failed.", value)


def of_engine(engine: AnyEngine) -> Iterator[Metric]:
    stats = engine.stats()
    yield gauge("requests_running", "Sequences that are being computed.", stats.n_running)
    yield gauge("requests_waiting", "Sequences in the queue.", stats.n_waiting)
    yield gauge("slots", "Sequences that can be computed at once.", engine.facts.n_parallel)
    yield gauge("kv_cache_cells", "Capacity of the KV cache in tokens.", engine.facts.n_cells)
    yield gauge("kv_cache_cells_used", "Tokens in the KV cache of running sequences.", stats.n_cells_active)
    yield gauge("kv_cache_cells_idle", "Tokens in the KV cache of idle prefixes.", stats.n_cells_idle)
    for name, help, value in (
        ("tokens_computed_total", "Tokens computed, of prompts and of completions.", stats.counts.n_computed),
        ("tokens_generated_total", "Tokens of completions.", stats.counts.n_sampled),
        ("tokens_drafted_total", "Draft tokens of speculative decoding.", stats.counts.n_drafted),
        ("drafts_accepted_total", "Draft tokens that were accepted.", stats.counts.n_draft_accepted),
        ("prompt_tokens_cached_total", "Tokens of prompts that were in the KV cache already.", stats.counts.n_cached),
    ):
        yield counter(name, help, Series(value))
    yield _histogram(
        "time_to_first_token_seconds", "Time from the submission of a sequence to its first token.", stats.first_token_s
    )


def _histogram(name: str, help: str, values: HistogramValues) -> Metric:
    return histogram(name, help, bounds=values.bounds, counts=values.counts, n=values.n, total=values.total)
