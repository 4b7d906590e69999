"""Replies and streams as llama-stack shows them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..events import Choice, ContentDelta, MessageStop, StreamEvent, ToolCall, ToolCallDelta
from .calls import MARKS, PYTHON_TAG, AnyCall, StackCall, is_offered, native_calls, stack_call, stack_calls
from .values import StopReason, chat_logprobs, stop_reason, streamed_logprobs

ParseStatus = Literal["started", "in_progress", "succeeded", "failed"]

# Replies


@dataclass(frozen=True)
class StackReply:
    """A whole answer as llama-stack has it."""

    content: str
    tool_calls: tuple[AnyCall, ...]
    stop_reason: StopReason | None
    logprobs: list[dict[str, float]] | None


def stack_reply(choice: Choice, offered: Collection[str] = ()) -> StackReply:
    """A choice as llama-stack has it; the choice has been read from all the forms that servers give it.

    Args:
        choice: Of a reply of Client.chat or Client.complete.
        offered: The names of the tools. Calls are looked for in the text only if there are some;
            those to other names stay text.
    """
    content, marked = _without_mark(choice.text)
    calls: list[AnyCall] = stack_calls(choice.tool_calls)
    if offered and not calls:
        found = native_calls(content)
        calls = [call for call in found if is_offered(call, offered)]
        content = content if len(calls) < len(found) or not found else ""
    reason = marked or stop_reason(choice.finish_reason_raw or choice.finish_reason)
    if calls and reason == "end_of_turn":
        reason = "end_of_message"  # The calls in the reply decide.
    return StackReply(content, tuple(calls), reason, chat_logprobs(choice.logprobs))


def _without_mark(text: str) -> tuple[str, StopReason | None]:
    """Text without the marker at its end, and its stop reason."""
    for mark, reason in MARKS.items():
        if reason is not None and text.endswith(mark):
            return text[: -len(mark)], reason
    return text, None


# Streams


@dataclass(frozen=True)
class CompletionPiece:
    """A piece of a streamed completion. The last has no text, but the reason."""

    delta: str
    stop_reason: StopReason | None = None
    logprobs: list[dict[str, float]] | None = None


@dataclass(frozen=True)
class StackText:
    """llama-stack's TextDelta."""

    text: str


@dataclass(frozen=True)
class StackToolCall:
    """llama-stack's ToolCallDelta: text while it is under way, a call when it is complete."""

    tool_call: str | StackCall
    parse_status: ParseStatus


@dataclass(frozen=True)
class StackEvent:
    """One event of llama-stack's view."""

    event_type: Literal["start", "progress", "complete"]
    delta: StackText | StackToolCall
    stop_reason: StopReason | None = None
    logprobs: list[dict[str, float]] | None = None


_ANY_MARK = re.compile("|".join(map(re.escape, MARKS)))


class _MarkScanner:
    """Finds the markers of the Llama family in text, however it is cut."""

    def __init__(self) -> None:
        self._held = ""
        # The stop reason of the first marker of an end.
        self.reason: StopReason | None = None

    def feed(self, text: str) -> Iterator[str]:
        """The text that is certain by now, and each python tag as a piece of its own."""
        self._held += text
        match = _ANY_MARK.search(self._held)
        while match:
            yield from self._take(match.start())
            mark, self._held = match[0], self._held[len(match[0]) :]
            self.reason = self.reason or MARKS[mark]
            if mark == PYTHON_TAG:
                yield mark
            match = _ANY_MARK.search(self._held)
        yield from self._take(len(self._held) - self._tail())

    def _take(self, length: int) -> Iterator[str]:
        text, self._held = self._held[:length], self._held[length:]
        if text:
            yield text

    def flush(self) -> str:
        """What was held back and turned out to be text."""
        text, self._held = self._held, ""
        return text

    def _tail(self) -> int:
        """How many characters at the end may begin a marker."""
        longest = max(map(len, MARKS)) - 1
        tails = (self._held[-size:] for size in range(min(longest, len(self._held)), 0, -1))
        return next((len(tail) for tail in tails if any(mark.startswith(tail) for mark in MARKS)), 0)


