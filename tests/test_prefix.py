"""The prefix tree: matches, counts of cells, idle slots, and nodes that are split, joined and dropped."""

from __future__ import annotations

import random

import pytest

from localchat.serving.engine.prefix import Match, PrefixTree, n_common_of


def filled(*slots: tuple[int, list[int]]) -> PrefixTree:
    """A tree in which each slot shares the longest known prefix of its tokens."""
    tree = PrefixTree()
    for slot, tokens in slots:
        run(tree, slot, tokens)
    return tree


def run(tree: PrefixTree, slot: int, tokens: list[int]) -> int:
    match = tree.match(tokens)
    n_known = 0 if match is None else match.length
    tree.hold(slot, match)
    if n_known < len(tokens):
        tree.extend(slot, tokens[n_known:])
    return n_known


def test_match_has_a_slot_with_the_prefix():
    tree = filled((0, [1, 2, 3]), (1, [1, 2, 7, 8]), (2, [5]))
    assert tree.match([1, 2, 7]) == Match(1, 3)
    assert tree.match([5, 5]) == Match(2, 1)


def test_slot_that_shares_its_tokens_is_extended_in_a_new_node():
    tree = filled((0, [1, 2]))
    tree.extend(0, [3])
    tree.hold(1, tree.match([1, 2, 3]))
    tree.extend(0, [4])
    tree.extend(1, [9])
    assert tree.match([1, 2, 3, 4]) == Match(0, 4)
    assert tree.match([1, 2, 3, 9]) == Match(1, 4)
    assert tree.n_cells == 5


def test_idle_slots_are_ordered_by_use():
    tree = filled((0, [1]), (1, [2]), (2, [3]))
    for slot in (1, 0, 2):
        tree.set_idle(slot)
    tree.set_active(1)
    tree.set_idle(1)
    assert (tree.idle(), tree.active()) == ([0, 2, 1], [])
    tree.set_active(2)
    assert (tree.idle(), tree.active()) == ([0, 1], [2])


def test_twin_has_all_that_a_slot_has():
    tree = filled((0, [1, 2]), (1, [1, 2, 3]), (2, [5, 6]))
    assert [tree.twin(slot) for slot in (0, 1, 2)] == [1, None, None]


def test_twin_may_have_its_tokens_in_other_cells_and_from_other_branches():
    tree = filled((0, [1, 2, 3, 4]), (1, [1, 9]))
    tree.hold(2)
    tree.extend(2, [1, 2])
    tree.extend(2, [3])
    assert (tree.twin(2), tree.twin(0)) == (0, None)


def test_exact_twin_has_no_more_and_is_idle():
    tree = PrefixTree()
    for slot, tokens in ((0, [1, 2, 3]), (1, [1, 2]), (2, [1, 2])):
        tree.hold(slot)
        tree.extend(slot, tokens)
    assert tree.twin(1, exact=True) is None
    tree.set_idle(0)
    assert tree.twin(1, exact=True) is None
    tree.set_idle(2)
    assert tree.twin(1, exact=True) == 2


def test_refreshed_slot_is_dropped_last():
    tree = filled((0, [1]), (1, [2]), (2, [3]))
    for slot in (0, 1, 2):
        tree.set_idle(slot)
    tree.refresh(0)
    assert tree.idle() == [1, 2, 0]


def test_inactive_cells_of_a_match_are_those_without_a_running_sequence():
    tree = filled((0, [1, 2, 3, 4]), (1, [1, 2, 9]))
    tree.set_idle(0)
    match = tree.match([1, 2, 3, 5])
    assert match == Match(0, 3)
    assert tree.n_cells_inactive(match) == 1


def test_whole_match_is_an_idle_slot_all_of_which_fits():
    tree = filled((0, [1, 2]), (1, [1, 2, 3, 4]), (2, [7]))
    for slot in (0, 1, 2):
        tree.set_idle(slot)
    assert tree.match_whole([1, 2, 3]) == Match(0, 2)
    assert tree.match_whole([1, 2, 3, 4, 5]) == Match(1, 4)
    assert tree.match_whole([8]) is None


def test_node_is_joined_with_its_only_child():
    tree = filled((0, [1, 2, 3, 4]))
    for slot in range(1, 50):
        tree.hold(slot, tree.match([1, 2]))
        tree.drop(slot)
    assert len(list(tree._leaves[0].path())) == 1


@pytest.mark.parametrize(
    ("run_", "tokens", "start", "n"),
    [
        ([], [1], 0, 0),
        ([1, 2], [1, 2], 0, 2),
        ([1, 2], [0, 1, 2, 3], 1, 2),
        ([1, 2, 3], [1, 2, 4], 0, 2),
        ([5], [6], 0, 0),
    ],
)
def test_common_tokens(run_: list[int], tokens: list[int], start: int, n: int):
    assert n_common_of(run_, tokens, start) == n


@pytest.mark.parametrize("seed", range(30))
def test_random_use_agrees_with_a_plain_model(seed: int):
    """The model has a list of cells for each slot."""
    random_ = random.Random(seed)
    tree, cells, next_cell = PrefixTree(), {}, 0
    active: set[int] = set()
    for _ in range(300):
        action = random_.choice(["start", "extend", "set idle", "set active", "drop"])
        idle = sorted(set(cells) - active)
        free = sorted(set(range(6)) - set(cells))
        if action == "start" and free:
            prompt = random_.choices([1, 2], k=random_.randint(1, 8))
            match = tree.match(prompt)
            best = max((common(held, prompt) for held in cells.values()), default=0)
            assert (0 if match is None else match.length) == best
            tree.hold(free[0], match)
            cells[free[0]] = [] if match is None else cells[match.slot][: match.length]
            active.add(free[0])
        elif action == "extend" and active:
            slot = random_.choice(sorted(active))
            tokens = random_.choices([1, 2], k=random_.randint(1, 4))
            tree.extend(slot, tokens)
            cells[slot] = cells[slot] + [(next_cell + i, token) for i, token in enumerate(tokens)]
            next_cell += len(tokens)
        elif action == "set idle" and active:
            slot = random_.choice(sorted(active))
            tree.set_idle(slot)
            active.discard(slot)
        elif action == "set active" and idle:
            slot = random_.choice(idle)
            tree.set_active(slot)
            active.add(slot)
        elif action == "drop" and cells:
            slot = random_.choice(sorted(cells))
            tree.drop(slot)
            del cells[slot]
            active.discard(slot)
        assert tree.n_cells == len({cell for held in cells.values() for cell in held})
        assert tree.n_cells_active == len({cell for slot in active for cell in cells[slot]})
        assert {slot: tree.length(slot) for slot in cells} == {slot: len(held) for slot, held in cells.items()}


def common(held: list[tuple[int, int]], prompt: list[int]) -> int:
    n = 0
    for (_, token), expected in zip(held, prompt):
        if token != expected:
            break
        n += 1
    return n
