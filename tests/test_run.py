"""Runs with several sequences, on a fake backend."""

from __future__ import annotations

import threading

import pytest

from localchat.serving.core.errors import BadRequest, QueueFull
from localchat.serving.core.events import OutputEnd, SampledTokens
from localchat.serving.engine.values import Cancelled, EngineError

from .engines import DEADLINE_S, request, request_for, running, step_until_idle, stepped, text_of
from .fakes import FakeBackend, echo, endless


def test_items_of_all_sequences_come_in_order_with_their_index():
    with stepped(FakeBackend()) as engine, engine.submit([request("ab"), request("cdef")]) as run:
        texts, ends = ["", ""], []
        while run.is_running:
            engine.step()
            for index, item in run.take(0):
                if isinstance(item, OutputEnd):
                    ends.append(index)
                else:
                    assert isinstance(item, SampledTokens)
                    assert index not in ends
                    texts[index] += text_of([item])
        assert (texts, sorted(ends)) == (["ab", "cdef"], [0, 1])
        assert [run.usage(i).n_completion for i in range(2)] == [3, 5]
        assert run.take() == []


def test_all_sequences_are_queued_or_none():
    with stepped(FakeBackend(n_parallel=1), max_queue=2) as engine:
        with pytest.raises(BadRequest):
            engine.submit([request("ab"), request_for((999,))])
        with pytest.raises(QueueFull):
            engine.submit([request("ab")] * 4)
        assert engine.backend.n_samplers == 0  # type: ignore[attr-defined]
        with engine.submit([request("ab")] * 3):
            step_until_idle(engine)


def test_one_sequence_can_be_ended_and_the_others_continue():
    with stepped(FakeBackend(endless)) as engine, engine.submit([request(max_tokens=9), request(max_tokens=4)]) as run:
        engine.step()
        run.end(0)
        step_until_idle(engine)
        assert [(i, type(item)) for i, item in run.take()] == [(1, SampledTokens), (1, OutputEnd)]
        assert not run.is_running
        assert run.take() == []


@pytest.mark.parametrize("n_steps", [0, 3])
def test_cancel_of_all_raises_after_the_items_before_it(n_steps: int):
    with stepped(FakeBackend(endless)) as engine, engine.submit([request(), request()]) as run:
        for _ in range(n_steps):
            engine.step()
        run.cancel()
        step_until_idle(engine)
        texts = [text_of([item]) for _, item in run.take()] if n_steps else []
        assert texts == ["abc"[:n_steps]] * (2 if n_steps else 0)
        assert run.is_running
        with pytest.raises(Cancelled):
            run.take()
        assert not run.is_running


def test_failure_of_one_sequence_ends_the_run():
    backend = FakeBackend(echo, poison=ord("!"))
    with stepped(backend) as engine, engine.submit([request("good"), request("bad!")]) as run:
        step_until_idle(engine)
        assert run.take()
        with pytest.raises(EngineError, match="could not compute"):
            run.take()
        assert not run.is_running


def test_time_in_the_queue_is_apart_from_the_time_of_the_prompt():
    gate = threading.Semaphore(0)
    with (
        running(FakeBackend(n_parallel=1, gate=gate)) as engine,
        engine.submit([request("ab")]) as first,
        engine.submit([request("cd")]) as second,
    ):
        assert first.take(0.05) == second.take(0.05) == []
        gate.release(100)
        for run in (first, second):
            while run.is_running:
                run.take(DEADLINE_S)
        assert second.usage(0).queue_s > 0.05 > second.usage(0).prompt_s
        assert first.usage(0).queue_s < 0.05 < first.usage(0).prompt_s