def completion_pieces(events: Iterable[StreamEvent]) -> Iterator[CompletionPiece]:
    """The events of a completion as llama-stack's pieces. A cut stream raises, as it always does."""
    scanner = _MarkScanner()
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
    """A stream of chat events as llama-stack shows it.

    One `start`, `progress` for text and calls, one `complete` with the stop reason. A stream that fails or is
    cut raises and has no `complete`.

    Args:
        events: A Stream, or its events.
        offered: Names of the tools; a call in the text to another one fails. None allows all.
        choice_index: llama-stack knows one choice.
    """
    view = _View(offered)
    for event in events:
        handle = _HANDLERS.get(event.type)
        if handle is not None and (event.choice_index == choice_index or event.type == "message_start"):
            yield from handle(view, event)


class _View:
    """What llama-stack's view of one choice has to remember."""

    def __init__(self, offered: Collection[str] | None) -> None:
        self._offered = offered
        self._scanner = _MarkScanner()
        # The text of a call that the model writes into its text; None outside of one.
        self._native: list[str] | None = None
        # Positions of the calls that have been started, and whether there were any of both kinds.
        self._started: set[int] = set()
        self._called = False

    def start(self, event: StreamEvent) -> Iterator[StackEvent]:
        yield StackEvent("start", StackText(""))

    def text(self, event: ContentDelta) -> Iterator[StackEvent]:
        logprobs = chat_logprobs((_raw_choice(event).get("logprobs") or {}).get("content"))
        for text in self._scanner.feed(event.delta):
            yield self._piece(text, logprobs)
            logprobs = None

    def _piece(self, text: str, logprobs: list[dict[str, float]] | None = None) -> StackEvent:
        """Text, or a piece of a call once the tag has been seen."""
        if text == PYTHON_TAG and self._native is None:
            self._native = []
            return StackEvent("progress", StackToolCall("", "started"), None, logprobs)
        if self._native is None:
            return StackEvent("progress", StackText(text), None, logprobs)
        self._native.append(text)
        return StackEvent("progress", StackToolCall(text, "in_progress"), None, logprobs)

    def call_piece(self, event: ToolCallDelta) -> Iterator[StackEvent]:
        """`name(` and then the arguments as they come."""
        if event.index not in self._started:
            self._started.add(event.index)
            yield StackEvent("progress", StackToolCall("", "started"))
            yield StackEvent("progress", StackToolCall(f"{event.name}(", "in_progress"))
        if event.delta:
            yield StackEvent("progress", StackToolCall(event.delta, "in_progress"))

    def call(self, event: ToolCall) -> Iterator[StackEvent]:
        """The end of a call, with the call or with its text."""
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
            yield from self._native_end("".join(self._native))
        reason = self._scanner.reason or stop_reason(event.reason_raw or event.reason)
        if self._called and reason == "end_of_turn" and self._scanner.reason is None:
            reason = "end_of_message"  # The calls in the reply decide.
        yield StackEvent("complete", StackText(""), reason)

    def _native_end(self, text: str) -> Iterator[StackEvent]:
        """The calls in the text; what cannot be read, or was not offered, fails with its text."""
        calls = native_calls(text)
        for call in calls:
            self._called = True
            known = is_offered(call, self._offered)
            yield StackEvent("progress", StackToolCall(call if known else text, "succeeded" if known else "failed"))
        if not calls:
            yield StackEvent("progress", StackToolCall(text, "failed"))


# Reasoning and token counts have no place in llama-stack's view; an error raises.
_HANDLERS: dict[str, Callable[[_View, Any], Iterator[StackEvent]]] = {
    "message_start": _View.start,
    "content_delta": _View.text,
    "tool_call_delta": _View.call_piece,
    "tool_call": _View.call,
    "message_stop": _View.stop,
}


def _raw_choice(event: StreamEvent) -> Mapping[str, Any]:
    """The choice of the payload that an event came with, for what the event itself does not hold."""
    choices = event.raw.get("choices") if isinstance(event.raw, Mapping) else None
    listed = choices if isinstance(choices, list) else []
    found = (
        choice for choice in listed if isinstance(choice, Mapping) and choice.get("index", 0) == event.choice_index
    )
    return next(found, {})
