"""The body of one response: bytes become events and a reply. No I/O."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from typing import Any

from ..errors import IncompleteStream, ProtocolError
from ..events import Reply, StreamEvent
from ..sse import ServerSentEvent
from .assembly import Accumulator, is_complete_response
from .frames import EndMark, Frames, parse_frame
from .payloads import Json
from .reported_errors import KEEP_ALIVES

# The events without any output of the model.
_NO_OUTPUT = frozenset({"message_start", "usage", "warning"})


class ResponseParser:
    """Parses the body of a response to a chat or completion request.

    `feed` takes the bytes as they come, cut anywhere, until `is_over` is set or the body has ended; then `finish`. Both
    return iterators, with a list of the events of each payload, which may be empty. A payload is parsed when its events
    are requested, so `reply` never contains more than the events that were returned.

    Args:
        content_type: The header Content-Type of the response.
        n_choices: The number of requested choices.
        think_tags: How to treat <think> in the content, see Accumulator.
        tool_names: The names of the offered tools.
        mask_payload: Masks secrets in a payload that reports an error.
        mask: Masks secrets in a text.
        read_value: Returns the value of the complete reply, which is then `parsed`, or raises an error.
    """

    def __init__(
        self,
        content_type: str = "text/event-stream",
        n_choices: int = 1,
        think_tags: str = "auto",
        tool_names: Collection[str] = (),
        mask_payload: Callable[[Json], Json] = lambda payload: payload,
        mask: Callable[[str], str] = lambda text: text,
        read_value: Callable[[Reply[Any]], Any] = lambda reply: None,
    ) -> None:
        self._frames = Frames(content_type)
        self._accumulator = Accumulator(n_choices, think_tags, tool_names, mask_payload)
        self._mask = mask
        self._read_value = read_value
        self.parsed: Any = None
        # Whether no more of the body is needed: after [DONE], an error, or the end of what can be split into payloads.
        self.is_over = False
        # Whether the server has marked the end of the response: with [DONE], or since the body is one JSON document.
        self.has_end_mark = False
        # Whether there was output of the model, which the first payloads of a stream do not contain.
        self.has_output = False
        # How many payloads showed progress: those with events, from the first output on, and reports of prefill.
        self.n_progress = 0

    @property
    def has_known_reasons(self) -> bool:
        """Whether every requested choice has a known finish reason. Only usage and [DONE] should follow."""
        return self._accumulator.has_known_reasons

    def reply(self) -> Reply[Any]:
        """The reply received so far, without `parsed`."""
        return self._accumulator.reply()

    def feed(self, data: bytes, is_end: bool = False) -> Iterator[list[StreamEvent]]:
        """The events of further bytes. `is_end`: no others follow, so a last line may lack its end."""
        frames = self._frames.feed(data)
        return self._events(itertools.chain(frames, self._frames.end()) if is_end else iter(frames), is_end)

    def _events(self, frames: Iterator[ServerSentEvent], is_end: bool) -> Iterator[list[StreamEvent]]:
        while not self.is_over:
            try:
                frame = next(frames, None)
            except ProtocolError as error:  # The bytes cannot be split into payloads.
                if not self._accumulator.has_known_reasons:
                    raise
                self.is_over = True
                yield self._ignored(error)
                return
            if frame is None:
                self.is_over = is_end
                return
            try:
                yield self._take(frame)
            except (ProtocolError, RecursionError) as error:
                if not self._accumulator.has_all_reasons:
                    if isinstance(error, ProtocolError):
                        raise
                    raise ProtocolError("the server sent JSON that is nested too deeply") from error
                yield self._ignored(error)

    def _take(self, frame: ServerSentEvent) -> list[StreamEvent]:
        payload = parse_frame(frame.event, frame.data)
        if payload is EndMark.DONE:
            self.is_over = self.has_end_mark = True
        if payload is None and frame.event not in ("message", "error", *KEEP_ALIVES):
            return self.warn(f"the server sent events with the name {frame.event!r}, which are not read")
        if not isinstance(payload, dict):
            return []
        self.has_end_mark = self._frames.is_one_document and is_complete_response(payload)
        events = self._accumulator.add(payload)
        self.is_over = self._accumulator.error is not None
        if not self.has_output:
            self.has_output = any(event.type not in _NO_OUTPUT for event in events)
        if (events and self.has_output) or "prompt_progress" in payload:
            self.n_progress += 1
        return events

    def warn(self, text: str) -> list[StreamEvent]:
        """Add a warning about the response and return its event."""
        return self._accumulator.warn(self._mask(text))

    def _ignored(self, error: Exception) -> list[StreamEvent]:
        return self.warn(f"ignored after the finish reason: {error}")

    def finish(self, cause: Exception | None = None) -> Iterator[list[StreamEvent]]:
        """The last events. `cause` is the error that ended the body, if one did.

        Raises an error if the response is not complete, and that of `read_value`, in place of the last event.
        """
        # Not after an error: whether the text behind it was decoded depends on how the network cut the body.
        if self._frames.was_damaged and not self._accumulator.error:
            yield self._accumulator.warn("the server sent text that is not UTF-8; wrong bytes are replaced by U+FFFD")
        try:
            events = self._accumulator.finish(self.has_end_mark)
        except IncompleteStream as error:
            head = "" if self._accumulator.has_choices else self._frames.head
            reason = f" ({cause})" if cause is not None else ""
            begin = f"; it begins: {head}" if head else ""
            raise IncompleteStream(f"{error}{reason}{begin}") from cause
        yield [event for event in events if event.type != "message_stop"]
        self.parsed = self._read_value(self.reply())
        yield [event for event in events if event.type == "message_stop"]

    def flush(self) -> list[StreamEvent]:
        """The events of held text, after an error. It may be the beginning of a tag or of a pair."""
        return self._accumulator.flush()
