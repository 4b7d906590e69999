"""The number of threads of a step: one for each physical core, fewer beside a busy process, and all again when its core
is free."""

import os
from pathlib import Path

import pytest

from localchat.serving.engine.llama import threads
from localchat.serving.engine.llama.threads import ThreadCount, default_threads

STEP_S = 0.2


class Machine:
    """A clock, and cores that other processes use."""

    def __init__(self, n_cores: int):
        self.n_free = n_cores
        self.now_s = self.cpu_s = 100.0
        self.monotonic, self.process_time = lambda: self.now_s, lambda: self.cpu_s

    def run(self, count: ThreadCount, n_steps: int, step_s: float = STEP_S) -> list[int]:
        """The number of threads of each step."""
        used = []
        for _ in range(n_steps):
            used.append(count.n)
            # Beside a busy process, all threads wait for the one without a core: they get half of their time.
            self.cpu_s += step_s * (count.n if count.n <= self.n_free else count.n / 2)
            self.now_s += step_s
            count.add(step_s)
        return used


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(n_cores=4)
    monkeypatch.setattr(threads, "time", machine)
    return machine


def test_all_threads_are_used_on_a_quiet_machine(machine: Machine):
    assert set(machine.run(ThreadCount(4), 500)) == {4}


@pytest.mark.parametrize("n_free", [1, 2, 3])
def test_threads_without_a_core_are_left_out_and_tried_again_ever_more_rarely(n_free: int, machine: Machine):
    machine.n_free = n_free
    used = machine.run(ThreadCount(4), 300)
    assert used[: 4 - n_free + 1] == list(range(4, n_free - 1, -1)), "one fewer after each step that was too slow"
    assert set(used[4:]) == {n_free, n_free + 1}
    tries = [i for i, n in enumerate(used) if n == n_free + 1]
    assert len(tries[1:]) <= 12, "a minute of steps"


def test_processor_time_of_steps_that_are_not_counted_keeps_no_thread(machine: Machine):
    machine.n_free = 1
    count, used = ThreadCount(2), list[int]()
    for _ in range(15):
        used += machine.run(count, 1, step_s=0.02)
        with count.leaving_out():
            machine.cpu_s += 0.5
            machine.now_s += 0.5
    assert 1 in used


def test_short_work_of_other_processes_takes_no_thread(machine: Machine):
    count = ThreadCount(4)
    for machine.n_free in [4, 0] * 100:
        machine.run(count, 3 if machine.n_free == 0 else 27, step_s=0.01)
    assert count.n == 4


def test_last_thread_stays_and_the_others_come_back_when_the_cores_are_free(machine: Machine):
    count = ThreadCount(4)
    for machine.n_free, n_used in ((0, 1), (4, 4)):
        assert machine.run(count, 500)[-1] == n_used


@pytest.mark.parametrize(
    ("siblings", "efficient", "allowed", "expected"),
    [
        (["1", "2"], [], 2, 2),
        ([f"{core % 8}" for core in range(16)], [], 16, 8),
        ([f"{core}" for core in range(16)], [], 16, 16),
        ([f"{core // 2}" for core in range(16)], [], 6, 3),
        (["0", "0", "2", "2", "4", "5", "6"], [4, 5, 6], 7, 2),
        (["0", "0", "2", "3"], [0, 1, 2, 3], 4, 3),
        ([], [], 3, 3),
        ([], [], 12, 6),
    ],
    ids=[
        "two cores",
        "eight cores with hyperthreads",
        "sixteen cores without",
        "three of eight cores allowed",
        "efficient cores beside two fast ones",
        "only efficient cores allowed",
        "not described, few",
        "not described, many",
    ],
)
def test_default_threads_are_the_fast_physical_cores_that_the_process_may_use(
    siblings: list[str],
    efficient: list[int],
    allowed: int,
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    for n, text in enumerate(siblings):
        folder = tmp_path / f"system/cpu/cpu{n}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings").write_text(text)
    if efficient:
        (tmp_path / "cpu_core").mkdir()
        (tmp_path / "cpu_core/cpus").write_text(f"0-{efficient[0] - 1}\n" if efficient[0] else "8-9\n")
    monkeypatch.setattr(threads, "_SYSTEM", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(allowed)), raising=False)
    assert default_threads() == expected


def test_default_threads_are_within_this_machine():
    assert 1 <= default_threads() <= (os.cpu_count() or 1)
