"""Snapshots: which one is found for a prompt, and which one is dropped at the limit."""

from __future__ import annotations

import pytest

from localchat.serving.engine.snapshots import Snapshots


def test_longest_snapshot_that_a_prompt_begins_with_is_found():
    snapshots = Snapshots(can_truncate=False)
    for tokens in ([1, 2], [1, 2, 3], [1, 2, 3, 4, 5], [9]):
        snapshots.add(tokens, bytes(tokens))
    assert snapshots.find([1, 2, 3, 4]) == ([1, 2, 3], bytes([1, 2, 3]))
    assert snapshots.find([1, 2, 3]) == ([1, 2, 3], bytes([1, 2, 3]))
    assert snapshots.find([1]) is None
    assert snapshots.find([7, 1, 2]) is None


def test_least_recently_used_is_dropped_at_the_limit():
    snapshots = Snapshots(30, can_truncate=False)
    snapshots.add([1], bytes(10))
    snapshots.add([2], bytes(10))
    snapshots.add([3], bytes(10))
    assert snapshots.find([1]) is not None
    snapshots.add([4], bytes(10))
    assert [snapshots.find([i]) is not None for i in range(1, 5)] == [True, False, True, True]


def test_same_tokens_again_take_no_more_bytes():
    snapshots = Snapshots(20, can_truncate=False)
    for _ in range(5):
        snapshots.add([1], bytes(10))
    snapshots.add([2], bytes(10))
    assert snapshots.find([1]) is not None
    assert snapshots.find([2]) is not None


@pytest.mark.parametrize("can_truncate", [False, True])
def test_snapshot_larger_than_the_limit_is_not_kept_and_others_are(can_truncate: bool):
    snapshots = Snapshots(20, can_truncate=can_truncate)
    snapshots.add([1], bytes(10))
    snapshots.add([2], bytes(10))
    snapshots.add([1, 2], bytes(30))
    assert snapshots.n_known([1, 2]) == 1
    assert snapshots.find([2]) is not None
    snapshots.add([2], bytes(20))
    assert snapshots.find([2]) is not None


def test_clear_forgets_all():
    snapshots = Snapshots(20, can_truncate=False)
    snapshots.add([1], bytes(20))
    snapshots.clear()
    assert snapshots.find([1]) is None
    snapshots.add([2], bytes(20))
    assert snapshots.find([2]) is not None


def test_prefix_of_a_snapshot_is_used_where_a_cache_can_be_truncated():
    snapshots = Snapshots(can_truncate=True)
    snapshots.add([1, 2, 3, 4], b"long")
    snapshots.add([1, 2, 9], b"short")
    assert snapshots.find([1, 2, 3, 5]) == ([1, 2, 3, 4], b"long")
    assert snapshots.find([1, 2, 9, 9]) == ([1, 2, 9], b"short")
    assert snapshots.find([1, 2]) == ([1, 2, 9], b"short")  # The shorter of two with equal common prefixes.
    assert snapshots.find([7]) is None
    assert snapshots.n_known([1, 2, 3, 5]) == 3
    assert snapshots.find([1, 2, 3, 5], 3) == ([1, 2, 3, 4], b"long")
    assert snapshots.find([1, 2, 3, 5], 4) is None
    assert snapshots.n_known([7]) == 0


def test_longer_snapshot_replaces_its_prefix():
    snapshots = Snapshots(20, can_truncate=True)
    snapshots.add([5], bytes(10))
    snapshots.add([1, 2], bytes(5))
    snapshots.add([1, 2, 3], bytes(10))
    assert snapshots.find([5]) is not None
    assert snapshots.find([1, 2]) == ([1, 2, 3], bytes(10))
