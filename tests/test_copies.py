"""Copies outside the memory: which one fits, and which one goes."""

from __future__ import annotations

import pytest

from localchat.engine.copies import Copies


def test_longest_copy_that_a_prompt_begins_with_is_found():
    copies = Copies(can_cut=False)
    for tokens in ([1, 2], [1, 2, 3], [1, 2, 3, 4, 5], [9]):
        copies.add(tokens, bytes(tokens))
    assert copies.find([1, 2, 3, 4]) == ([1, 2, 3], bytes([1, 2, 3]))
    assert copies.find([1, 2, 3]) == ([1, 2, 3], bytes([1, 2, 3]))
    assert copies.find([1]) is None
    assert copies.find([7, 1, 2]) is None


def test_least_recently_used_goes_when_there_is_no_room():
    copies = Copies(30, can_cut=False)
    copies.add([1], bytes(10))
    copies.add([2], bytes(10))
    copies.add([3], bytes(10))
    assert copies.find([1]) is not None
    copies.add([4], bytes(10))
    assert [copies.find([i]) is not None for i in range(1, 5)] == [True, False, True, True]


def test_same_tokens_again_take_no_more_room():
    copies = Copies(20, can_cut=False)
    for _ in range(5):
        copies.add([1], bytes(10))
    copies.add([2], bytes(10))
    assert copies.find([1]) is not None
    assert copies.find([2]) is not None


@pytest.mark.parametrize("can_cut", [False, True])
def test_copy_larger_than_all_room_is_not_kept_and_others_are(can_cut: bool):
    copies = Copies(20, can_cut=can_cut)
    copies.add([1], bytes(10))
    copies.add([2], bytes(10))
    copies.add([1, 2], bytes(30))
    assert copies.n_known([1, 2]) == 1
    assert copies.find([2]) is not None
    copies.add([2], bytes(20))
    assert copies.find([2]) is not None


def test_clear_forgets_all():
    copies = Copies(20, can_cut=False)
    copies.add([1], bytes(20))
    copies.clear()
    assert copies.find([1]) is None
    copies.add([2], bytes(20))
    assert copies.find([2]) is not None


def test_beginning_of_a_copy_is_of_use_where_a_memory_can_be_cut():
    copies = Copies(can_cut=True)
    copies.add([1, 2, 3, 4], b"long")
    copies.add([1, 2, 9], b"short")
    assert copies.find([1, 2, 3, 5]) == ([1, 2, 3, 4], b"long")
    assert copies.find([1, 2, 9, 9]) == ([1, 2, 9], b"short")
    assert copies.find([1, 2]) == ([1, 2, 9], b"short")  # as good as the other one, and less to copy
    assert copies.find([7]) is None
    assert copies.n_known([1, 2, 3, 5]) == 3
    assert copies.find([1, 2, 3, 5], 3) == ([1, 2, 3, 4], b"long")
    assert copies.find([1, 2, 3, 5], 4) is None
    assert copies.n_known([7]) == 0


def test_longer_copy_takes_the_place_of_its_beginning():
    copies = Copies(20, can_cut=True)
    copies.add([5], bytes(10))
    copies.add([1, 2], bytes(5))
    copies.add([1, 2, 3], bytes(10))
    assert copies.find([5]) is not None
    assert copies.find([1, 2]) == ([1, 2, 3], bytes(10))
