"""How many threads compute a step."""

from __future__ import annotations

import os
import time

# A model with fewer bytes uses one thread. With 3 MB on 2 cores, one of them busy, one thread is 2 to 4 times as fast
# as two: in its short steps, threads mostly wait for each other. With 26 MB, most of them the output matrix of 152,000
# tokens, the second thread is worth a quarter.
_TINY_MODEL_BYTES = 12 << 20
# The threads are too many if they get less than this share of their time from the cores. Where nothing else runs they
# get .95, also while they wait for each other; on 2 cores, one of them busy, .5. The steps of one decision take at
# least so long: with .05 s, a process that computes for 30 ms three times in a second takes a thread away for ever.
_LEAST_SHARE = 0.75
_MIN_S = 0.2
# When one more thread is tried again; each time without success doubles the wait.
_FIRST_WAIT_S, _LAST_WAIT_S = 0.25, 8.0


def default_threads(n_model_bytes: int) -> int:
    """The number of threads of a step: one for each core that this process may use, or half as many if there are more
    than 4 cores, which may be hyperthreads; 1 for a tiny model."""
    if n_model_bytes < _TINY_MODEL_BYTES:
        return 1
    try:
        n_cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        n_cores = os.cpu_count() or 1
    return n_cores if n_cores <= 4 else n_cores // 2


class ThreadCount:
    """The number of threads of a step that decodes: fewer while other processes use the cores. After each operation all
    threads wait for the last one. A thread without a core makes them wait for milliseconds: on 2 cores, one of them
    busy, two threads take 2 to 5 times as long as one."""

    def __init__(self, most: int):
        self.most = self.n = most
        self._wait_s, self._next_s = _FIRST_WAIT_S, 0.0
        self._wall_s, self._cpu_s = 0.0, time.process_time()

    def add(self, wall_s: float) -> None:
        """Counts a step with `n` threads and its duration."""
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
