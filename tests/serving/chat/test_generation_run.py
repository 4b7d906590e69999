"""Runs with several sequences, on a fake backend."""

from __future__ import annotations

import threading

import pytest

from localchat.serving.api.chat import ChatRequest
from localchat.serving.chat.model import Model
from localchat.serving.chat.runs.start import start_chat
from localchat.serving.core.errors import BadRequest, QueueFull
from localchat.serving.core.events import ContentDelta, OutputEnd, SampledTokens
from localchat.serving.engine.values import Cancelled, EngineError
from tests.support.engines import DEADLINE_S, request, request_for, run_of, running, step_until_idle, stepped, submit
from tests.support.fakes import FakeBackend, echo, endless


def test_events_of_all_sequences_come_in_order_with_their_index():
    with stepped(FakeBackend()) as engine, run_of(engine, [request("ab"), request("cdef")]) as run:
        texts, ends = ["", ""], []
        while run.is_running:
            engine.step()
            for index, event in run.take(0):
                assert index not in ends
                if isinstance(event, OutputEnd):
                    ends.append(index)
                elif isinstance(event, ContentDelta):
                    texts[index] += event.text
        assert (texts, sorted(ends)) == (["ab", "cdef"], [0, 1])
        assert [output.usage().n_completion for output in run.outputs] == [3, 5]


def test_all_sequences_are_queued_or_none():
    with stepped(FakeBackend(n_parallel=1), max_queue=2) as engine:
        with pytest.raises(BadRequest):
            engine.submit([request("ab"), request_for((999,))], print)
        with pytest.raises(QueueFull):
            engine.submit([request("ab")] * 4, print)
        assert not engine.step()
        engine.submit([request("ab")] * 3, lambda output: None)
        step_until_idle(engine)


def test_nothing_is_made_for_a_request_beyond_the_queue(monkeypatch: pytest.MonkeyPatch):
    with stepped(FakeBackend(n_parallel=1, chat_template="{{ messages }}"), max_queue=0) as engine:
        engine.submit([request("ab")], print)
        monkeypatch.setattr(engine.backend, "new_sampler", None)
        with pytest.raises(QueueFull):
            engine.submit([request("ab")], print)
        monkeypatch.setattr(engine, "tokenize_prompt", None)
        with pytest.raises(QueueFull):
            start_chat(Model("m", engine), ChatRequest(messages=({"role": "user", "content": "a"},)), "")


def test_one_sequence_can_end_at_a_stop_text_and_the_others_continue():
    requests = [request(max_tokens=9, stop=("b",)), request(max_tokens=4)]
    with stepped(FakeBackend(endless)) as engine, run_of(engine, requests) as run:
        for _ in range(3):
            engine.step()
        first = [event for index, event in run.take() if index == 0]
        # The step after the stop text has no events, nor has the end of the sequence.
        assert first[1:] == [ContentDelta("a"), OutputEnd("stop", "b")]
        step_until_idle(engine)
        assert engine.stats().n_sampled == 3 + 4
        assert [(i, event) for i, event in run.take() if not isinstance(event, SampledTokens)] == [
            (1, ContentDelta("d")),
            (1, OutputEnd("length")),
        ]
        assert not run.is_running


@pytest.mark.parametrize("n_steps", [0, 3])
def test_cancel_of_all_raises_after_the_events_before_it(n_steps: int):
    with stepped(FakeBackend(endless)) as engine, run_of(engine, [request(), request()]) as run:
        for _ in range(n_steps):
            engine.step()
        run.cancel()
        step_until_idle(engine)
        events = run.take() if n_steps else []
        assert [event.text for _, event in events if isinstance(event, ContentDelta)] == ["abc"] * (2 if n_steps else 0)
        assert run.is_running
        with pytest.raises(Cancelled):
            run.take()
        assert not run.is_running


def test_failure_of_one_sequence_ends_the_run():
    backend = FakeBackend(echo, poison=ord("!"))
    with stepped(backend) as engine, run_of(engine, [request("good"), request("bad!")]) as run:
        step_until_idle(engine)
        assert run.take()
        with pytest.raises(EngineError, match="could not compute"):
            run.take()
        assert not run.is_running


def test_time_in_the_queue_is_apart_from_the_time_of_the_prompt():
    gate = threading.Semaphore(0)
    with (
        running(FakeBackend(n_parallel=1, gate=gate)) as engine,
        submit(engine, request("ab")) as first,
        submit(engine, request("cd")) as second,
    ):
        assert not first.wait(0.05)
        assert not second.wait(0.05)
        gate.release(100)
        for generation in (first, second):
            while generation.run.is_running:
                generation.run.take(DEADLINE_S)
        assert second.run.usage().queue_s > 0.05 > second.run.usage().prompt_s
        assert first.run.usage().queue_s < 0.05 < first.run.usage().prompt_s
