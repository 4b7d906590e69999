"""Surrogate pairs of a text that are split between two pieces of a stream."""

from __future__ import annotations

import pytest

from localchat.reply.text import SurrogateJoiner


@pytest.mark.parametrize(
    ("pieces", "texts", "n_warnings"),
    [
        (["a", "é"], ["a", "é", ""], 0),
        (["\ud83d", "\ude00"], ["", "\U0001f600", ""], 0),
        (["x\ud83d", "\ude00y"], ["x", "\U0001f600y", ""], 0),
        (["\ud83d", "", "\ude00"], ["", "", "\U0001f600", ""], 0),
        (["\ud83d\ude00"], ["\U0001f600", ""], 0),
        (["\ud83d", "x"], ["", "\ufffdx", ""], 1),
        (["\ud83d", "\ud83d", "\ude00"], ["", "\ufffd", "\U0001f600", ""], 1),
        (["\ude00"], ["\ufffd", ""], 1),
        (["a\ud83d"], ["a", "\ufffd"], 1),
        (["\ud83d", "\U0001f600"], ["", "\ufffd\U0001f600", ""], 1),
    ],
)
def test_halves_are_joined_and_lone_ones_replaced(pieces: list[str], texts: list[str], n_warnings: int):
    warnings: list[str] = []
    joiner = SurrogateJoiner(warnings.append)
    assert [*map(joiner.feed, pieces), joiner.feed("", ended=True)] == texts
    assert len(warnings) == n_warnings
