"""Chooses the number of threads of a step: fewer while other programs keep the cores busy. Pure.

The threads of llama.cpp meet at a barrier after each operation, so all of them wait if one has no core. Beside one busy
process on 2 cores, one thread computes a model of 0.5B parameters twice as fast as two.

Processor time divided by wall time is the number of cores that the process got in a step. If this is much smaller than
the number of threads, that number of threads is tried; after a pause, one more thread is tried. A trial lasts some
steps, and is decided by their measured times.
"""

from __future__ import annotations

from dataclasses import dataclass

# Fewer threads are tried if each gets less than this share of a core. Threads that sleep at barriers use less than a
# core on a quiet machine too (0.7 with a model of 10M parameters), and half a core beside a busy process.
_FEW_CORES_SHARE = 0.6
# Times are compared over at least this many seconds and steps, since another program may have a core for some
# milliseconds.
_WINDOW_S, _WINDOW_STEPS = 0.1, 4
# A trial ends early if it is slower by this factor after two steps.
_MUCH_SLOWER = 1.5
# The number of a trial is kept only if its steps take less than this share of the time before.
_FASTER = 0.92
# The pause between trials in one direction, in seconds of steps: the first one, doubled after each failed trial, and
# its limit.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 20.0


@dataclass
class _Window:
    """Sums over successive steps, in seconds."""

    n_steps: int = 0
    predicted_s: float = 0.0
    wall_s: float = 0.0
    processor_s: float = 0.0

    def add(self, predicted_s: float, wall_s: float, processor_s: float) -> None:
        self.n_steps += 1
        self.predicted_s += predicted_s
        self.wall_s += wall_s
        self.processor_s += processor_s

    @property
    def is_full(self) -> bool:
        return self.n_steps >= _WINDOW_STEPS and self.wall_s >= _WINDOW_S

    @property
    def slowness(self) -> float:
        """The measured time as a multiple of the predicted time."""
        return self.wall_s / self.predicted_s

    @property
    def n_cores(self) -> float:
        return self.processor_s / self.wall_s


class ThreadCount:
    """The number of threads for the next step: `n`, from 1 to `most`."""

    def __init__(self, n: int, most: int):
        self.n = n
        self._most = most
        self._window = _Window()
        # The number of threads and the slowness before the trial; None without a trial.
        self._before: tuple[int, float] | None = None
        # By direction (1: more threads): seconds of steps until the next trial, and the pause if that fails.
        self._wait_s = {-1: 0.0, 1: _FIRST_PAUSE_S}
        self._pause_s = {-1: _FIRST_PAUSE_S, 1: _FIRST_PAUSE_S}

    @property
    def is_trying(self) -> bool:
        """Whether a trial runs. Its steps must not change the predictions, which hold for the number before it."""
        return self._before is not None

    def note(self, predicted_s: float, wall_s: float, processor_s: float) -> None:
        """Notes the times of a step; `processor_s` is that of all threads, `predicted_s` is 0 if unknown."""
        if self._most == 1 or predicted_s <= 0 or wall_s <= 0:
            return
        window = self._window
        window.add(predicted_s, wall_s, processor_s)
        for direction in self._wait_s:
            self._wait_s[direction] -= wall_s
        if self._before is not None:
            n_before, slowness_before = self._before
            is_hopeless = window.n_steps >= 2 and window.slowness > _MUCH_SLOWER * slowness_before
            if window.is_full or is_hopeless:
                self._decide(n_before, window.slowness < _FASTER * slowness_before)
        elif window.is_full:
            self._window = _Window()
            self._start_trial(window)

    def _start_trial(self, window: _Window) -> None:
        has_few_cores = window.n_cores < _FEW_CORES_SHARE * self.n
        if has_few_cores and self.n > 1 and self._wait_s[-1] <= 0:
            self._before = (self.n, window.slowness)
            self.n = min(max(round(window.n_cores), 1), self.n - 1)
        elif self.n < self._most and self._wait_s[1] <= 0:
            self._before = (self.n, window.slowness)
            self.n += 1

    def _decide(self, n_before: int, is_better: bool) -> None:
        self._before, self._window = None, _Window()
        direction = 1 if self.n > n_before else -1
        if is_better:
            self._wait_s[direction], self._pause_s[direction] = 0.0, _FIRST_PAUSE_S
            self._wait_s[-direction] = self._pause_s[-direction]
            return
        self.n = n_before
        self._wait_s[direction] = self._pause_s[direction]
        self._pause_s[direction] = min(2 * self._pause_s[direction], _LONGEST_PAUSE_S)
