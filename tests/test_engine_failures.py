"""Errors of the engine thread at any place: each request ends, and the engine continues or has stopped."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from localchat.serving.engine import Engine, EngineError, EngineStopped, Finish

from .engines import text_of
from .fakes import FakeBackend
from .generations import Generation, request_for, submit
from .serving import serving

DEADLINE_S = 10
TEXTS = ("one one one", "two two", "three")

# Where errors are raised: one or more methods, by their paths from the engine.
PLACES: dict[str, tuple[str, ...]] = {
    "decode": ("backend.decode",),
    "clear": ("backend.clear",),
    "sample": ("backend.sample",),
    "is_end": ("backend.is_end",),
    "logprobs": ("backend.logprobs",),
    "allow_ends": ("backend.allow_ends",),
    "free_sampler": ("backend.free_sampler",),
    "scheduler adds": ("_scheduler.add",),
    "scheduler schedules": ("_scheduler.schedule",),
    "scheduler updates": ("_scheduler.update",),
    "scheduler removes": ("_scheduler.remove",),
    "drafter drafts": ("_drafters.0.draft",),
    "drafter forgets": ("_drafters.0.forget",),
    "prefix": ("_cache.release",),
    "failure path": ("backend.decode", "_scheduler.reset"),
    "whole failure path": (
        "backend.decode",
        "_scheduler.reset",
        "backend.free_sampler",
        "_drafters.0.forget",
    ),
}
# An error at these places ends at most one request.
AFFECTS_ONE = {"sample", "logprobs", "allow_ends", "free_sampler", "scheduler adds"}
FAILS_FOR_GOOD = {"failure path", "whole failure path"}


class Fault:
    """Raises `error` in place of a method on the engine thread, `n_times`; -1 for always."""

    def __init__(self, error: BaseException, n_times: int) -> None:
        self.error = error
        self.n_left = n_times
        self.was_raised = False

    def put_into(self, engine: Engine, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
        *path, name = place.split(".")
        target: Any = engine
        for part in path:
            target = target[int(part)] if part.isdigit() else getattr(target, part)
        monkeypatch.setattr(target, name, self.around(getattr(target, name)))

    def around(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def broken(*args: Any, **options: Any) -> Any:
            if self.n_left and threading.current_thread().name == "localchat-engine":
                self.n_left -= 1
                self.was_raised = True
                raise self.error
            return method(*args, **options)

        return broken


@contextlib.contextmanager
def started(backend: FakeBackend) -> Iterator[Engine]:
    with Engine(backend).start() as engine:
        yield engine
    assert backend.is_closed


def end_of(generation: Generation) -> str | EngineError:
    """The text of a generation, or its error; fails if neither comes in time."""
    text = ""
    while generation.wait(DEADLINE_S):
        try:
            item = next(generation)
        except EngineError as error:
            return error
        if isinstance(item, Finish):
            return text
        text += text_of([item])
    pytest.fail(f"no end after {text!r}")


def ask(engine: Engine, text: str) -> Generation:
    return submit(engine, request_for(tuple(text.encode()), top_logprobs=1, min_tokens=1))


@pytest.mark.parametrize(
    ("place", "error"),
    [
        pair
        for i, place in enumerate(PLACES)
        for pair in ((place, ValueError("broken")), (place, SystemExit(3) if i % 2 else KeyboardInterrupt()))
    ],
    ids=repr,
)
def test_error_in_the_engine_thread_ends_requests_and_leaves_none_waiting(
    place: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
):
    with started(FakeBackend(max_drafted=4)) as engine:
        assert end_of(ask(engine, "before")) == "before"
        faults = [Fault(error, 1) for _ in PLACES[place]]
        for fault, where in zip(faults, PLACES[place]):
            fault.put_into(engine, where, monkeypatch)
        engine.forget()
        all_are_submitted = threading.Event()
        engine.post(lambda: all_are_submitted.wait(DEADLINE_S))
        generations = [ask(engine, text) for text in TEXTS]
        all_are_submitted.set()
        ends = [end_of(generation) for generation in generations]
        for end, text in zip(ends, TEXTS):
            assert end == text or isinstance(end, EngineError)
        if place in AFFECTS_ONE and isinstance(error, Exception):
            assert sum(isinstance(end, EngineError) for end in ends) <= 1
        assert faults[0].was_raised
        try:
            # The failure may follow the ends above by a moment.
            assert end_of(ask(engine, "again")) == "again" or engine.failure is error
        except EngineStopped:
            assert engine.failure is error
        if place in FAILS_FOR_GOOD or not isinstance(error, Exception):
            assert engine.failure is error
            with pytest.raises(EngineStopped, match="the engine has stopped"):
                ask(engine, "refused")
        else:
            assert engine.failure is None


@pytest.mark.parametrize("place", PLACES)
def test_error_that_stays_ends_every_request(place: str, monkeypatch: pytest.MonkeyPatch):
    """The engine stops in the end, unless the requests complete in spite of the error."""
    with started(FakeBackend(max_drafted=4)) as engine:
        for where in PLACES[place]:
            Fault(ValueError("broken"), -1).put_into(engine, where, monkeypatch)
        for _ in range(6):
            try:
                generations = [ask(engine, text) for text in TEXTS]
            except EngineStopped:
                assert engine.failure is not None
                break
            for generation, text in zip(generations, TEXTS):
                end = end_of(generation)
                assert end == text or isinstance(end, EngineError)
        else:
            assert engine.failure is None


def test_command_that_fails_ends_no_request_behind_it():
    def broken() -> None:
        raise ZeroDivisionError("a broken command")

    with started(FakeBackend()) as engine:
        engine.post(broken)
        assert end_of(ask(engine, "still here")) == "still here"


def test_command_that_ends_the_thread_is_a_failure():
    def leave() -> None:
        raise SystemExit

    with started(FakeBackend()) as engine:
        engine.post(leave)
        with contextlib.suppress(EngineStopped):
            assert isinstance(end_of(ask(engine, "too late")), EngineStopped)
        assert isinstance(engine.failure, SystemExit)


def test_failed_engine_shows_in_health_and_metrics(monkeypatch: pytest.MonkeyPatch):
    with serving() as server, contextlib.closing(server.client()) as client:

        def get(path: str) -> tuple[int, str]:
            client.request("GET", path)
            response = client.getresponse()
            return response.status, response.read().decode()

        assert get("/health")[0] == 200
        assert "localchat_up 1\n" in get("/metrics")[1]
        Fault(SystemExit(), 1).put_into(server.engine, "backend.decode", monkeypatch)
        status, body = server.chat()
        assert (status, body["error"]["type"]) == (500, "inference_error")
        status, text = get("/health")
        message = json.loads(text)["error"]["message"]
        assert (status, message) == (500, "the engine has failed: ")
        assert "localchat_up 0\n" in get("/metrics")[1]


def test_request_that_the_scheduler_refuses_ends_alone(monkeypatch: pytest.MonkeyPatch):
    with Engine(FakeBackend()) as engine:
        run = engine.submit([request_for((1, 2, 3))])
        monkeypatch.setattr(engine._scheduler, "add", lambda sequence: 1 / 0)
        engine.step()
        with pytest.raises(EngineError, match="could not be started: division by zero"):
            list(iter(lambda: run.take(DEADLINE_S), []))
        assert engine.failure is None


def test_output_of_a_step_is_passed_on_before_the_next_one_is_decoded():
    backend, seen = FakeBackend(n_batch=8), []
    engine = Engine(backend, after_step=lambda: seen.append(len(backend.batches)))
    with engine:
        submit(engine, request_for(tuple(b"a prompt of several steps")))
        while engine.step():
            pass
    assert seen[: len(backend.batches)] == list(range(1, len(backend.batches) + 1))
