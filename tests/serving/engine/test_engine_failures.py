"""Errors of the engine thread at any place: every request ends, and the engine goes on or has stopped."""

import functools
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from localchat.serving.core.errors import ApiError
from localchat.serving.engine.engine import Engine
from localchat.serving.engine.protocols import DecodeFailed
from localchat.serving.engine.token_sampler import TokenSampler
from localchat.serving.engine.values import EngineDied, EngineError, EngineStopped
from tests.support.deadline import DEADLINE_S
from tests.support.engines import read, request_for, started, step_until_idle, submit
from tests.support.fakes import FakeBackend, endless
from tests.support.serving import wait_for

TEXTS = ("one one one", "two two", "three")

# Where errors are raised, by the paths of the methods from the engine. An error while a token is sampled ends its
# request alone; all others stop the engine.
SAMPLING = ("backend.sample", "backend.logprobs", "texts.is_end")
SCHEDULING = [f"_scheduler.{name}" for name in ("add", "schedule", "update", "remove")]
PLACES = (*SAMPLING, "backend.decode", "backend.clear", *SCHEDULING, "_cache.release", "_send_due")


def break_once(engine: Engine, place: str, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Raise an error in place of the next call of a method on the engine thread. Returns a list that then has it."""
    *path, name = place.split(".")
    target: Any = functools.reduce(getattr, path, engine)
    method, raised = getattr(target, name), []

    def broken(*args: Any, **options: Any) -> Any:
        if not raised and threading.current_thread().name == "localchat-engine":
            raised.append(place)
            raise error
        return method(*args, **options)

    monkeypatch.setattr(target, name, broken)
    return raised


def ask(engine: Engine, text: str) -> str | ApiError:
    """The text that a request generates, or its error."""
    try:
        return read(submit(engine, request_for(tuple(text.encode()), top_logprobs=1, min_tokens=1)))[0]
    except ApiError as error:
        return error


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3)], ids=repr)
@pytest.mark.parametrize("place", PLACES)
def test_error_in_the_thread_leaves_no_request_open(place: str, error: BaseException, monkeypatch: pytest.MonkeyPatch):
    backend = FakeBackend(max_drafted=4)
    with ThreadPoolExecutor() as threads, started(backend) as engine:
        assert ask(engine, "before") == "before"
        raised = break_once(engine, place, error, monkeypatch)
        all_are_submitted = threading.Event()
        engine.post(lambda: all_are_submitted.wait(DEADLINE_S))
        engine.forget()
        asked = [threads.submit(ask, engine, text) for text in TEXTS]
        wait_for(lambda: len(engine._groups) == len(TEXTS))
        all_are_submitted.set()
        ends = [end.result(DEADLINE_S) for end in asked]
        for end, text in zip(ends, TEXTS):
            assert end == text or isinstance(end, ApiError)
        if place in SAMPLING and isinstance(error, Exception):
            assert raised
            assert sum(isinstance(end, ApiError) for end in ends) <= 1
            assert ask(engine, "again") == "again"
            assert engine.failure is None
        else:
            engine.join()
            assert engine.failure is error
            refusal = ask(engine, "refused")
            assert isinstance(refusal, EngineDied)
            assert str(refusal) == f"the engine has stopped: {error!r}"
    assert backend.is_closed


@pytest.mark.parametrize("n_steps", [0, 1, 2])
def test_close_of_an_engine_that_is_stepped_by_hand_ends_all_sequences(n_steps: int):
    """The second one waits for the first one."""
    ends: list[Exception | None] = []
    with Engine(FakeBackend(endless, n_parallel=1)) as engine:
        for _ in range(2):
            engine.submit(engine.prepare([request_for(tuple(b"text"))], lambda output: None, ends.append))
        for _ in range(n_steps):
            engine.step()
    assert [type(end) for end in ends] == [EngineStopped] * 2


def test_output_of_a_step_is_passed_on_before_the_next_one_is_decoded():
    backend, seen = FakeBackend(n_batch=8), []
    with Engine(backend, send_due=lambda at_once: seen.append(len(backend.batches))) as engine:
        submit(engine, request_for(tuple(b"a prompt of several steps")))
        step_until_idle(engine)
    assert seen[: len(backend.batches)] == list(range(1, len(backend.batches) + 1))


def test_warm_up_that_fails_is_an_error_of_the_load():
    """Otherwise the model would be ready, and all of its requests would fail."""
    backend = FakeBackend()
    backend.decode = mock.Mock(side_effect=DecodeFailed("no memory"))  # type: ignore[method-assign]
    with Engine(backend) as engine, pytest.raises(EngineError, match="no memory"):
        engine.warm_up([request_for((1, 2), max_tokens=2)] * 2)


def test_output_is_due_at_once_only_when_nothing_runs():
    """While steps follow one another, the delivery decides when to send."""
    due: list[bool] = []
    with Engine(FakeBackend(), send_due=due.append) as engine:
        submit(engine, request_for(tuple(b"text")))
        while engine.step():
            assert due.pop() is False
        assert due == [True]


def test_sampler_that_can_start_no_thread_samples_alone(monkeypatch: pytest.MonkeyPatch):
    """A thread that could not be started in a step would end the engine."""
    backend = FakeBackend()
    backend.facts = replace(backend.facts, n_vocab=20_000)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert TokenSampler(backend, backend.texts)._n_shares == 4
    monkeypatch.setattr(threading.Thread, "start", mock.Mock(side_effect=RuntimeError("can't start new thread")))
    assert TokenSampler(backend, backend.texts)._n_shares == 1
