"""The output at the start: the progress of loading, then the model, its memory, its device and a command to try."""

from __future__ import annotations

import logging
import os
import shlex
import sys
import time
from collections.abc import Iterator
from typing import Any

from ..engine import ModelFacts
from ..models.catalog import ModelFile, gigabytes
from .logs import report

log = logging.getLogger("localchat.server")

_BAR_WIDTH = 30
# Seconds between log lines of the progress, if stderr is not a terminal.
_LOG_PAUSE_S = 10.0


class LoadProgress:
    """Shows the progress of loading a model: as a bar on a terminal, otherwise as lines in the log."""

    def __init__(self, name: str, log_format: str) -> None:
        self._name = name
        self._is_bar = log_format == "text" and sys.stderr is not None and sys.stderr.isatty()
        self._began_at = self._logged_at = time.monotonic()
        self._shown_percent = -1

    @property
    def seconds(self) -> float:
        """Seconds since the load began."""
        return time.monotonic() - self._began_at

    def show(self, done: float) -> None:
        """Show the progress, from 0 to 1."""
        percent = int(done * 100)
        if self._is_bar and percent != self._shown_percent:
            self._shown_percent = percent
            bar = ("#" * round(done * _BAR_WIDTH)).ljust(_BAR_WIDTH, ".")
            print(f"\rloading {self._name} [{bar}] {percent:3} %", end="", file=sys.stderr, flush=True)
        elif not self._is_bar and time.monotonic() - self._logged_at > _LOG_PAUSE_S:
            self._logged_at = time.monotonic()
            log.info("loading %s: %d %% after %.0f s", self._name, percent, self.seconds)

    def clear(self) -> None:
        """Remove the bar."""
        if self._shown_percent >= 0:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown_percent = -1


def report_ready(file: ModelFile, facts: ModelFacts, url: str, seconds: float, log_format: str) -> None:
    """Write the start block. In JSON it is one line with all values."""
    if log_format == "json":
        fields = {"url": url, "model": file.name, **model_fields(file, facts), "load_seconds": round(seconds, 3)}
        report(f"localchat is ready: {file.name} at {url}", **fields)
        return
    for name, text in _rows(file, facts, seconds):
        report(f"{name:<9}{text}")
    report(f"localchat is ready: {file.name} at {url} (Ctrl-C ends it)")
    if url.startswith("http"):
        report(f'try: {_interpreter()} -m localchat --base-url {url} "What is your name?"')


def _rows(file: ModelFile, facts: ModelFacts, seconds: float) -> Iterator[tuple[str, str]]:
    yield (
        "model",
        f"{facts.description}, {facts.n_params / 1e6:,.0f} M parameters, {gigabytes(facts.n_bytes)}: {file.path}",
    )
    yield (
        "context",
        f"{facts.n_ctx} tokens for each request; KV cache of {facts.n_cells} for {facts.n_parallel} requests at once",
    )
    total = gigabytes(facts.n_bytes + facts.n_context_bytes)
    parts = f"{gigabytes(facts.n_bytes)} weights, {gigabytes(facts.n_context_bytes)} context"
    free = "" if facts.n_free_bytes is None else f"; {gigabytes(facts.n_free_bytes)} are free"
    yield "memory", f"{total} ({parts}){free}"
    yield "device", f"{facts.device}; CPU threads: {facts.n_threads}"
    yield "loaded", f"in {seconds:.1f} s"


def model_fields(file: ModelFile, facts: ModelFacts) -> dict[str, Any]:
    """The model file, the context, the device and the threads in JSON, for the log and for `--check`."""
    return {
        "path": str(file.path),
        "description": facts.description,
        "n_params": facts.n_params,
        "weight_bytes": facts.n_bytes,
        "n_ctx_train": facts.n_ctx_train,
        "n_ctx": facts.n_ctx,
        "kv_cache_tokens": facts.n_cells,
        "parallel": facts.n_parallel,
        "context_bytes": facts.n_context_bytes,
        "device": facts.device,
        "threads": facts.n_threads,
        "free_bytes": facts.n_free_bytes,
    }


def _interpreter() -> str:
    """The path of this Python for a shell, relative to the current folder if it lies there."""
    path = sys.executable or "python"
    folder = os.getcwd() + os.sep
    return shlex.quote(path[len(folder) :] if path.startswith(folder) else path)
