"""Drafts by prompt lookup, and the length of drafts."""

from __future__ import annotations

import random

import pytest

from localchat.serving.engine.batch import Sequence
from localchat.serving.engine.drafting import MAX_LENGTH, DraftLength, best_length
from localchat.serving.engine.lookup import N_GRAM, Lookup, LookupDrafter


def draft_of(tokens: list[int], n_tokens: int = 4) -> list[int]:
    lookup = Lookup()
    assert lookup.index(tokens)
    return lookup.draft(tokens, n_tokens)


DRAFTS: dict[str, tuple[list[int], list[int]]] = {
    "nothing": ([], []),
    "one": ([1], []),
    "one run": ([1, 2, 3], []),
    "no repetition": ([1, 2, 3, 4, 5], []),
    "a shorter run only": ([1, 2, 3, 4, 5, 6, 1, 2], []),
    "repetition": ([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3], [4, 5, 6, 7]),
    "the newest of two places": ([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], [5, 1, 2, 3]),
    "the place with more in common": ([0, 1, 2, 3, 4, 9, 1, 2, 3, 5, 0, 1, 2, 3], [4, 9, 1, 2]),
    "one token again and again": ([7, 7, 7, 7], [7, 7, 7, 7]),
    "two tokens again and again": ([5, 1, 2, 1, 2, 1, 2], [1, 2, 1, 2]),
}


@pytest.mark.parametrize(("tokens", "expected"), DRAFTS.values(), ids=DRAFTS)
def test_draft_is_the_continuation_of_the_longest_earlier_match(tokens: list[int], expected: list[int]):
    assert draft_of(tokens) == expected


@pytest.mark.parametrize("seed", range(10))
def test_text_added_in_any_pieces_gives_the_same_draft(seed: int):
    random_ = random.Random(seed)
    tokens = random_.choices(range(3), k=200)
    lookup, n_known = Lookup(), 0
    while n_known < len(tokens):
        n_known = min(n_known + random_.randint(1, 20), len(tokens))
        lookup.index(tokens[:n_known])
        assert lookup.draft(tokens[:n_known], 8) == draft_of(tokens[:n_known], 8)


@pytest.mark.parametrize("seed", range(10))
def test_draft_has_the_requested_length_and_follows_an_equal_run(seed: int):
    tokens = random.Random(seed).choices(range(2), k=60)
    found = draft_of(tokens, 5)
    assert len(found) == 5
    places = [i for i in range(N_GRAM, len(tokens)) if tokens[i - N_GRAM : i] == tokens[-N_GRAM:]]
    assert any(tokens[i] == found[0] for i in places)


def test_long_text_is_indexed_a_piece_at_a_time():
    tokens = [*range(1000), 0, 1, 2]
    lookup = Lookup()
    assert [lookup.index(tokens, 400) for _ in range(3)] == [False, False, True]
    assert lookup.draft(tokens, 2) == [3, 4]


def test_drafter_drafts_for_each_sequence_by_its_own_text():
    drafter = LookupDrafter()
    repeating, other = Sequence(1, [1, 2, 3, 4, 1, 2, 3], 50), Sequence(2, [1, 2, 3], 50)
    drafter.draft([repeating, other], 2, 0.1)
    assert (repeating.draft, other.draft) == ([4, 1], [])
    drafter.forget(repeating)
    drafter.forget(other)
    drafter.forget(other)


def test_drafter_pauses_where_drafts_are_rejected_and_tries_again_later():
    drafter, sequence = LookupDrafter(), Sequence(1, [7] * 10, 5000)
    drafts = []
    for _ in range(40):
        sequence.draft = []
        drafter.draft([sequence], 4, 0.3)
        drafts.append(bool(sequence.draft))
        if sequence.draft:
            drafter.note(sequence, len(sequence.draft), 0, 0.3)
        sequence.tokens.append(7)
    assert drafts[0]
    assert not all(drafts)
    assert 0 < sum(drafts[20:]) <= 2


@pytest.mark.parametrize(
    ("chance", "cost", "length"),
    [
        (1.0, 0.0, MAX_LENGTH),
        (1.0, 0.5, MAX_LENGTH),
        (0.0, 0.01, 0),
        (0.7, 0.25, 2),
        (0.3, 0.3, 0),
        (0.3, 0.05, 2),
        (0.9, 1.0, 0),
    ],
)
def test_best_length_weighs_the_chance_against_the_cost(chance: float, cost: float, length: int):
    assert best_length(chance, cost) == length


def test_best_length_is_never_shorter_for_a_better_chance_or_a_lower_cost():
    chances, costs = [i / 20 for i in range(21)], [i / 20 for i in range(21)]
    for cost in costs:
        lengths = [best_length(chance, cost) for chance in chances]
        assert lengths == sorted(lengths)
    for chance in chances:
        lengths = [best_length(chance, cost) for cost in costs]
        assert lengths == sorted(lengths, reverse=True)


def test_length_grows_up_to_a_limit_while_all_tokens_are_accepted():
    length, lengths = DraftLength(), []
    for n_known in range(8):
        lengths.append(length.at(n_known, 0.1))
        length.note(n_known, lengths[-1], lengths[-1], 0.1)
    assert lengths == sorted(lengths)
    assert (lengths[0], lengths[-1]) == (best_length(0.7, 0.1), MAX_LENGTH)


def test_length_shrinks_with_the_first_rejected_token_and_not_with_those_after_it():
    one, other = DraftLength(), DraftLength()
    one.note(10, 4, 2, 0.05)
    other.note(10, 16, 2, 0.05)
    assert one.at(10, 0.05) == other.at(10, 0.05) < DraftLength().at(10, 0.05)


def test_pause_doubles_while_drafts_save_no_time_and_ends_when_they_do():
    length, n_known, pauses = DraftLength(), 0, []
    for _ in range(12):
        n_drafted = length.at(n_known, 0.5)
        assert n_drafted > 0
        length.note(n_known, n_drafted, 0, 0.5)
        start = n_known
        while length.at(n_known, 0.5) == 0:
            n_known += 1
        pauses.append(n_known - start)
    doubled = [n for n in pauses if n]
    assert doubled == [2 ** min(i, 10) for i in range(1, len(doubled) + 1)]
    assert len(doubled) > 8
    for _ in range(30):
        n_known += 1 << 10
        n_drafted = length.at(n_known, 0.5)
        length.note(n_known, n_drafted, n_drafted, 0.5)
    assert length.at(n_known, 0.5) == MAX_LENGTH
    for _ in range(30):
        n_drafted = length.at(n_known, 0.5)
        if n_drafted == 0:
            break
        length.note(n_known, n_drafted, 0, 0.5)
    assert (length.at(n_known + 1, 0.5), length.at(n_known + 2, 0.5)) == (0, 2)


def test_few_tokens_are_drafted_in_a_text_that_does_not_repeat_itself():
    """Of 2000 tokens with runs that recur only by chance, few are drafted."""
    random_, drafter = random.Random(1), LookupDrafter()
    sequence = Sequence(1, random_.choices(range(8), k=200), 5000)
    n_drafted = 0
    for _ in range(2000):
        sequence.draft = []
        drafter.draft([sequence], 16, 0.1)
        token = random_.randrange(8)
        if sequence.draft:
            n_drafted += len(sequence.draft)
            n_right = int(sequence.draft[0] == token)
            sequence.tokens.append(token)
            drafter.note(sequence, len(sequence.draft), n_right, 0.1)
        else:
            sequence.tokens.append(token)
    assert 0 < n_drafted < 600
