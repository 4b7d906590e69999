"""Convert replies and streams to the types of llama-stack."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ...events import Choice, ContentDelta, MessageStop, StreamEvent, ToolCall, ToolCallDelta
from .calls import MARKERS, PYTHON_TAG, AnyCall, StackCall, is_offered, native_calls, stack_call, stack_calls
from .values import StopReason, chat_logprobs, stop_reason, streamed_logprobs

ParseStatus = Literal["started", "in_progress", "succeeded", "failed"]

# Replies


@dataclass(frozen=True)
class StackReply:
    """A complete response, with the fields of llama-stack's CompletionMessage."""

    content: str
    tool_calls: tuple[AnyCall, ...]
    stop_reason: StopReason | None
    logprobs: list[dict[str, float]] | None


def stack_reply(choice: Choice, offered: Collection[str] = ()) -> StackReply:
    """Convert a choice.

    Args:
        choice: A choice of a reply of Client.chat or Client.complete.
        offered: The names of the tools of the request. Native calls in the text are parsed only if there are some. If
            one of them calls another tool, the text is kept too.
    """
    content, marker_reason = _without_marker(choice.text)
    calls: list[AnyCall] = stack_calls(choice.tool_calls)
    if offered and not calls:
        found = native_calls(content)
        calls = [call for call in found if is_offered(call, offered)]
        content = content if len(calls) < len(found) or not found else ""
    reason = marker_reason or stop_reason(choice.finish_reason_raw or choice.finish_reason)
    if calls and reason == "end_of_turn":
        reason = "end_of_message"  # A message with calls is not the end of the turn.
    return StackReply(content, tuple(calls), reason, chat_logprobs(choice.logprobs))


def _without_marker(text: str) -> tuple[str, StopReason | None]:
    """The text without a marker at its end, and the stop reason of the marker."""
    for marker, reason in MARKERS.items():
        if reason is not None and text.endswith(marker):
            return text[: -len(marker)], reason
    return text, None


# Streams


@dataclass(frozen=True)
class CompletionPiece:
    """A piece of a streamed completion. The last one has the stop reason and no text."""

    delta: str
    stop_reason: StopReason | None = None
    logprobs: list[dict[str, float]] | None = None


@dataclass(frozen=True)
class StackText:
    """llama-stack's TextDelta."""

    text: str


@dataclass(frozen=True)
class StackToolCall:
    """llama-stack's ToolCallDelta: text while the call is generated, then the complete call."""

    tool_call: str | StackCall
    parse_status: ParseStatus


@dataclass(frozen=True)
class StackEvent:
    """llama-stack's event of a streamed chat response."""

    event_type: Literal["start", "progress", "complete"]
    delta: StackText | StackToolCall
    stop_reason: StopReason | None = None
    logprobs: list[dict[str, float]] | None = None


_ANY_MARKER = re.compile("|".join(map(re.escape, MARKERS)))


class _MarkerScanner:
    """Finds the markers of the Llama family in text that comes in pieces of any size."""

    def __init__(self) -> None:
        # The end of the text, which may be the beginning of a marker.
        self._held = ""
        # The stop reason of the first marker that has one.
        self.reason: StopReason | None = None

    def feed(self, text: str) -> Iterator[str]:
        """Yield the text without markers, and each python tag as a piece of its own. Hold back a possible marker."""
        self._held += text
        match = _ANY_MARKER.search(self._held)
        while match:
            yield from self._take(match.start())
            marker, self._held = match[0], self._held[len(match[0]) :]
            self.reason = self.reason or MARKERS[marker]
            if marker == PYTHON_TAG:
                yield marker
            match = _ANY_MARKER.search(self._held)
        yield from self._take(len(self._held) - self._tail())

    def _take(self, length: int) -> Iterator[str]:
        text, self._held = self._held[:length], self._held[length:]
        if text:
            yield text

    def flush(self) -> str:
        """The text that was held back."""
        text, self._held = self._held, ""
        return text

    def _tail(self) -> int:
        """The number of characters at the end that may begin a marker."""
        longest = max(map(len, MARKERS)) - 1
        tails = (self._held[-size:] for size in range(min(longest, len(self._held)), 0, -1))
        return next((len(tail) for tail in tails if any(marker.startswith(tail) for marker in MARKERS)), 0)


def completion_pieces(events: Iterable[StreamEvent]) -> Iterator[CompletionPiece]:
    """Convert the events of a completion. The error of a failed or cut stream is raised."""
    scanner = _MarkerScanner()
    for event in events:
        if event.choice_index != 0:
            continue
        if event.type == "content_delta":
            logprobs = streamed_logprobs(event.delta, _raw_choice(event).get("logprobs"))
            for text in scanner.feed(event.delta):
                yield CompletionPiece(text, None, logprobs)
                logprobs = None
        elif event.type == "message_stop":
            rest = scanner.flush()
            if rest:
                yield CompletionPiece(rest)
            yield CompletionPiece("", scanner.reason or stop_reason(event.reason_raw or event.reason))


