"""The number of threads of a step: fewer beside a busy process, and all again when its core is free."""

import pytest

from localchat.serving.engine.llama import threads
from localchat.serving.engine.llama.threads import ThreadCount

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


def test_short_work_of_other_processes_takes_no_thread(machine: Machine):
    count = ThreadCount(4)
    for machine.n_free in [4, 0] * 100:
        machine.run(count, 3 if machine.n_free == 0 else 27, step_s=0.01)
    assert count.n == 4


def test_last_thread_stays_and_the_others_come_back_when_the_cores_are_free(machine: Machine):
    count = ThreadCount(4)
    for machine.n_free, n_used in ((0, 1), (4, 4)):
        assert machine.run(count, 500)[-1] == n_used
