"""Metrics of the server for GET /metrics in Prometheus's format: requests, durations, and the engine's counters."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator

from ..chat.service import Service
from ..core import errors
from ..engine.front import AnyEngine
from ..engine.values import Histogram

TYPE = "text/plain; version=0.0.4; charset=utf-8"

_DURATION_BOUNDS_S = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Metrics:
    """Counts of ended requests, and a histogram of their durations."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._duration_s = Histogram(_DURATION_BOUNDS_S)

    def count(self, route: str, status: int | None, seconds: float) -> None:
        """Count an ended request. `route` must come from a bounded set, since each gets a time series of its own."""
        with self._lock:
            self._requests[route, status or 0] += 1
            self._duration_s.add(seconds)

    def text(self, service: Service) -> str:
        """All metrics. Those of the engine are missing while the model loads and after the engine has failed."""
        help = "Requests that have ended; status 499 if the client disconnected."
        with self._lock:
            requests = sorted(self._requests.items())
            samples = [(f'{{path="{route}",status="{status}"}}', n) for (route, status), n in requests]
            lines = [*_metric("counter", "requests_total", help, samples)]
            help = "Time from the head of a request to its end."
            lines += _histogram("request_duration_seconds", help, self._duration_s)
        try:
            of_engine = [*_of_engine(service.model().engine)]
        except errors.ApiError:
            of_engine = []
        lines += _metric("gauge", "up", "1 while requests are served, else 0.", [("", int(bool(of_engine)))])
        return "\n".join([*lines, *of_engine, ""])


def _of_engine(engine: AnyEngine) -> Iterator[str]:
    stats, facts = engine.stats(), engine.facts
    for kind, name, help, value in (
        ("gauge", "requests_running", "Sequences that are being computed.", stats.n_running),
        ("gauge", "requests_waiting", "Sequences in the queue.", stats.n_waiting),
        ("gauge", "slots", "Sequences that can be computed at once.", facts.n_parallel),
        ("gauge", "kv_cache_cells", "Capacity of the KV cache in tokens.", facts.n_cells),
        ("gauge", "kv_cache_cells_used", "Tokens in the KV cache of running sequences.", stats.n_cells_active),
        ("gauge", "kv_cache_cells_idle", "Tokens in the KV cache of idle prefixes.", stats.n_cells_idle),
        ("counter", "tokens_computed_total", "Tokens computed, of prompts and outputs.", stats.n_computed),
        ("counter", "tokens_generated_total", "Tokens of completions.", stats.n_sampled),
        ("counter", "tokens_drafted_total", "Draft tokens of speculative decoding.", stats.n_drafted),
        ("counter", "drafts_accepted_total", "Draft tokens that were accepted.", stats.n_draft_accepted),
        ("counter", "prompt_tokens_cached_total", "Prompt tokens found in the KV cache.", stats.n_cached),
    ):
        yield from _metric(kind, name, help, [("", value)])
    help = "Time from the submission of a sequence to its first token."
    yield from _histogram("time_to_first_token_seconds", help, stats.first_token_s)


def _metric(kind: str, name: str, help: str, samples: Iterable[tuple[str, int | float]]) -> Iterator[str]:
    """The lines of a metric. Each sample is what follows the name, such as labels, and a value."""
    name = "localchat_" + name
    yield from (f"# HELP {name} {help}", f"# TYPE {name} {kind}")
    yield from (f"{name}{suffix} {round(value, 6)}" for suffix, value in samples)


def _histogram(name: str, help: str, values: Histogram) -> Iterator[str]:
    counts = values.counts()
    samples = [(f'_bucket{{le="{bound}"}}', n) for bound, n in zip([*values.bounds, "+Inf"], counts)]
    yield from _metric("histogram", name, help, [*samples, ("_sum", values.total), ("_count", counts[-1])])
