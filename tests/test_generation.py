"""The output of one sequence: items of the engine become output events, up to the end of the output."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from localchat.serving.chat.dialects.reasoning import ReasoningTags
from localchat.serving.chat.output import Output, PlainText
from localchat.serving.chat.run import GenerationRun
from localchat.serving.core.events import (
    ContentDelta,
    OutputEnd,
    OutputEvent,
    OutputToken,
    PromptLogprobs,
    PromptProgress,
    ReasoningDelta,
    SampledTokens,
)
from localchat.serving.core.usage import Usage
from localchat.serving.engine import Delta, Finish

from .engines import request_for

USAGE = Usage(n_prompt=1, n_cached=0, n_completion=1, prompt_s=0, completion_s=0)
TOKEN = OutputToken(97, b"a")


class Scripted:
    """A parser that returns the given events for the text of each token."""

    reasoning_is_open = False

    def __init__(
        self, events: dict[str, list[OutputEvent]], *, has_calls: bool = False, is_inside: bool = False
    ) -> None:
        self.has_tool_calls = has_calls
        self.inside_tool_call = is_inside
        self._events = events

    def feed(self, text: str) -> list[OutputEvent]:
        return self._events.get(text, [])

    def finish(self) -> list[OutputEvent]:
        return []


def read(output: Output, *items: PromptProgress | Delta | Finish) -> list[OutputEvent]:
    return [event for item in items for event in output.read(item, lambda: (TOKEN,))]


@pytest.mark.parametrize(
    ("reason", "has_calls", "is_cut", "expected"),
    [
        ("stop", False, False, "stop"),
        ("length", False, False, "length"),
        ("stop", True, False, "tool_calls"),
        ("length", True, False, "tool_calls"),
        ("length", True, True, "length"),
        ("stop", True, True, "stop"),
    ],
)
def test_k6_finish_reason(reason: str, has_calls: bool, is_cut: bool, expected: str):
    """V31."""
    output = Output(Scripted({}, has_calls=has_calls, is_inside=is_cut))  # type: ignore[arg-type]
    assert read(output, Finish(reason, None, USAGE)) == [OutputEnd(expected)]
    assert output.finish_reason == expected


def test_first_events_come_before_the_first_token_and_after_progress():
    output = Output(PlainText(), first_events=lambda tokens: [PromptLogprobs(tokens()), ContentDelta("Once")])
    progress, *events = read(output, PromptProgress(1, 2, 0, 0.5), Delta((TOKEN,)), Finish("stop", 5, USAGE, TOKEN))
    assert isinstance(progress, PromptProgress)
    assert events == [
        PromptLogprobs((TOKEN,)),
        ContentDelta("Once"),
        SampledTokens((TOKEN,)),
        ContentDelta("a"),
        OutputEnd("stop", 5, TOKEN),
    ]


def test_reasoning_is_in_the_content_within_its_tags():
    parser = Scripted({"1": [ReasoningDelta("h")], "2": [ReasoningDelta("m"), ContentDelta("yes")]})
    output = Output(parser, reasoning_tags=ReasoningTags("<t>", "</t>"))  # type: ignore[arg-type]
    assert read(output, *(Delta((OutputToken(0, piece),)) for piece in (b"1", b"2"))) == [
        SampledTokens((OutputToken(0, b"1"),)),
        ContentDelta("<t>h"),
        SampledTokens((OutputToken(0, b"2"),)),
        ContentDelta("m"),
        ContentDelta("</t>"),
        ContentDelta("yes"),
    ]


class ScriptedRun:
    """The engine's run of one sequence, whose first token ends the output."""

    def __init__(self) -> None:
        self.ended: list[int] = []

    def take(self, timeout_s: float | None) -> list[tuple[int, Delta | Finish]]:
        return [(0, Delta((TOKEN,))), (0, Delta((TOKEN,))), (0, Finish("stop", 5, USAGE))]

    def prompt_tokens(self, index: int) -> tuple[OutputToken, ...]:
        return ()

    def end(self, index: int) -> None:
        self.ended.append(index)


def test_items_after_the_end_of_an_output_are_dropped():
    scripted = ScriptedRun()
    model = SimpleNamespace(name="m", engine=SimpleNamespace(max_open=1, submit=lambda sequences: scripted))
    outputs = [Output(PlainText(), stop=("a",))]
    run = GenerationRun(model, [request_for((1,))], outputs, "x-", n_each=1, prompt_field="prompt")  # type: ignore[arg-type]
    assert run.take() == [(0, SampledTokens((TOKEN,))), (0, OutputEnd("stop", "a"))]
    assert scripted.ended == [0]
