"""When an engine process sends what its steps produce, and how the outputs of several steps are read."""

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from localchat.serving.api.chat import ChatEncoder
from localchat.serving.core.events import ContentDelta, PromptProgress, ResponseHead, SampledTokens, Usage
from localchat.serving.core.request import ChatRequest
from localchat.serving.engine import delivery
from localchat.serving.engine.values import End, StepOutput, TokenizedPrompts
from tests.support.engines import events_of, output_of

PROGRESS = PromptProgress(1, 1, 0, 0.0)


class Process:
    """An engine process whose steps take a given time, and the messages that it sends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[Sequence[tuple[Any, ...]]] = []
        self.now = 100.0
        self.delivery = delivery.Delivery(self.sent.append)
        monkeypatch.setattr(delivery, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def step(self, seconds: float, *outputs: StepOutput, is_due: bool = False) -> int:
        """Run a step with these outputs; returns the number of messages so far."""
        self.now += seconds
        for output in outputs:
            self.delivery.add(7, output)
        self.delivery.send_due(is_due)
        return len(self.sent)

    def outputs(self) -> Any:
        """The outputs of the second message."""
        ((kind, outputs),) = self.sent[1]
        assert kind == "steps"
        return outputs


def token(id: int, sequence: int = 0, **fields: Any) -> StepOutput:
    return StepOutput(sequence, 0.0, tokens=[id], **fields)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    """A process that has just sent a message."""
    process = Process(monkeypatch)
    assert process.step(0.001, token(0, progress=PROGRESS)) == 1
    return process


def test_output_of_slow_steps_is_sent_at_once(process: Process):
    assert [process.step(0.03, token(i)) for i in range(3)] == [2, 3, 4]


def test_output_of_fast_steps_is_joined_and_not_held_longer_than_the_interval(process: Process):
    counts = [process.step(0.006, token(i), token(i, 1)) for i in range(1, 5)]
    assert counts == [1, 2, 2, 3]  # A third step would end 18 ms after the last message.
    assert [(*output[:2], output[3]) for output in process.outputs()] == [(7, 0, [1, 2]), (7, 1, [1, 2])]


def test_output_with_progress_is_neither_joined_nor_overtaken(process: Process):
    process.step(0.006, token(1), token(2, progress=PROGRESS), token(3), token(4))
    assert [output[3] for output in process.outputs()] == [[1], [2], [3, 4]]


def test_joined_output_has_what_its_parts_have(process: Process):
    parts = [StepOutput(0, 0.0, tokens=[i, i + 1], n_drafted=10 * i, n_draft_accepted=i) for i in (1, 3)]
    process.step(0.006, *parts)
    process.step(0.006, is_due=True)
    ((id, *fields),) = process.outputs()
    assert (id, StepOutput(*fields)) == (7, StepOutput(0, 0.0, tokens=[1, 2, 3, 4], n_drafted=40, n_draft_accepted=4))


@pytest.mark.parametrize(
    "urgent",
    [token(1, progress=PROGRESS), StepOutput(0, 0.0, end=End("stop", 2)), StepOutput(0, 0.0, progress=PROGRESS)],
)
def test_what_a_client_waits_for_is_sent_at_once(urgent: StepOutput, process: Process):
    assert process.step(0.001, token(3, 1)) == 1
    assert process.step(0.001, urgent) == 2
    assert [output[1] for output in process.outputs()] == [1, 0]


def test_first_output_of_a_request_is_sent_at_once_and_before_its_tokens(process: Process):
    process.delivery.start(7, TokenizedPrompts([1], [()]))
    assert process.step(0.001, token(1)) == 2
    assert [message[0] for message in process.sent[1]] == ["output", "steps"]


def test_what_is_held_is_sent_before_a_long_step_and_when_nothing_runs(process: Process):
    assert process.step(0.001, token(1)) == 1
    assert [process.step(0.0, is_due=True) for _ in range(2)] == [2, 2]


def test_end_of_a_request_is_sent_at_once_after_all_of_its_outputs(process: Process):
    process.delivery.end(7, None)
    assert process.step(0.001, token(1)) == 2
    assert [message[0] for message in process.sent[1]] == ["steps", "ended"]


def test_interval_grows_with_the_sequences(process: Process):
    seconds = 0.004
    n_steps = next(n for n in itertools.count(1) if process.step(seconds, *(token(n, i) for i in range(64))) == 2)
    assert 64 / ((n_steps + 1) * seconds) <= delivery._MAX_EVENTS_PER_S < 64 / ((n_steps - 2) * seconds)


def test_tokens_that_no_response_shows_are_no_events_but_the_first():
    output = output_of([b"a", b"b"], returns_ids=False)
    assert events_of(output, 0) == [SampledTokens(()), ContentDelta("a")]
    assert events_of(output, 1, 1) == [ContentDelta("bb")]
    assert output.usage().n_completion == 3


@pytest.mark.parametrize("fields", [{}, {"include_usage": True}, {"thought_field": True}])
def test_chunks_around_a_text_are_those_of_the_slow_way(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    def chunks(is_plain: bool) -> list[str]:
        request = ChatRequest(messages=({"role": "user", "content": "x"},), stream=True, **fields)
        encoder = ChatEncoder(ResponseHead("id", 0, 'a"b\0'), request, lambda index=None: Usage(1, 0, 2, 0.0, 0.0))
        encoder._is_plain = is_plain
        for text in ("a", '"\\\0\u2028', "é"):
            encoder.add(0, ContentDelta(text))
        return encoder.take()

    assert chunks(True) == chunks(False)
