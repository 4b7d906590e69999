"""The messages between the server and an engine: every request ends, whenever it is dropped and whatever fails."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from localchat.serving.core.errors import BadRequest, QueueFull
from localchat.serving.core.mailbox import Mailbox
from localchat.serving.engine.engine import Engine
from localchat.serving.engine.engine_client import EngineClient
from localchat.serving.engine.request_runner import RequestRunner
from localchat.serving.engine.values import (
    End,
    EngineDied,
    EngineGone,
    EngineSilent,
    EngineStopped,
    StepOutput,
    TokenizedPrompts,
)
from tests.soak import protocol
from tests.support.deadline import DEADLINE_S
from tests.support.engines import ImmediateDelivery, client_of, copied, request, started, stepped
from tests.support.fakes import FakeBackend, endless


class FakeEngine(EngineClient):
    """A client that records what it sends. The messages of its engine come from the test."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []
        super().__init__(self.sent.append)
        self.max_open = 4

    def stop(self) -> None: ...

    def close(self) -> None: ...


PROMPTS = TokenizedPrompts([1], [()])
TOKEN = StepOutput(0, 0.0, tokens=[7])
LAST = StepOutput(0, 0.0, end=End("stop", 8))


def test_outputs_come_in_order_and_the_error_after_them():
    engine, mailbox = FakeEngine(), Mailbox()
    generation = engine.generate([request()], mailbox)
    id = generation.id
    engine.receive([("accepted", id), ("output", id, PROMPTS), ("steps", [(id, *TOKEN), (id, *TOKEN)])])
    engine.receive([("ended", id, BadRequest("no"))])
    assert generation.take() == [PROMPTS, TOKEN, TOKEN]
    for _ in range(2):
        with pytest.raises(BadRequest, match="no"):
            generation.take()
    assert engine.n_requests == 0


def test_places_are_free_as_sequences_end():
    engine = FakeEngine()
    generation = engine.generate([request()] * 4, Mailbox())
    with pytest.raises(QueueFull, match="4 requests are open, the limit is 4"):
        engine.generate([request()], Mailbox())
    engine.receive([("steps", [(generation.id, *LAST)])])
    other = engine.generate([request()], Mailbox())
    assert engine.n_open == 4
    for _ in range(2):  # One that ended at a stop text. Its end may be on its way.
        generation.drop(1)
        engine.receive([("steps", [(generation.id, *LAST._replace(sequence=1))])])
        assert engine.n_open == 3
    for started_request in (generation, other):
        started_request.drop()
    assert (engine.n_open, engine.n_requests) == (0, 0)
    assert [message[:2] for message in engine.sent] == [
        ("start", generation.id),
        ("start", other.id),
        ("drop", generation.id),
        ("drop", generation.id),
        ("drop", generation.id),
        ("drop", other.id),
    ]


def test_what_comes_for_a_dropped_request_is_ignored_and_it_is_dropped_once():
    engine, mailbox = FakeEngine(), Mailbox()
    first = engine.generate([request()], mailbox)
    engine.receive([("output", first.id, PROMPTS)])
    first.drop()
    first.drop()
    second = engine.generate([request()], mailbox)
    engine.receive([("accepted", first.id), ("steps", [(first.id, *TOKEN)]), ("ended", first.id, None)])
    engine.receive([("output", second.id, PROMPTS), ("ended", second.id, None)])
    assert second.take() == [PROMPTS]
    assert second.take() == []
    assert [kind for kind, *_ in engine.sent] == ["start", "drop", "start"]


@pytest.mark.parametrize(
    ("death", "is_accepted", "error"),
    [
        (EngineDied("killed", "SIGILL"), True, EngineDied),
        (EngineDied("killed", "SIGILL"), False, EngineGone),
        (EngineStopped(), True, EngineStopped),
        (EngineStopped(), False, EngineStopped),
    ],
)
def test_death_ends_all_requests_and_only_those_not_accepted_may_be_sent_again(death, is_accepted, error):
    engine = FakeEngine()
    requests = [engine.generate([request()], Mailbox()) for _ in range(3)]
    if is_accepted:
        engine.receive([("accepted", started_request.id) for started_request in requests])
    engine.end(death)
    for started_request in requests:
        with pytest.raises(type(death)) as raised:
            started_request.take()
        assert type(raised.value) is error
        assert getattr(raised.value, "killed_by", None) == getattr(death, "killed_by", None)
    with pytest.raises(type(death)) as raised:
        engine.generate([request()], Mailbox())
    assert type(raised.value) is (EngineStopped if error is EngineStopped else EngineGone)
    assert engine.n_requests == 0


def test_request_whose_engine_does_not_respond_is_dropped():
    engine = FakeEngine()
    with pytest.raises(EngineSilent, match=r"has not responded for 0\.01 s"):
        engine.stats(0.01)
    assert [kind for kind, *_ in engine.sent] == ["start", "drop"]
    assert engine.n_requests == 0


def test_messages_of_other_requests_do_not_prolong_a_timeout():
    """Such as those of an earlier request, which the thread has dropped."""

    class BusyMailbox(Mailbox):
        n_left = 1000

        def _next(self, ends_at: float) -> list[tuple[object, Any]]:
            assert self.n_left, "the timeout does not end"
            self.n_left -= 1
            self.put("another request", None)
            threading.Event().wait(0.001)
            return super()._next(ends_at)

    mailbox = BusyMailbox()
    with pytest.raises(EngineSilent, match=r"has not responded for 0\.01 s"):
        FakeEngine().generate([request()], mailbox).result(0.01)
    assert mailbox.n_left < 1000


# --- the engine's side ---


