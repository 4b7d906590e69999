"""The states of a model: which transition leads where, and that a model that is loaded again is like a new one."""

import math
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from localchat.serving.core.errors import InferenceError, OutOfResources
from localchat.serving.engine.values import EngineDied, EngineError
from localchat.serving.loading.served_model import MAX_TRIES, RETRY_S, ServedModel, State
from localchat.serving.models.model_file import DEMO_PATH, ModelFile

MODEL: Any = SimpleNamespace(engine=SimpleNamespace(facts=SimpleNamespace(n_bytes=70, n_context_bytes=7)))
ERROR = EngineError("broken")

TRANSITIONS: dict[str, Callable[[ServedModel], None]] = {
    "queue": lambda served: served.queue(1),
    "begin_load": ServedModel.begin_load,
    "finish_load": lambda served: served.finish_load(MODEL, 2, 60),
    "fail_load": lambda served: served.fail_load(ERROR, 2),
    "abandon_load": ServedModel.abandon_load,
    "crash": ServedModel.crash,
    "drain": ServedModel.drain,
    "resume": ServedModel.resume,
    "finish_unload": ServedModel.finish_unload,
}
# The transitions to each state from a new model, and where each transition leads from there. All others are errors.
PATHS: dict[State, tuple[str, ...]] = {
    State.UNLOADED: (),
    State.QUEUED: ("queue",),
    State.LOADING: ("queue", "begin_load"),
    State.READY: ("queue", "begin_load", "finish_load"),
    State.DRAINING: ("queue", "begin_load", "finish_load", "drain"),
    State.FAILED: ("queue", "begin_load", "fail_load"),
}
ALLOWED: dict[State, dict[str, State]] = {
    State.UNLOADED: {"queue": State.QUEUED},
    State.QUEUED: {"begin_load": State.LOADING},
    State.LOADING: {"finish_load": State.READY, "fail_load": State.FAILED, "abandon_load": State.UNLOADED},
    State.READY: {"drain": State.DRAINING, "crash": State.UNLOADED},
    State.DRAINING: {"resume": State.READY, "finish_unload": State.UNLOADED},
    State.FAILED: {"queue": State.QUEUED},
}
UNLOADS: tuple[tuple[str, ...], ...] = (
    ("drain", "finish_unload"),
    ("crash",),
    ("drain", "resume", "drain", "finish_unload"),
)


def new() -> ServedModel:
    return ServedModel(ModelFile(DEMO_PATH, "demo"))


def after(*names: str) -> ServedModel:
    served = new()
    for name in names:
        TRANSITIONS[name](served)
    return served


def values(served: ServedModel) -> dict[str, Any]:
    """The fields of the state, without what is true of a model for ever."""
    return {name: value for name, value in vars(served).items() if name not in ("file", "was_loaded")}


@pytest.mark.parametrize("state", PATHS, ids=str)
@pytest.mark.parametrize("name", TRANSITIONS)
def test_transition_leads_to_its_state_and_is_an_error_elsewhere(state: State, name: str):
    served = after(*PATHS[state])
    assert served.state is state
    if (target := ALLOWED[state].get(name)) is not None:
        TRANSITIONS[name](served)
        assert served.state is target
    else:
        before = values(served)
        with pytest.raises(AssertionError, match=f"demo is {state.name}, not "):
            TRANSITIONS[name](served)
        assert values(served) == before


@pytest.mark.parametrize("state", [State.QUEUED, State.LOADING, State.READY, State.DRAINING, State.FAILED], ids=str)
@pytest.mark.parametrize("unload", UNLOADS, ids=" ".join)
def test_model_that_was_loaded_before_is_like_a_new_one_in_every_state(state: State, unload: tuple[str, ...]):
    """Whatever a request, an unload or a failure has left behind."""
    again = after(*PATHS[State.FAILED], *PATHS[State.READY])
    again.keep_for(500, 5)
    again.unload_requested = again.load_requested = True
    again.progress = 0.7
    for name in (*unload, *PATHS[state]):
        TRANSITIONS[name](again)
    first = after(*PATHS[state])
    # What is loaded again after an unload, since somebody wants it, is wanted until it is loaded.
    first.load_requested = again.load_requested and state in (State.QUEUED, State.LOADING)
    # The time of the last request counts only while a model is loaded.
    is_loaded = again.model is not None
    different = set() if is_loaded else {"used_at", "expires_at"}
    for name in values(first).keys() - different:
        assert repr(getattr(again, name)) == repr(getattr(first, name)), name


def test_model_that_is_loaded_twice_is_kept_as_long_as_the_first_time():
    served = after(*PATHS[State.READY])
    assert (served.used_at, served.expires_at, served.n_bytes) == (2, 62, 77)
    for name in ("drain", "finish_unload"):
        TRANSITIONS[name](served)
    assert (served.model, served.n_bytes) == (None, 0)
    for name in ("queue", "begin_load"):
        TRANSITIONS[name](served)
    served.finish_load(MODEL, 100, math.inf)
    assert (served.used_at, served.expires_at, served.unload_requested) == (100, math.inf, False)


def test_model_in_use_is_never_unloaded():
    served = after(*PATHS[State.DRAINING])
    served.n_users = 1
    with pytest.raises(AssertionError, match="under a request"):
        served.finish_unload()


@pytest.mark.parametrize(
    ("error", "error_class", "text", "n_at_once"),
    [
        (EngineError("broken"), InferenceError, "broken", 0),
        (ValueError(), InferenceError, "ValueError", 0),
        (EngineDied("killed"), InferenceError, "killed", MAX_TRIES - 1),
        (MemoryError(), OutOfResources, "no memory is left", MAX_TRIES - 1),
        (OutOfResources("no file"), OutOfResources, "no file", MAX_TRIES - 1),
    ],
)
def test_failure_is_tried_again_at_once_if_it_may_be_gone_and_later_otherwise(error, error_class, text, n_at_once):
    served = new()
    for _ in range(2):  # The failures before a success do not count.
        for i in range(MAX_TRIES + 2):
            for name in ("queue", "begin_load"):
                TRANSITIONS[name](served)
            served.fail_load(error, 10)
            assert served.failure is not None
            assert (type(served.failure.error), str(served.failure.error)[: len(text)]) == (error_class, text)
            assert served.failure.retry_at == 10 + (0 if i < n_at_once else RETRY_S)
        for name in (*PATHS[State.READY], "crash"):
            TRANSITIONS[name](served)
        assert served.failure is None


def test_failure_has_the_time_that_its_file_had_before_the_load(tmp_path):
    """So a file that is repaired during the load is tried again at once."""
    path = tmp_path / "model.gguf"
    path.touch()
    served = ServedModel(ModelFile(path, "model"))
    served.queue(0)
    served.begin_load()
    stamp = path.stat().st_mtime_ns
    os.utime(path, ns=(stamp + 10**9, stamp + 10**9))
    served.fail_load(ERROR, 0)
    assert served.failure is not None
    assert served.failure.file_stamp == stamp
