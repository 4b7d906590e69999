"""The streaming output parser: splits generated text into events for reasoning, content and tool calls.

Pieces may be cut anywhere: the events are the same, except where their texts are split. No text is lost: what only
begins like a call is content. The text must not contain stop texts and end-of-turn tokens, which the engine removes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable

from ..protocol.events import ContentDelta, Event, ReasoningDelta, ToolCallArguments
from . import Dialect
from .calls import Calls, new_call_id
from .scan import Cursor


class OutputParser:
    """Splits one choice's output into reasoning, content and tool calls."""

    def __init__(
        self,
        dialect: Dialect,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        prompt: str = "",
        splits_reasoning: bool = True,
        is_bound: bool = False,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        """Start before the first character of an output.

        Args:
            dialect: of the model, see `detect`.
            tools: the tools offered, in OpenAI's format; without tools, nothing is a call.
            prompt: the rendered prompt, or its end, which may open reasoning.
            splits_reasoning: False leaves reasoning with its tags in the content.
            is_bound: the output has a response format, so unless it is calls, all text after the reasoning is content.
        """
        self._cursor = Cursor()
        self._calls = Calls(tools, new_id)
        self._output = dialect.reader(
            dialect, self._cursor, self._calls, prompt, splits_reasoning=splits_reasoning, is_bound=is_bound
        )
        self._events = self._output.read()

    @property
    def has_tool_calls(self) -> bool:
        """Whether a call was begun so far."""
        return self._calls.made > 0

    @property
    def inside_tool_call(self) -> bool:
        """Whether a call is incomplete: if the output ends now, its finish reason is `length`."""
        return self._calls.is_open

    @property
    def reasoning_is_open(self) -> bool:
        """Whether reasoning is open at the end of the text so far."""
        return self._output.reasoning_is_open

    @property
    def reasoning_may_open(self) -> bool:
        """Whether reasoning can still begin."""
        return self._output.reasoning_may_open

    def feed(self, text: str) -> list[Event]:
        """The events of this text. Text that may still become a marker is held back."""
        self._cursor.feed(text)
        return self._read()

    def finish(self) -> list[Event]:
        """The events of the text that was held back, at the end of the output."""
        self._cursor.ended = True
        return self._read()

    def _read(self) -> list[Event]:
        events: list[Event] = []
        for event in self._events:
            if event is None:
                break
            events.append(event)
        return merged(events)


def merged(events: Sequence[Event]) -> list[Event]:
    """The same events with neighbouring texts of one kind joined."""
    result: list[Event] = []
    for event in events:
        joined = _joined(result[-1], event) if result else None
        if joined is None:
            result.append(event)
        else:
            result[-1] = joined
    return result


def _joined(last: Event, event: Event) -> Event | None:
    if isinstance(last, ContentDelta) and isinstance(event, ContentDelta):
        return ContentDelta(last.text + event.text)
    if isinstance(last, ReasoningDelta) and isinstance(event, ReasoningDelta):
        return ReasoningDelta(last.text + event.text)
    if isinstance(last, ToolCallArguments) and isinstance(event, ToolCallArguments) and last.index == event.index:
        return ToolCallArguments(event.index, last.text + event.text)
    return None
