"""Converts the tokens and text of one sequence to output events: content, reasoning, tool calls, log probabilities."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from ..core.events import (
    ContentDelta,
    Event,
    OutputEnd,
    OutputEvent,
    PromptLogprobs,
    PromptProgress,
    ReasoningDelta,
    SampledTokens,
    ToolCallStart,
)
from ..engine import Delta, Finish, OutputToken, Progress
from .dialects.reasoning import ReasoningTags, ReasoningTracker

PromptTokens = Callable[[], "tuple[OutputToken, ...]"]
"""Returns the prompt tokens of a sequence with log probabilities. Call it after the prefill."""


class Parser(Protocol):
    """Splits the text of an output into events."""

    @property
    def has_tool_calls(self) -> bool: ...

    @property
    def inside_tool_call(self) -> bool: ...

    def feed(self, text: str) -> list[Event]: ...

    def finish(self) -> list[Event]: ...


class PlainText:
    """The parser of outputs that have no structure."""

    has_tool_calls = inside_tool_call = False

    def feed(self, text: str) -> list[Event]:
        return [ContentDelta(text)] if text else []

    def finish(self) -> list[Event]:
        return []


class Output:
    """Converts the items that the engine delivers for one sequence to output events."""

    def __init__(
        self,
        parser: Parser,
        *,
        reasoning: ReasoningTracker | None = None,
        first_events: Callable[[PromptTokens], Iterable[OutputEvent]] = lambda tokens: (),
        single_call: bool = False,
        reasoning_tags: ReasoningTags | None = None,
        reports_prompt: bool = False,
    ) -> None:
        """Start before the first item.

        Args:
            parser: A new parser, for this output alone.
            reasoning: A new tracker that counts reasoning tokens; None: they are not counted.
            first_events: Returns the events to emit before the first token, such as an echo of the prompt.
            single_call: End the output after its first tool call.
            reasoning_tags: Repeat the reasoning in the content, between these tags; None: do not repeat it.
            reports_prompt: Emit the log probabilities of the prompt.
        """
        self.finish_reason: str | None = None
        self._parser = parser
        self._reasoning = reasoning
        self._first_events = first_events
        self._single_call = single_call
        self._tags = reasoning_tags
        self._reports_prompt = reports_prompt
        self._is_begun = False
        # Whether the content so far ends inside the tags.
        self._is_inside_tags = False
        self._submitted_at = time.monotonic()

    @property
    def is_over(self) -> bool:
        return self.finish_reason is not None

    @property
    def n_reasoning(self) -> int:
        """Tokens of reasoning so far."""
        return 0 if self._reasoning is None else self._reasoning.n_tokens

    def read(self, item: Progress | Delta | Finish, prompt_tokens: PromptTokens) -> Iterator[OutputEvent]:
        """The events of the next item. When `is_over` becomes true, the caller must drop all later items."""
        if isinstance(item, Progress):
            yield PromptProgress(item.n_computed, item.n_prompt, item.n_cached, time.monotonic() - self._submitted_at)
            return
        if not self._is_begun:
            self._is_begun = True
            if self._reports_prompt:
                yield PromptLogprobs(prompt_tokens())
            yield from self._first_events(prompt_tokens)
        if isinstance(item, Finish):
            yield from self._end(item)
            return
        if item.tokens:
            yield SampledTokens(item.tokens)
        events = self._parser.feed(item.text)
        if self._reasoning is not None:
            for token in item.tokens:
                self._reasoning.feed(token.piece)
        kept = _first_call(events) if self._single_call else events
        yield from self._tagged(kept)
        if self._single_call and (self._has_whole_call or len(kept) < len(events)):
            yield self._output_end("stop")

    @property
    def _has_whole_call(self) -> bool:
        return self._parser.has_tool_calls and not self._parser.inside_tool_call

    def _end(self, end: Finish) -> Iterator[OutputEvent]:
        events = self._parser.finish()
        if self._reasoning is not None:
            self._reasoning.finish()
        yield from self._tagged(events)
        if self._tags is not None and self._is_inside_tags and not (self._reasoning and self._reasoning.is_open):
            yield ContentDelta(self._tags.end)
        yield self._output_end(end.reason, end.stop, end.last)

    def _output_end(self, reason: str, stop: str | int | None = None, last: OutputToken | None = None) -> OutputEnd:
        # The finish reason is "tool_calls" if there are calls, unless a limit cut one of them.
        is_cut = reason == "length" and self._parser.inside_tool_call
        self.finish_reason = "tool_calls" if self._parser.has_tool_calls and not is_cut else reason
        return OutputEnd(self.finish_reason, stop, last)

    def _tagged(self, events: Iterable[Event]) -> Iterator[OutputEvent]:
        """The same events and, if there are `reasoning_tags`, the reasoning also as content between the tags."""
        for event in events:
            if self._tags is not None:
                was_inside, self._is_inside_tags = self._is_inside_tags, isinstance(event, ReasoningDelta)
                if isinstance(event, ReasoningDelta):
                    yield ContentDelta(event.text if was_inside else self._tags.start + event.text)
                elif was_inside:
                    yield ContentDelta(self._tags.end)
            yield event


def _first_call(events: list[Event]) -> list[Event]:
    """The events up to the end of the first call."""
    second = (i for i, event in enumerate(events) if isinstance(event, ToolCallStart) and event.index > 0)
    return events[: next(second, len(events))]