class Recorded:
    """The engine's side of the messages, whose work runs when the test says so."""

    def __init__(self, engine: Engine) -> None:
        self.sent: list[tuple[Any, ...]] = []
        self.work: list[Any] = []
        self.server = RequestRunner(self.send, self.work.append, ImmediateDelivery)
        self.server.engine = engine
        self.is_receiving = False

    def send(self, messages: Sequence[tuple[Any, ...]]) -> None:
        assert not self.is_receiving, "the thread that receives messages sends one"
        self.sent += copied(messages)

    def receive(self, *message: Any) -> None:
        self.is_receiving = True
        self.server.receive(*message)
        self.is_receiving = False

    def kinds(self) -> list[str]:
        return [kind for kind, *_ in self.sent]


# What the thread of a request does before its sequences are queued: an event of the engine's side.
MOMENTS = ("before its work begins", "while its prompt is tokenized", "after its sequences are queued", "never")


@pytest.mark.parametrize("moment", MOMENTS)
def test_request_that_is_dropped_at_any_moment_leaves_nothing(moment: str, monkeypatch: pytest.MonkeyPatch):
    with stepped(FakeBackend(endless)) as engine:
        recorded = Recorded(engine)
        recorded.receive("start", 5, "generate", ([request(max_tokens=3), request("other", max_tokens=3)],))

        def drop_at(now: str) -> None:
            if moment == now:
                recorded.receive("drop", 5, None)

        prompt_of = engine.prompts.prompt_of

        def tokenize(generation_request: Any) -> Any:
            drop_at("while its prompt is tokenized")
            return prompt_of(generation_request)

        monkeypatch.setattr(engine.prompts, "prompt_of", tokenize)
        drop_at("before its work begins")
        recorded.work.pop()()
        drop_at("after its sequences are queued")
        while engine.step():
            pass
        assert recorded.server._requests == {}
        assert engine._groups == {}
        n_sampled = engine.stats().n_sampled
    assert n_sampled == (6 if moment == "never" else 0)
    assert recorded.kinds()[0] == "accepted"
    assert recorded.kinds().count("ended") == (moment in ("never", "after its sequences are queued"))


def test_one_sequence_can_be_dropped_and_the_others_go_on():
    with stepped(FakeBackend(endless)) as engine:
        recorded = Recorded(engine)
        recorded.receive("start", 0, "generate", ([request(max_tokens=5), request(max_tokens=5)],))
        recorded.work.pop()()
        engine.step()
        recorded.receive("drop", 0, 1)
        recorded.receive("drop", 0, 1)
        while engine.step():
            pass
        assert engine.stats().n_sampled == 5 + 1
    assert recorded.sent[-1] == ("ended", 0, None)
    assert recorded.server._requests == {}


def test_requests_of_an_engine_that_failed_are_not_accepted():
    with Engine(FakeBackend()) as engine:
        engine.failure = ValueError("broken")
        recorded = Recorded(engine)
        recorded.receive("start", 0, "stats", ())
    assert (recorded.work, recorded.sent) == ([], [])


@pytest.mark.parametrize("error", [ValueError("broken"), EngineStopped()], ids=repr)
def test_request_has_no_output_if_its_engine_ends_before_it_is_queued(error: BaseException, monkeypatch: Any):
    """So another engine can run it."""
    with Engine(FakeBackend()) as engine:
        recorded = Recorded(engine)
        recorded.receive("start", 0, "generate", ([request()],))
        prepare = engine.prepare

        def prepare_and_end(*arguments: Any) -> Any:
            generation = prepare(*arguments)
            engine._stop(error)
            return generation

        monkeypatch.setattr(engine, "prepare", prepare_and_end)
        recorded.work.pop()()
        while engine.step():
            pass
    assert recorded.kinds() == ["accepted", "ended"]
    assert type(recorded.sent[-1][2]) is (EngineStopped if isinstance(error, EngineStopped) else EngineGone)


def test_error_of_a_request_is_its_end():
    with stepped(FakeBackend()) as engine:
        recorded = Recorded(engine)
        recorded.receive("start", 0, "generate", ([request(""), request("a")],))
        recorded.receive("start", 1, "no such method", ())
        for work in recorded.work:
            work()
    assert recorded.kinds() == ["accepted", "ended"] * 2
    assert [str(message[2]) for message in recorded.sent[1::2]] == [
        "the prompt is empty: it needs one token at least",
        "internal error: see the server's log",
    ]
    assert recorded.server._requests == {}


def test_biases_of_texts_are_one_message_for_all_prompts():
    biases = tuple((f"{i:03}", 1.0) for i in range(500))
    requests = [request(str(i), max_tokens=1, logit_bias=biases) for i in range(20)]
    with stepped(FakeBackend()) as engine:
        recorded = Recorded(engine)
        sequences = [copied(one) for one in requests]
        recorded.receive("start", 0, "generate", (sequences,))
        recorded.work.pop()()
        while engine.step():
            pass
    assert recorded.kinds().count("output") == 1


def test_drops_do_not_wait_for_an_engine_that_is_busy():
    """The thread that receives drops never waits, also while the prompt of the request is tokenized."""
    may_go_on = threading.Event()
    with started(FakeBackend()) as engine:
        tokenize = engine.prompts.tokenize_prompt

        def waiting(*arguments: Any, **options: Any) -> Any:
            assert may_go_on.wait(DEADLINE_S)
            return tokenize(*arguments, **options)

        engine.prompts.tokenize_prompt = waiting  # type: ignore[method-assign]
        client = client_of(engine)
        counting = client._start("count_tokens", ([("a", True)], False), Mailbox())
        counting.drop()
        assert client.tokenize("still there")
        may_go_on.set()


def test_processes_under_load_lose_nothing():
    assert "1 rounds" in protocol.protocol(1, 1)