def stack_events(
    events: Iterable[StreamEvent], offered: Collection[str] | None = None, choice_index: int = 0
) -> Iterator[StackEvent]:
    """Convert the events of a chat stream.

    The result has one `start` event, `progress` events for text and calls, and one `complete` event with the stop
    reason. The error of a failed or cut stream is raised; there is no `complete` event then.

    Args:
        events: A Stream, or its events.
        offered: The names of the tools of the request. A native call of another tool is reported as failed. None
            allows all.
        choice_index: The choice to convert; events of other choices are ignored.
    """
    converter = _Converter(offered)
    for event in events:
        handle = _HANDLERS.get(event.type)
        if handle is not None and (event.choice_index == choice_index or event.type == "message_start"):
            yield from handle(converter, event)


class _Converter:
    """Converts the events of one choice."""

    def __init__(self, offered: Collection[str] | None) -> None:
        self._offered = offered
        self._scanner = _MarkerScanner()
        # The text after the python tag, which should be native calls; None before the tag.
        self._native: list[str] | None = None
        # The indexes of the calls that have a `started` event.
        self._started: set[int] = set()
        # Whether there was a call, native or not.
        self._called = False

    def start(self, event: StreamEvent) -> Iterator[StackEvent]:
        yield StackEvent("start", StackText(""))

    def text(self, event: ContentDelta) -> Iterator[StackEvent]:
        logprobs = chat_logprobs((_raw_choice(event).get("logprobs") or {}).get("content"))
        for text in self._scanner.feed(event.delta):
            yield self._piece(text, logprobs)
            logprobs = None

    def _piece(self, text: str, logprobs: list[dict[str, float]] | None = None) -> StackEvent:
        """A piece of text, or after the python tag a piece of a native call."""
        if text == PYTHON_TAG and self._native is None:
            self._native = []
            return StackEvent("progress", StackToolCall("", "started"), None, logprobs)
        if self._native is None:
            return StackEvent("progress", StackText(text), None, logprobs)
        self._native.append(text)
        return StackEvent("progress", StackToolCall(text, "in_progress"), None, logprobs)

    def call_piece(self, event: ToolCallDelta) -> Iterator[StackEvent]:
        """A piece of a call. The text of a call is `name(arguments)`."""
        if event.index not in self._started:
            self._started.add(event.index)
            yield StackEvent("progress", StackToolCall("", "started"))
            yield StackEvent("progress", StackToolCall(f"{event.name}(", "in_progress"))
        if event.delta:
            yield StackEvent("progress", StackToolCall(event.delta, "in_progress"))

    def call(self, event: ToolCall) -> Iterator[StackEvent]:
        """The end of a call: the parsed call, or its text if it cannot be parsed."""
        self._called = True
        if event.index in self._started:
            yield StackEvent("progress", StackToolCall(")", "in_progress"))
        call = stack_call(event)
        if isinstance(call, StackCall):
            yield StackEvent("progress", StackToolCall(call, "succeeded"))
        else:
            yield StackEvent("progress", StackToolCall(f"{event.name}({event.arguments_json})", "failed"))

    def stop(self, event: MessageStop) -> Iterator[StackEvent]:
        rest = self._scanner.flush()
        if rest:
            yield self._piece(rest)
        if self._native is not None:
            yield from self._parse_native("".join(self._native))
        reason = self._scanner.reason or stop_reason(event.reason_raw or event.reason)
        if self._called and reason == "end_of_turn" and self._scanner.reason is None:
            reason = "end_of_message"  # A message with calls is not the end of the turn.
        yield StackEvent("complete", StackText(""), reason)

    def _parse_native(self, text: str) -> Iterator[StackEvent]:
        """The native calls of the text. A call that was not offered, or text that cannot be parsed, is `failed`."""
        calls = native_calls(text)
        for call in calls:
            self._called = True
            known = is_offered(call, self._offered)
            yield StackEvent("progress", StackToolCall(call if known else text, "succeeded" if known else "failed"))
        if not calls:
            yield StackEvent("progress", StackToolCall(text, "failed"))


# Events of other types, such as reasoning and token counts, have no counterpart in llama-stack.
_HANDLERS: dict[str, Callable[[_Converter, Any], Iterator[StackEvent]]] = {
    "message_start": _Converter.start,
    "content_delta": _Converter.text,
    "tool_call_delta": _Converter.call_piece,
    "tool_call": _Converter.call,
    "message_stop": _Converter.stop,
}


def _raw_choice(event: StreamEvent) -> Mapping[str, Any]:
    """The choice in the payload of an event, with the fields that the event does not have."""
    choices = event.raw.get("choices") if isinstance(event.raw, Mapping) else None
    listed = choices if isinstance(choices, list) else []
    found = (
        choice for choice in listed if isinstance(choice, Mapping) and choice.get("index", 0) == event.choice_index
    )
    return next(found, {})
