"""Guesses by the text itself, and how far ahead it pays to guess."""

from __future__ import annotations

import random

import pytest

from localchat.engine.drafting import DraftLength
from localchat.engine.lookup import N_GRAM, Lookup, LookupDrafter
from localchat.engine.scheduler import Sequence


def guess(tokens: list[int], n_tokens: int = 4) -> list[int]:
    lookup = Lookup()
    assert lookup.read(tokens)
    return lookup.guess(tokens, n_tokens)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], []),
        ([1], []),
        ([1, 2, 3], []),
        ([1, 2, 3, 4, 5], []),
        ([1, 2, 3, 4, 5, 6, 1, 2], []),
        ([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3], [4, 5, 6, 7]),
        ([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], [5, 1, 2, 3]),
        ([0, 1, 2, 3, 4, 9, 1, 2, 3, 5, 0, 1, 2, 3], [4, 9, 1, 2]),
        ([7, 7, 7, 7], [7, 7, 7, 7]),
        ([5, 1, 2, 1, 2, 1, 2], [1, 2, 1, 2]),
    ],
    ids=[
        "nothing",
        "one",
        "one run",
        "no repetition",
        "a shorter run only",
        "repetition",
        "the newest of two places",
        "the place with more in common",
        "one token again and again",
        "two tokens again and again",
    ],
)
def test_guess_is_what_came_after_the_longest_run_that_came_before(tokens: list[int], expected: list[int]):
    assert guess(tokens) == expected


@pytest.mark.parametrize("seed", range(10))
def test_text_read_in_any_pieces_gives_the_same_guess(seed: int):
    random_ = random.Random(seed)
    tokens = random_.choices(range(3), k=200)
    lookup, n_known = Lookup(), 0
    while n_known < len(tokens):
        n_known = min(n_known + random_.randint(1, 20), len(tokens))
        lookup.read(tokens[:n_known])
        assert lookup.guess(tokens[:n_known], 8) == guess(tokens[:n_known], 8)


@pytest.mark.parametrize("seed", range(10))
def test_guess_has_as_many_tokens_as_wanted_and_follows_an_equal_run(seed: int):
    tokens = random.Random(seed).choices(range(2), k=60)
    found = guess(tokens, 5)
    assert len(found) == 5
    places = [i for i in range(N_GRAM, len(tokens)) if tokens[i - N_GRAM : i] == tokens[-N_GRAM:]]
    assert any(tokens[i] == found[0] for i in places)


def test_long_text_is_read_a_part_at_a_time():
    tokens = [*range(1000), 0, 1, 2]
    lookup = Lookup()
    assert [lookup.read(tokens, 400) for _ in range(3)] == [False, False, True]
    assert lookup.guess(tokens, 2) == [3, 4]


def test_drafter_guesses_for_each_sequence_by_its_own_text():
    drafter = LookupDrafter()
    repeating, other = Sequence(1, [1, 2, 3, 4, 1, 2, 3], 50), Sequence(2, [1, 2, 3], 50)
    drafter.draft([repeating, other], 2)
    assert (repeating.draft, other.draft) == ([4, 1], [])
    drafter.forget(repeating)
    drafter.forget(other)
    drafter.forget(other)


def test_drafter_pauses_after_a_wrong_guess_and_goes_on_later():
    drafter, sequence = LookupDrafter(), Sequence(1, [7] * 10, 50)

    def drafts() -> bool:
        sequence.draft = []
        drafter.draft([sequence], 4)
        return bool(sequence.draft)

    assert drafts()
    drafter.note(sequence, 4, 0)
    assert not drafts()
    sequence.tokens += [7] * 2
    assert drafts()


def test_length_doubles_while_all_is_right_up_to_a_limit():
    length, lengths = DraftLength(), []
    for n_known in range(5):
        lengths.append(length.at(n_known))
        length.note(n_known, lengths[-1], lengths[-1])
    assert lengths == [4, 8, 16, 16, 16]


def test_length_follows_what_held():
    length = DraftLength()
    length.note(10, 4, 2)
    assert length.at(10) == 3
    length.note(10, 1, 1)
    assert length.at(10) == 2


def test_pause_doubles_with_each_draft_that_was_all_wrong_and_ends_with_one_that_was_not():
    length, n_known, pauses = DraftLength(), 0, []
    for _ in range(5):
        length.note(n_known, 4, 0)
        start = n_known
        while length.at(n_known) == 0:
            n_known += 1
        pauses.append(n_known - start)
    assert pauses == [2, 4, 8, 16, 32]
    length.note(n_known, 4, 1)
    length.note(n_known, 2, 0)
    assert (length.at(n_known + 1), length.at(n_known + 2)) == (0, 4)


def test_text_that_never_repeats_itself_soon_costs_nothing():
    """Of 2000 tokens with runs that recur only by chance, few are spent on guesses."""
    random_, drafter = random.Random(1), LookupDrafter()
    sequence = Sequence(1, random_.choices(range(8), k=200), 5000)
    n_drafted = 0
    for _ in range(2000):
        sequence.draft = []
        drafter.draft([sequence], 16)
        token = random_.randrange(8)
        if sequence.draft:
            n_drafted += len(sequence.draft)
            n_right = int(sequence.draft[0] == token)
            sequence.tokens.append(token)
            drafter.note(sequence, len(sequence.draft), n_right)
        else:
            sequence.tokens.append(token)
    assert 0 < n_drafted < 600
