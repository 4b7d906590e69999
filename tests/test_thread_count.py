"""The number of threads on a simulated machine."""

from __future__ import annotations

import pytest

from localchat.serving.engine.step_cost import StepSize
from localchat.serving.engine.step_timer import StepTimer
from localchat.serving.engine.thread_count import ThreadCount

WORK_S = 0.03
"""Processor time of a step's work."""


class Machine:
    """A machine on which other programs keep some cores busy. A thread without a core delays all threads.

    `sync_s` is what each thread beyond the first adds to a step.
    """

    def __init__(self, threads: ThreadCount, n_cores: int, *, sync_s: float = 0.0, work_s: float = WORK_S):
        self.threads = threads
        self.n_cores = n_cores
        self.n_busy = 0
        self.sync_s = sync_s
        self.work_s = work_s
        self.now_s = 0.0
        # As in StepTimer: the measured time of a step before the trial.
        self.predicted_s = 0.0

    def step(self) -> None:
        n = self.threads.n
        is_crowded = n > self.n_cores - self.n_busy
        wall_s = (self.work_s / n + self.sync_s * (n - 1)) * (3 if is_crowded and n > 1 else 1)
        cores = n / 2 if is_crowded and n > 1 else n
        is_trying = self.threads.is_trying
        self.threads.note(self.predicted_s, wall_s, cores * wall_s)
        if not is_trying:
            self.predicted_s += 0.2 * (wall_s - self.predicted_s) if self.predicted_s else wall_s
        self.now_s += wall_s

    def run(self, seconds: float) -> list[int]:
        """The counts of all steps."""
        counts, end_s = [], self.now_s + seconds
        while self.now_s < end_s:
            counts.append(self.threads.n)
            self.step()
        return counts


@pytest.mark.parametrize("n_cores", [2, 4, 8])
def test_a_quiet_machine_keeps_all_threads(n_cores: int):
    machine = Machine(ThreadCount(n_cores, n_cores), n_cores)
    assert set(machine.run(30)) == {n_cores}


@pytest.mark.parametrize("n_cores", [2, 4, 8])
def test_beside_a_busy_process_there_are_fewer_threads_within_a_second_and_soon_one_for_each_free_core(n_cores: int):
    machine = Machine(ThreadCount(n_cores, n_cores), n_cores)
    machine.run(5)
    machine.n_busy = 1
    machine.run(1)
    assert machine.threads.n < n_cores
    machine.run(20)
    counts = machine.run(60)
    assert counts.count(n_cores - 1) > 0.98 * len(counts)


def test_all_threads_are_used_again_on_a_quiet_machine():
    machine = Machine(ThreadCount(4, 4), 4)
    machine.n_busy = 2
    machine.run(100)
    assert machine.threads.n == 2
    machine.n_busy = 0
    machine.run(30)
    assert machine.threads.n == 4


def test_threads_that_sleep_at_barriers_are_kept_where_fewer_are_slower():
    threads, counts = ThreadCount(4, 4), []
    for _ in range(5000):  # a quiet machine on which each thread uses half a core
        counts.append(threads.n)
        threads.note(WORK_S / 4, WORK_S / threads.n, WORK_S / 2)
    assert counts.count(4) > 0.95 * len(counts)


@pytest.mark.parametrize(("sync_s", "expected"), [(0.0, 2), (0.002, 1)], ids=["more are faster", "more are slower"])
def test_a_tiny_model_begins_with_one_thread_and_gets_more_only_if_they_are_faster(sync_s: float, expected: int):
    machine = Machine(ThreadCount(1, 2), 2, sync_s=sync_s, work_s=0.001)
    assert set(machine.run(0.9)) == {1}
    machine.run(10)
    counts = machine.run(10)
    assert counts.count(expected) > 0.98 * len(counts)


def test_one_thread_at_most_stays_one():
    threads = ThreadCount(3, 1)
    for _ in range(100):
        threads.note(1.0, 1.0, 0.1)
    assert threads.n == 3


class SlowerWithTwoThreads:
    """A context whose steps take 30 ms with one thread and three times as long with two."""

    threads = (1, 2)

    def __init__(self) -> None:
        self.n_tried = 1
        self.step_s = 0.03
        self.now_s = 0.0

    def set_threads(self, n: int) -> None:
        self.n_tried = max(n, self.n_tried)
        self.step_s = 0.03 if n == 1 else 0.09

    def compute(self) -> None:
        self.now_s += self.step_s


def test_steps_of_a_failed_trial_do_not_change_the_predicted_time():
    context = SlowerWithTwoThreads()
    timer, size = StepTimer(context, lambda: context.now_s), StepSize(1, 0, 100)
    for _ in range(200):
        started_s = context.now_s
        timer.compute(size, context.compute)
        timer.note(context.now_s - started_s)
    assert context.n_tried == 2
    assert timer._cost.seconds(size) == pytest.approx(0.03)
