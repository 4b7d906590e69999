"""Short and long prompts beside each other on a simulated clock."""

from __future__ import annotations

import pytest

from localchat.serving.engine.batch import CacheLimits, Sequence
from localchat.serving.engine.tuning import CPU, GPU, Tuning

from .stepped_scheduler import NEXT, SteppedScheduler, new_scheduler, run_step, sequence


class Machine:
    """Steps a scheduler on a simulated clock: 20 ms a step, 1 ms a row, and prompt chunks of the constant size."""

    def __init__(self) -> None:
        self.scheduler = SteppedScheduler(CacheLimits(100_000, 16, 32, 2048))
        self.now = 0.0
        self.longest_step_s = 0.0
        # When each sequence got its first token, by its number.
        self.first_at: dict[int, float] = {}

    def add(self, id: int, n_prompt: int) -> None:
        self.scheduler.add(Sequence(id, [10_000 * id + i for i in range(n_prompt)], 9000))

    def step(self) -> None:
        batch = self.scheduler.schedule()
        seconds = 0.02 + 0.001 * batch.n_tokens
        self.now += seconds
        self.longest_step_s = max(self.longest_step_s, seconds)
        self.scheduler.compute(batch, lambda chunk: [NEXT])
        for chunk in batch.outputs():
            self.first_at.setdefault(chunk.sequence.id, self.now)

    def run_until_first_token(self, id: int) -> float:
        while id not in self.first_at:
            self.step()
        return self.first_at[id]


@pytest.mark.parametrize("n_decoding", [0, 4])
@pytest.mark.parametrize(
    ("n_long", "long", "short"), [(1, 900, 2), (7, 2000, 2), (7, 2000, 60), (7, 2000, 500), (7, 8000, 1500)]
)
def test_short_prompt_behind_long_ones_waits_at_most_twice_its_own_time_and_a_step(
    n_long: int, long: int, short: int, n_decoding: int
):
    machine, alone = Machine(), Machine()
    for each in (machine, alone):
        for id in range(1, n_decoding + 1):
            each.add(id, 20)
            each.run_until_first_token(id)
        for _ in range(20):
            each.step()
    for id in range(10, 10 + n_long):
        machine.add(id, long)
    for _ in range(3):
        machine.step()
    starts = machine.now, alone.now
    for each in (machine, alone):
        each.add(30, short)
    waited_s, own_s = (each.run_until_first_token(30) - start for each, start in zip((machine, alone), starts))
    assert waited_s <= 2 * own_s + machine.longest_step_s
    n_most = CPU.n_prompt_beside if n_decoding else CPU.n_prompt_alone
    assert machine.longest_step_s <= 0.03 + 0.001 * max(n_most, 20 * n_decoding)


def test_long_prompt_among_many_short_ones_has_half_of_the_machine():
    machine, alone = Machine(), Machine()
    alone.add(1, 4000)
    own_s = alone.run_until_first_token(1)
    machine.add(1, 4000)
    id = 1
    while 1 not in machine.first_at:
        others = [s for s in (*machine.scheduler.running, *machine.scheduler.waiting) if s.id > 1]
        for other in others:
            if other.n_sampled:
                machine.scheduler.remove(other, keep=False)
        for _ in range(8 - len(others)):
            id += 1
            machine.add(id, 300)
        machine.step()
    assert machine.now <= 2.5 * own_s


@pytest.mark.parametrize("tuning", [CPU, GPU], ids=["CPU", "GPU"])
@pytest.mark.parametrize("is_unified", [True, False], ids=["one buffer", "streams"])
def test_long_prompts_delay_running_streams_by_one_bounded_step(tuning: Tuning, is_unified: bool):
    """And a short prompt that comes after them has its first token within two steps."""
    scheduler = new_scheduler(400_000, 32, 2048, is_unified=is_unified, tuning=tuning)
    for id in range(1, 9):
        scheduler.add(sequence(id, 5, 9000))
    run_step(scheduler)
    for id in range(10, 26):
        scheduler.add(sequence(id, 1500, 9000))
    n_between, gaps, waited = 0, [], None
    for i in range(120):
        if i == 5:
            scheduler.add(sequence(30, 20, 9000))
        batch = run_step(scheduler)
        if i >= 5 and waited is None and any(chunk.sequence.id == 30 for chunk in batch.outputs()):
            waited = i - 5
        decoding = {chunk.sequence.id for chunk in batch.outputs()} & {*range(1, 9)}
        n_between += batch.n_tokens - len(decoding)
        assert len(decoding) in (0, 8)
        if decoding:
            gaps.append(n_between)
            n_between = 0
    assert max(gaps) <= tuning.n_prompt_beside + 64
    assert waited is not None
    assert waited <= 1
