"""The output of one sequence: items of the engine become output events, up to the end of the output."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from localchat.serving.chat.dialects.reasoning import ReasoningTags
from localchat.serving.chat.output import Output, PlainText
from localchat.serving.chat.run import GenerationRun, Prepared
from localchat.serving.core.events import (
    ContentDelta,
    OutputEnd,
    OutputEvent,
    OutputToken,
    PromptLogprobs,
    PromptProgress,
    ReasoningDelta,
    SampledTokens,
    ToolCallArguments,
    ToolCallStart,
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
    output = Output(PlainText(), first_events=lambda tokens: [ContentDelta("Once")], reports_prompt=True)
    progress, *events = read(output, PromptProgress(1, 2, 0, 0.5), Delta((TOKEN,)), Finish("stop", 5, USAGE, TOKEN))
    assert isinstance(progress, PromptProgress)
    assert events == [
        PromptLogprobs((TOKEN,)),
        ContentDelta("Once"),
        SampledTokens((TOKEN,)),
        ContentDelta("a"),
        OutputEnd("stop", 5, TOKEN),
    ]


@pytest.mark.parametrize("splits_reasoning", [True, False], ids=["apart too", "in the content alone"])
def test_reasoning_is_in_the_content_within_its_tags(splits_reasoning: bool):
    parser = Scripted({"1": [ReasoningDelta("h")], "2": [ReasoningDelta("m"), ContentDelta("yes")]})
    tags = ReasoningTags("<t>", "</t>")
    output = Output(parser, reasoning_tags=tags, splits_reasoning=splits_reasoning)  # type: ignore[arg-type]
    events = read(output, *(Delta((OutputToken(0, piece),)) for piece in (b"1", b"2")))
    assert [event for event in events if splits_reasoning or not isinstance(event, ReasoningDelta)] == events
    assert [event for event in events if not isinstance(event, ReasoningDelta)] == [
        SampledTokens((OutputToken(0, b"1"),)),
        ContentDelta("<t>h"),
        SampledTokens((OutputToken(0, b"2"),)),
        ContentDelta("m"),
        ContentDelta("</t>"),
        ContentDelta("yes"),
    ]


@pytest.mark.parametrize("second", [[], [ToolCallStart(1, "b", "g"), ToolCallArguments(1, "{")]])
def test_v3_output_ends_after_a_single_call(second: list[OutputEvent]):
    first: list[OutputEvent] = [ToolCallStart(0, "a", "f"), ToolCallArguments(0, "{}")]
    parser = Scripted({"a": [*first, *second]}, has_calls=True, is_inside=bool(second))
    output = Output(parser, single_call=True)  # type: ignore[arg-type]
    assert read(output, Delta((TOKEN, TOKEN))) == [SampledTokens((TOKEN,)), *first, OutputEnd("tool_calls")]
    assert (output.is_over, output.n_completion) == (True, 1)


class ScriptedRun:
    """The engine's run of one sequence, whose first token completes a call."""

    def __init__(self) -> None:
        self.ended: list[int] = []

    def take(self, timeout_s: float | None) -> list[tuple[int, Delta | Finish]]:
        return [(0, Delta((TOKEN,))), (0, Delta((TOKEN,))), (0, Finish("stop", 5, USAGE))]

    def prompt_tokens(self, index: int) -> tuple[OutputToken, ...]:
        return ()

    def end(self, index: int) -> None:
        self.ended.append(index)


def test_items_after_the_end_of_an_output_are_dropped():
    call: list[OutputEvent] = [ToolCallStart(0, "a", "f"), ToolCallArguments(0, "{}")]
    output = Output(Scripted({"a": call}, has_calls=True), single_call=True)  # type: ignore[arg-type]
    scripted = ScriptedRun()
    engine = SimpleNamespace(max_open=1, submit=lambda sequences: scripted)
    prepared = Prepared([request_for((1,))], [output], 1, "messages")
    run = GenerationRun(SimpleNamespace(name="m", engine=engine), prepared, "x-")  # type: ignore[arg-type]
    assert run.take() == [(0, event) for event in (SampledTokens((TOKEN,)), *call, OutputEnd("tool_calls"))]
    assert scripted.ended == [0]
