"""The predicted time of steps on simulated machines, and the numbers of tokens that follow from it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest

from localchat.serving.engine.step_cost import (
    MAX_GAP_S,
    MIN_PROMPT_TOKENS,
    UNKNOWN_ROW_SHARE,
    StepCost,
    StepSize,
    attended,
)


def machine(fixed: float, output: float, prompt: float = 0.0, cell: float = 0.0) -> Callable[[StepSize], float]:
    return lambda step: fixed + output * step.n_outputs + prompt * step.n_prompt + cell * step.n_attended


# Seconds for a step, a row with logits, a row of a prompt, a cell.
SMALL = (0.0003, 0.0002, 0.00002, 1e-8)
LARGE = (0.012, 0.005, 0.0025, 5e-8)
GPU = (0.020, 0.0002, 0.00005, 0.0)
MACHINES = [pytest.param(*factors, id=name) for name, factors in (("10M", SMALL), ("0.5B", LARGE), ("GPU", GPU))]


def mixed_steps(seed: int, n_steps: int = 200) -> Iterable[StepSize]:
    """Steps of running sequences, some of them beside a part of a prompt."""
    rng = random.Random(seed)
    for _ in range(n_steps):
        n_outputs, n_prompt = rng.randint(1, 16), rng.choice([0, 0, 0, 40, 200, 700])
        yield StepSize(n_outputs, n_prompt, n_outputs * rng.randint(10, 2000) + attended(rng.randint(0, 500), n_prompt))


def fitted(seconds: Callable[[StepSize], float], steps: Iterable[StepSize], noise: float = 0.0) -> StepCost:
    cost, rng = StepCost(), random.Random(7)
    for step in steps:
        cost.note(step, seconds(step) * rng.uniform(1 - noise, 1 + noise))
    return cost


@pytest.mark.parametrize(("fixed", "output", "prompt", "cell"), MACHINES)
@pytest.mark.parametrize("seed", range(3))
def test_time_of_a_step_is_predicted(fixed, output, prompt, cell, seed):
    seconds = machine(fixed, output, prompt, cell)
    cost = fitted(seconds, mixed_steps(seed), noise=0.1)
    for step in (StepSize(2, 0, 500), StepSize(12, 0, 9000), StepSize(4, 300, 60_000), StepSize(0, 512, 131_328)):
        assert cost.seconds(step) == pytest.approx(seconds(step), rel=0.25)


@pytest.mark.parametrize("n_outputs", [1, 4, 16])
@pytest.mark.parametrize(("fixed", "output", "prompt", "cell"), MACHINES)
def test_prompt_beside_running_sequences_is_computed_at_nine_tenths_of_the_speed(
    fixed, output, prompt, cell, n_outputs
):
    """A step has enough prompt tokens for this speed, or as many as take `MAX_GAP_S`."""
    seconds = machine(fixed, output, prompt, cell)
    cost = fitted(seconds, mixed_steps(1))
    running = StepSize(n_outputs, 0, n_outputs * 200)
    n_prompt = cost.prompt_tokens(running)
    whole_s = seconds(StepSize(n_outputs, n_prompt, running.n_attended + attended(0, n_prompt)))
    assert whole_s < 1.15 * MAX_GAP_S
    assert 0.08 < seconds(running) / whole_s < 0.12 or whole_s > 0.85 * MAX_GAP_S


def test_long_context_leaves_fewer_prompt_tokens_within_the_gap():
    cost = fitted(machine(*LARGE[:3], 1e-6), mixed_steps(1))
    many, few = (cost.prompt_tokens_within(0.5, StepSize(1, 0, 100), n_computed) for n_computed in (0, 8000))
    assert few < many / 2


def test_nothing_is_known_before_the_first_step():
    cost = StepCost()
    assert cost.seconds(StepSize(1)) == 0
    assert cost.row_share(StepSize(1)) == UNKNOWN_ROW_SHARE
    assert cost.prompt_tokens(StepSize(1)) == MIN_PROMPT_TOKENS


def test_first_prompt_shows_the_cost_of_its_rows():
    cost = fitted(machine(*LARGE), [StepSize(1, 30, attended(0, 31))])
    assert cost.seconds(StepSize(0, 512, attended(0, 512))) == pytest.approx(512 * LARGE[2], rel=0.5)


def test_equal_steps_do_not_change_the_assumed_share():
    cost = fitted(machine(0.01, 0.0), [StepSize(1, 0, 100)] * 50)
    assert 0.1 < cost.row_share(StepSize(1, 0, 100)) < 0.3
    assert cost.seconds(StepSize(1, 0, 100)) == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize(("fixed", "output"), [(0.01, 0.001), (0.001, 0.001), (0.05, 0.0), (0.0, 0.002)])
@pytest.mark.parametrize("n_sequences", [1, 4])
def test_share_of_a_row(fixed, output, n_sequences):
    rng = random.Random(1)
    steps = [StepSize(n, 0, 100 * n) for n in rng.choices([1, 2, 5, 9, 17], k=100)]
    cost = fitted(machine(fixed, output), steps, noise=0.1)
    rows_s = n_sequences * output
    assert cost.row_share(StepSize(n_sequences, 0, 100 * n_sequences)) == pytest.approx(
        rows_s / (fixed + rows_s), abs=0.15
    )


def test_factors_are_kept_while_all_steps_are_equal():
    seconds = machine(*LARGE)
    steps = [*mixed_steps(1), *[StepSize(16, 0, 4000)] * 1000]
    cost = fitted(seconds, steps)
    assert cost.seconds(StepSize(1, 0, 200)) == pytest.approx(seconds(StepSize(1, 0, 200)), rel=0.3)
    assert cost.seconds(StepSize(0, 512, 131_328)) == pytest.approx(seconds(StepSize(0, 512, 131_328)), rel=0.1)


def test_prediction_follows_a_machine_that_becomes_slow():
    slow = tuple(4 * factor for factor in LARGE)
    cost = fitted(machine(*LARGE), mixed_steps(1))
    for step in mixed_steps(2, 60):
        cost.note(step, machine(*slow)(step))
    assert cost.seconds(StepSize(4, 200, 20_000)) == pytest.approx(machine(*slow)(StepSize(4, 200, 20_000)), rel=0.25)


def test_one_delayed_step_changes_the_prediction_little():
    steps = list(mixed_steps(1))
    before, after = (fitted(machine(*LARGE), steps) for _ in range(2))
    after.note(StepSize(8, 0, 800), 60.0)
    assert after.seconds(StepSize(8, 0, 800)) < 1.25 * before.seconds(StepSize(8, 0, 800))
    assert after.prompt_tokens(StepSize(8, 0, 800)) < 1.25 * before.prompt_tokens(StepSize(8, 0, 800))


@pytest.mark.parametrize("seed", range(10))
def test_bounds_hold_for_any_times(seed):
    rng = random.Random(seed)
    cost = StepCost()
    for step in mixed_steps(seed):
        cost.note(step, rng.choice([0.0, 1e-9, rng.random()]))
        assert 0 < cost.row_share(step) <= 1
        assert cost.seconds(step) >= 0
        assert cost.prompt_tokens(step, rng.randint(0, 9000)) >= MIN_PROMPT_TOKENS


def test_attended_cells_are_those_before_each_row_and_its_own():
    assert attended(10, 3) == 11 + 12 + 13
