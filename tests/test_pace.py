"""The prompt's share of a turn follows the measured speed."""

from __future__ import annotations

from localchat.engine.pace import MIN_TOKENS, PromptPace


def test_before_anything_is_measured_the_share_is_small():
    assert PromptPace().n_tokens == MIN_TOKENS


def test_share_is_what_the_gap_allows_at_the_measured_speed():
    pace = PromptPace(gap_s=0.1)
    pace.note(500, 0.25)
    assert pace.n_tokens == 200


def test_small_turns_say_nothing():
    pace = PromptPace(gap_s=0.1)
    pace.note(500, 0.25)
    for _ in range(100):
        pace.note(4, 0.05)
    assert pace.n_tokens == 200


def test_one_slow_turn_changes_it_a_little_and_many_change_it_all():
    pace = PromptPace(gap_s=0.1)
    pace.note(1000, 0.1)
    pace.note(1000, 10)
    assert pace.n_tokens > 500
    for _ in range(50):
        pace.note(1000, 1)
    assert 99 <= pace.n_tokens <= 101


def test_share_never_becomes_crumbs():
    pace = PromptPace(gap_s=0.1)
    pace.note(100, 1000)
    assert pace.n_tokens == MIN_TOKENS
