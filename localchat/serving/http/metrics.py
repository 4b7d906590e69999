"""Metrics of the server for GET /metrics in Prometheus's format: requests, durations, and the engine's counters."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..core.text import printable
from ..engine.engine_client import EngineClient
from ..engine.values import EngineError, EngineStats, Histogram, ModelFacts
from ..loading.service import Service

TYPE = "text/plain; version=0.0.4; charset=utf-8"

# How long all engines together may take to respond, and each one after that.
_STATS_S, _LEAST_STATS_S = 3.0, 0.2
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
        """All metrics, also those of each loaded model."""
        help = "Requests that have ended; status 499 if the client disconnected."
        with self._lock:
            requests = sorted(self._requests.items())
            samples = [(f'{{path="{route}",status="{status}"}}', n) for (route, status), n in requests]
            lines = [*_metric("counter", "requests_total", help, samples)]
            help = "Time from the head of a request to its end."
            lines += _histogram("request_duration_seconds", help, {"": self._duration_s})
        models = [model for model in (served.model for served in service.loaded_models()) if model is not None]
        # The names are labels, which must differ: if a name means another file now, the model of that one is shown.
        engines = {model.name: model.engine for model in models}
        lines += _metric("gauge", "up", "1 while requests are served, else 0.", [("", int(service.is_serving()))])
        return "\n".join([*lines, *_of_engines(engines), ""])


def _of_engines(engines: Mapping[str, EngineClient]) -> Iterator[str]:
    """The metrics of the engines that respond in time, with the names of their models as labels."""
    stats: dict[str, EngineStats] = {}
    figures = []
    deadline = time.monotonic() + _STATS_S
    for name, engine in engines.items():
        with contextlib.suppress(EngineError):  # Such as one whose process is stopped.
            # JSON escapes what Prometheus does; control characters that only JSON escapes are replaced before.
            label = f"model={json.dumps(printable(name), ensure_ascii=False)}"
            stats[label] = engine.stats(max(deadline - time.monotonic(), _LEAST_STATS_S))
            figures.append(_figures(stats[label], engine.facts))
    for rows in zip(*figures):
        kind, name, help, _ = rows[0]
        yield from _metric(kind, name, help, [(f"{{{label}}}", row[-1]) for label, row in zip(stats, rows)])
    if stats:
        help = "Time from the submission of a sequence to its first token."
        times = {label: engine_stats.first_token_s for label, engine_stats in stats.items()}
        yield from _histogram("time_to_first_token_seconds", help, times)


def _figures(stats: EngineStats, facts: ModelFacts) -> Sequence[tuple[str, str, str, int]]:
    """The kind, the name and the description of each metric of an engine, and its value."""
    return (
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
    )


def _metric(kind: str, name: str, help: str, samples: Iterable[tuple[str, int | float]]) -> Iterator[str]:
    """The lines of a metric. Each sample is what follows the name, such as labels, and a value."""
    name = "localchat_" + name
    yield from (f"# HELP {name} {help}", f"# TYPE {name} {kind}")
    yield from (f"{name}{suffix} {round(value, 6)}" for suffix, value in samples)


def _histogram(name: str, help: str, values: Mapping[str, Histogram]) -> Iterator[str]:
    samples: list[tuple[str, int | float]] = []
    for label, histogram in values.items():
        counts = histogram.counts()
        bounds = zip([*histogram.bounds, "+Inf"], counts)
        samples += [(f'_bucket{{{label}{"," if label else ""}le="{bound}"}}', n) for bound, n in bounds]
        suffix = f"{{{label}}}" if label else ""
        samples += [(f"_sum{suffix}", histogram.total), (f"_count{suffix}", counts[-1])]
    yield from _metric("histogram", name, help, samples)
