"""The streaming output parser: splits generated text into events for reasoning, content and tool calls.

The text comes in pieces. Where it is cut into pieces does not change the events, except where their texts are split.
No text is lost: text that begins like a tool call and is not one is content. The text contains no stop texts and no
end-of-generation tokens: the engine has removed them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Callable

from ...core.events import ContentDelta, Event, ReasoningDelta, ToolCallArguments
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
        is_constrained: bool = False,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        """Start before the first character of an output.

        Args:
            dialect: The dialect of the model; see `detect`.
            tools: The tools offered, in OpenAI's format. Without tools, no text is a call.
            prompt: The rendered prompt, or its end, which shows whether reasoning is open.
            splits_reasoning: Whether reasoning is separate from the content. False: the content has it, with its tags.
            is_constrained: Whether the request has a response format. If so, the text after the reasoning is either
                calls or content, and markers inside content have no meaning.
        """
        self._cursor = Cursor()
        self._calls = Calls(tools, new_id)
        self._output = dialect.reader(
            dialect, self._cursor, self._calls, prompt, splits_reasoning=splits_reasoning, is_constrained=is_constrained
        )
        self._events = self._output.read()

    @property
    def has_tool_calls(self) -> bool:
        """Whether a call has begun."""
        return self._calls.made > 0

    @property
    def inside_tool_call(self) -> bool:
        """Whether a call is incomplete. If the output ends now, its finish reason is "length"."""
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
        """The events of the next piece of text. Text that may become a marker is held back."""
        self._cursor.feed(text)
        return self._read()

    def finish(self) -> list[Event]:
        """End the output. Returns the events of the text that was held back."""
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
    """The same events, with the texts of adjacent events of one kind joined."""
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
