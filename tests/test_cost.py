"""What a row costs, by the times of turns."""

from __future__ import annotations

import random

import pytest

from localchat.engine.cost import UNKNOWN, TurnCost


def told(times: list[tuple[int, float]]) -> TurnCost:
    cost = TurnCost()
    for n_rows, seconds in times:
        cost.note(n_rows, seconds)
    return cost


def test_nothing_is_known_before_turns_of_different_sizes():
    assert TurnCost().of_row(1) == UNKNOWN
    assert TurnCost().turn_s(1) == 0
    assert told([(1, 0.01)] * 50).of_row(1) == UNKNOWN


@pytest.mark.parametrize(("fixed", "row"), [(0.01, 0.001), (0.001, 0.001), (0.05, 0.0), (0.0, 0.002)])
def test_line_through_the_times_is_found(fixed: float, row: float):
    random_ = random.Random(1)
    sizes = random_.choices([1, 2, 5, 9, 17], k=100)
    cost = told([(n, (fixed + row * n) * random_.uniform(0.9, 1.1)) for n in sizes])
    assert cost.turn_s(4) == pytest.approx(fixed + 4 * row, rel=0.15)
    assert cost.of_row(1) == pytest.approx(row / (fixed + row), abs=0.15)


def test_row_for_each_of_several_sequences_costs_as_many_rows():
    cost = told([(n, 0.01 + 0.001 * n) for n in (1, 5, 9)] * 30)
    assert cost.of_row(4) == pytest.approx(4 * 0.001 / 0.014, rel=0.01)


def test_what_was_learnt_is_not_forgotten_where_all_turns_are_alike():
    cost = told([(n, 0.010 * n) for n in (1, 9)] * 5 + [(1, 0.010)] * 1000)
    assert cost.of_row(1) == pytest.approx(1, rel=0.01)


def test_machine_that_becomes_slow_is_noticed():
    times = [(n, 0.010 + 0.0001 * n) for n in (1, 9)] * 100
    cost = told(times)
    assert cost.of_row(1) < 0.02
    for n_rows in (1, 9) * 60:
        cost.note(n_rows, 0.010 + 0.010 * n_rows)
    assert cost.of_row(1) == pytest.approx(0.5, abs=0.1)


def test_one_turn_that_was_held_up_changes_little():
    times = [(n, 0.010 + 0.001 * n) for n in (1, 9)] * 50
    before, after = told(times), told([*times, (9, 60.0)])
    assert after.turn_s(1) < 1.2 * before.turn_s(1)
    assert after.of_row(1) < before.of_row(1) + 0.15


@pytest.mark.parametrize("seed", range(10))
def test_cost_is_a_share_whatever_the_times(seed: int):
    random_ = random.Random(seed)
    cost = TurnCost()
    for _ in range(200):
        cost.note(random_.randint(1, 20), random_.choice([0.0, 1e-9, random_.random()]))
        assert 0 < cost.of_row(random_.randint(1, 4)) <= 1
        assert cost.turn_s(random_.randint(1, 40)) >= 0
