"""The output of one sequence: items of the engine become output events, up to the end of the output."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from localchat.serving.chat.dialects import DIALECTS
from localchat.serving.chat.dialects.parser import OutputParser
from localchat.serving.chat.run import GenerationRun, Output, PlainText
from localchat.serving.core.events import (
    ContentDelta,
    OutputEnd,
    OutputEvent,
    OutputToken,
    PromptLogprobs,
    PromptProgress,
    SampledTokens,
)

from .engines import request_for
from .serving import TOOLS

TOKEN = OutputToken(97, b"a")
CALL = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'


def read(output: Output, *items: PromptProgress | SampledTokens | OutputEnd) -> list[OutputEvent]:
    return [event for item in items for event in output.read(item, lambda: (TOKEN,))]


@pytest.mark.parametrize(
    ("text", "reason", "expected"),
    [
        ("Hi", "stop", "stop"),
        ("Hi", "length", "length"),
        (CALL, "stop", "tool_calls"),
        (CALL, "length", "tool_calls"),
        (CALL + CALL[:-15], "length", "length"),
        (CALL[:-15], "stop", "stop"),
    ],
)
def test_k6_finish_reason(text: str, reason: str, expected: str):
    """V31: an output with a call that is cut does not end with "tool_calls", since clients would run it."""
    output = Output(OutputParser(DIALECTS["hermes"], tools=TOOLS))
    events = read(output, SampledTokens((OutputToken(0, text.encode()),)), OutputEnd(reason, None))
    assert events[-1] == OutputEnd(expected)
    assert output.finish_reason == expected


def test_first_events_come_before_the_first_token_and_after_progress():
    output = Output(PlainText(), first_events=lambda tokens: [PromptLogprobs(tokens()), ContentDelta("Once")])
    progress, *events = read(output, PromptProgress(1, 2, 0, 0.5), SampledTokens((TOKEN,)), OutputEnd("stop", 5, TOKEN))
    assert isinstance(progress, PromptProgress)
    assert events == [
        PromptLogprobs((TOKEN,)),
        ContentDelta("Once"),
        SampledTokens((TOKEN,)),
        ContentDelta("a"),
        OutputEnd("stop", 5, TOKEN),
    ]


class ScriptedRun:
    """The engine's run of one sequence, whose first token ends the output."""

    def __init__(self) -> None:
        self.ended: list[int] = []

    def take(self, timeout_s: float | None) -> list[tuple[int, SampledTokens | OutputEnd]]:
        return [(0, SampledTokens((TOKEN,))), (0, SampledTokens((TOKEN,))), (0, OutputEnd("stop", 5))]

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
