"""Which model is unloaded, when, and for which other one."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from localchat.serving.loading import unloading
from localchat.serving.loading.served_model import ServedModel
from localchat.serving.loading.unloading import GRACE_S
from localchat.serving.models.memory import NotEnoughMemory, OtherModels
from localchat.serving.models.model_file import DEMO_PATH, ModelFile

GB = 10**9


def loaded(name: str, *, used_at: float = 0, n_users: int = 0, expires_at: float = math.inf, **state: Any) -> Any:
    """A loaded model of 3 GB, of which 1 GB is mapped. With a `n_gpu_bytes`, so many are on a GPU."""
    n_gpu_bytes = state.pop("n_gpu_bytes", 0)
    facts = SimpleNamespace(n_bytes=2 * GB, n_context_bytes=GB, n_mapped_bytes=GB, n_gpu_bytes=n_gpu_bytes)
    served = ServedModel(ModelFile(DEMO_PATH, name))
    served.queue(0)
    served.begin_load()
    served.finish_load(SimpleNamespace(engine=SimpleNamespace(facts=facts)), used_at, expires_at - used_at)
    served.n_users = n_users
    for field, value in state.items():
        setattr(served, field, value)
    return served


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, math.inf),
        ({"expires_at": 50}, 40),
        ({"expires_at": 50, "n_users": 1}, math.inf),
        ({"expires_at": 3}, 0),
        ({"unload_requested": True}, 0),
        ({"unload_requested": True, "n_users": 1}, math.inf),
    ],
    ids=str,
)
def test_model_expires_when_no_request_has_used_it_for_its_time(fields, expected):
    assert unloading.time_left_s(loaded("a", **fields), 10) == expected


def test_model_that_expires_first_is_the_next():
    late, soon, used = loaded("a", expires_at=9), loaded("b", expires_at=7), loaded("c", expires_at=1, n_users=1)
    assert unloading.next_to_expire([late, soon, used], 5) is soon
    assert unloading.next_to_expire([], 5) is None


@pytest.mark.parametrize(
    ("n_loaded", "max_models", "expected"), [(0, 1, True), (1, 1, False), (1, 2, True), (2, 2, False), (9, 0, True)]
)
def test_number_of_loaded_models_is_limited(n_loaded, max_models, expected):
    assert unloading.has_place([loaded("a")] * n_loaded, max_models) == expected


@pytest.mark.parametrize(
    ("n_missing", "n_loaded", "expected"),
    [(0, 0, True), (1, 0, False), (3 * GB, 1, True), (5 * GB, 1, False), (5 * GB, 2, True), (9 * GB, 2, False)],
)
def test_models_are_unloaded_only_if_that_frees_enough(n_missing, n_loaded, expected):
    """An engine process frees some more than its model."""
    assert unloading.may_fit_alone([loaded("a")] * n_loaded, NotEnoughMemory("short", n_missing)) == expected


def test_memory_of_the_others_is_what_they_map_and_what_the_idle_ones_free():
    assert unloading.memory_of([]) == OtherModels(0, 0)
    assert unloading.memory_of([loaded("a"), loaded("b", n_users=1), loaded("c")]) == OtherModels(3 * GB, 6 * GB)
    on_gpu = [loaded("a", n_gpu_bytes=2 * GB), loaded("b", n_gpu_bytes=3 * GB, n_users=1)]
    assert unloading.memory_of(on_gpu) == OtherModels(2 * GB, n_idle=GB, n_idle_on_gpus=2 * GB)


def test_least_recently_used_idle_model_makes_room():
    in_use, idle, idle_longer = loaded("a", n_users=1), loaded("b", used_at=5), loaded("c", used_at=4)
    assert unloading.least_recent_idle([in_use, idle, idle_longer]) is idle_longer
    assert unloading.least_recent_idle([in_use]) is None
    assert unloading.least_recent_idle([]) is None


def test_of_models_in_use_the_least_recently_used_one_is_drained_after_a_while():
    newer, older = loaded("a", used_at=5, n_users=1), loaded("b", used_at=4, n_users=2)
    assert [unloading.drains_in_s([newer, older], waited_s) for waited_s in (0, GRACE_S)] == [GRACE_S, 0]
    assert unloading.next_to_drain([newer, older]) is older
    assert unloading.drains_in_s([newer], 0) == 0  # No other one could become idle.
    assert unloading.drains_in_s([], 60) == math.inf
    older.drain()
    assert unloading.drains_in_s([newer, older], 60) == math.inf  # One is enough.
