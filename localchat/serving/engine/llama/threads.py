"""How many threads compute a step."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

# Where Linux describes the processors.
_SYSTEM = Path("/sys/devices")
# The threads are too many if they get less than this share of their time from the cores. Where nothing else runs they
# get .95, also while they wait for each other; on 2 cores, one of them busy, .5.
_LEAST_SHARE = 0.75
# The steps of one decision take at least so long: with .05 s, a process that computes for 30 ms three times in a second
# takes a thread away for ever.
_MIN_S = 0.2
# The wait before one more thread is tried. It doubles with each try that fails.
_FIRST_WAIT_S, _LAST_WAIT_S = 0.25, 8.0
# A batch is short if it has few rows, which wait for the weights, or little work: rows times parameters.
_FEW_ROWS = 32
_LITTLE_WORK = 4_000_000_000


def default_threads() -> int:
    """The number of threads of a step, for every model: one for each fast physical core that this process may use.

    The efficient cores of a hybrid processor are not counted. The threads wait for each other after each operation, so
    two on one core, or one on a slower core, delay all. This is llama-server's number, too. Where the system does not
    describe the cores, it is half of the processors if there are more than 4, which may be hyperthreads.
    """
    try:
        processors = os.sched_getaffinity(0)
    except AttributeError:  # not on macOS and Windows
        processors = set(range(os.cpu_count() or 1))
    n_cores = _n_physical_cores(processors)
    return n_cores or (len(processors) if len(processors) <= 4 else len(processors) // 2)


def _n_physical_cores(processors: set[int]) -> int:
    """How many fast physical cores these processors are; 0 if the system does not describe them."""
    try:
        fast = processors & _parsed((_SYSTEM / "cpu_core/cpus").read_text())
    except (OSError, ValueError):  # not a hybrid processor
        fast = processors
    files = [_SYSTEM / f"system/cpu/cpu{n}/topology/thread_siblings" for n in fast or processors]
    try:
        return len({file.read_text() for file in files})
    except OSError:
        return 0


def _parsed(ranges: str) -> set[int]:
    """The numbers of a list such as "0-3,8"."""
    bounds = [part.partition("-") for part in ranges.split(",")]
    return {n for first, _, last in bounds for n in range(int(first), int(last or first) + 1)}


def max_short_rows(n_params: int) -> int:
    """The most rows of a batch in which threads mostly wait for memory and for each other.

    On 2 busy cores, 64 rows of a model of 5 M parameters took 20 times as long with 2 threads as with one. A longer
    batch is faster with all threads, also on busy cores.
    """
    return max(_FEW_ROWS, _LITTLE_WORK // n_params) if n_params else _FEW_ROWS


class ThreadCount:
    """The number of threads of a short batch: fewer while other processes use the cores.

    After each operation all threads wait for the last one. A thread without a core makes them wait for milliseconds: on
    2 cores, one of them busy, two threads take 2 to 5 times as long as one.
    """

    def __init__(self, most: int):
        self.most = self.n = most
        self._wait_s, self._next_s = _FIRST_WAIT_S, 0.0
        # The duration of the steps since the last decision, and the processor time of this process at its start.
        self._wall_s, self._cpu_s = 0.0, time.process_time()

    @contextlib.contextmanager
    def leaving_out(self) -> Iterator[None]:
        """Count no processor time of the `with` block, which computes a step that `add` does not count."""
        started_s = time.process_time()
        try:
            yield
        finally:
            self._cpu_s += time.process_time() - started_s

    def add(self, wall_s: float) -> None:
        """Count a step with `n` threads and its duration."""
        self._wall_s += wall_s
        if self._wall_s < _MIN_S:
            return
        # The time on all cores. Linux counts it some milliseconds late, so it is not read for each step.
        cpu_s = time.process_time()
        has_cores = cpu_s - self._cpu_s >= _LEAST_SHARE * self.n * self._wall_s
        self._wall_s, self._cpu_s = 0.0, cpu_s
        if not has_cores and self.n > 1:
            self.n -= 1
            self._next_s = time.monotonic() + self._wait_s
            self._wait_s = min(2 * self._wait_s, _LAST_WAIT_S)
        elif self.n == self.most:
            self._wait_s = _FIRST_WAIT_S
        elif time.monotonic() >= self._next_s:
            self.n += 1
