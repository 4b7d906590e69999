"""Converts the tokens of one sequence to output events: content, reasoning, tool calls, log probabilities.

The tokens are read one by one, so that the output can end after any of them, at a stop text, which counts only in the
content. Tokens after the end are neither emitted nor counted.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator, Sequence

from ..core.events import (
    ContentDelta,
    Event,
    OutputEnd,
    OutputEvent,
    OutputToken,
    PromptProgress,
    ReasoningDelta,
    SampledTokens,
)
from ..engine.run import Result
from .dialects.parser import OutputParser, merged
from .dialects.reasoning import ReasoningTags

PromptTokens = Callable[[], "tuple[OutputToken, ...]"]
"""Returns the prompt tokens of a sequence with log probabilities. Call it after the prefill."""


class PlainText:
    """The parser of outputs that have no structure."""

    has_tool_calls = inside_tool_call = reasoning_is_open = False

    def feed(self, text: str) -> list[Event]:
        return [ContentDelta(text)] if text else []

    def finish(self) -> list[Event]:
        return []


class StopTexts:
    """Searches the content of an output for stop texts. The text that may begin one is held back.

    Of stop texts that overlap, the one that ends first counts; of those that end together, the longest one.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.found: str | None = None
        self._texts = texts
        self._held = ""
        # Longest first, since the longest possible beginning of a stop text is held back.
        beginnings = {text[:n] for text in texts for n in range(1, len(text))}
        self._beginnings = tuple(sorted(beginnings, key=len, reverse=True))

    def feed(self, text: str) -> str:
        """The text that can be shown now: up to the stop text, if one is `found`."""
        text = self._held + text
        ends = [(start + len(stop), start, stop) for stop in self._texts if (start := text.find(stop)) >= 0]
        if ends:
            _, end, self.found = min(ends)
        else:
            n_held = len(text) and next((len(part) for part in self._beginnings if text.endswith(part)), 0)
            end = len(text) - n_held
        self._held = "" if ends else text[end:]
        return text[:end]

    def flush(self) -> str:
        """The text that was held back, which begins no stop text after all."""
        held, self._held = self._held, ""
        return held


class Output:
    """Converts the items that the engine delivers for one sequence to output events."""

    def __init__(
        self,
        parser: OutputParser | PlainText,
        *,
        stop: Sequence[str] = (),
        first_events: Callable[[PromptTokens], Iterable[OutputEvent]] = lambda tokens: (),
        reasoning_tags: ReasoningTags | None = None,
    ) -> None:
        """Start before the first item.

        Args:
            parser: A new parser, for this output alone.
            stop: The texts that end the output, if the content has one of them.
            first_events: Returns the events to emit before the first token, such as an echo of the prompt.
            reasoning_tags: Emit the reasoning as content, between these tags; None: emit it as reasoning.
        """
        self.finish_reason: str | None = None
        # The sampled tokens so far, with the token that ended the output.
        self.n_completion = 0
        self._parser = parser
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = StopTexts(stop)
        self._first_events = first_events
        self._tags = reasoning_tags
        self._is_begun = False
        # The tokens of reasoning and its tags so far, and whether there is any text between the tags.
        self._n_reasoning = 0
        self._has_reasoning = False
        # The tokens so far that may be the start tag of reasoning. None: they have been counted, or are something else.
        self._n_start_tokens: int | None = 0
        # Whether the content so far ends inside the tags.
        self._is_inside_tags = False

    @property
    def is_over(self) -> bool:
        return self.finish_reason is not None

    @property
    def n_reasoning(self) -> int:
        """Tokens of reasoning so far, including tags; 0 while there is no text between the tags."""
        return self._n_reasoning if self._has_reasoning else 0

    def read(self, item: Result, prompt_tokens: PromptTokens) -> Iterator[OutputEvent]:
        """The events of the next item. When `is_over` becomes true, the caller must drop all later items."""
        if isinstance(item, PromptProgress):
            yield item
            return
        if not self._is_begun:
            self._is_begun = True
            yield from self._first_events(prompt_tokens)
        if isinstance(item, OutputEnd):
            yield from self._finish(item)
        else:
            yield from self._tokens(item.tokens)

    def _tokens(self, tokens: Sequence[OutputToken]) -> Iterator[OutputEvent]:
        events: list[Event] = []
        n_read = 0
        for token in tokens:
            n_read += 1
            was_open = self._parser.reasoning_is_open
            made = self._parser.feed(self._decoder.decode(token.piece))
            self._count_reasoning(made, was_open)
            events += self._up_to_stop(made)
            if self._stop.found is not None:
                break
        self.n_completion += n_read
        yield SampledTokens(tuple(tokens[:n_read]))
        yield from self._tagged(merged(events))
        if self._stop.found is not None:
            yield self._end("stop", self._stop.found)

    def _finish(self, item: OutputEnd) -> Iterator[OutputEvent]:
        self.n_completion += item.last is not None
        events = [*self._parser.feed(self._decoder.decode(b"", final=True)), *self._parser.finish()]
        self._has_reasoning = self._has_reasoning or _has_reasoning(events)
        shown = [*self._up_to_stop(events), ContentDelta(self._stop.flush())]
        yield from self._tagged(event for event in merged(shown) if event != ContentDelta(""))
        if self._tags is not None and self._is_inside_tags and not self._parser.reasoning_is_open:
            yield ContentDelta(self._tags.end)
        if self._stop.found is None:
            yield self._end(item.reason, item.stop, item.last)
        else:
            yield self._end("stop", self._stop.found)

    def _end(self, reason: str, stop: str | int | None, last: OutputToken | None = None) -> OutputEnd:
        # A client runs the calls of an output that ends with "tool_calls", so no call of it may be cut.
        is_call = self._parser.has_tool_calls and not self._parser.inside_tool_call
        self.finish_reason = "tool_calls" if is_call else reason
        return OutputEnd(self.finish_reason, stop, last)

    def _count_reasoning(self, events: Sequence[Event], was_open: bool) -> None:
        """Count a token with these events, if it is a part of the reasoning or of its tags."""
        self._has_reasoning = self._has_reasoning or _has_reasoning(events)
        if was_open or self._parser.reasoning_is_open or _has_reasoning(events):
            self._n_reasoning += 1 + (self._n_start_tokens or 0)
            self._n_start_tokens = None
        elif self._n_start_tokens is not None:
            self._n_start_tokens = None if events else self._n_start_tokens + 1

    def _up_to_stop(self, events: Iterable[Event]) -> Iterator[Event]:
        """The events with the content up to the first stop text. A stop text does not extend across other events."""
        for event in events:
            text = self._stop.feed(event.text) if isinstance(event, ContentDelta) else self._stop.flush()
            if text:
                yield ContentDelta(text)
            if self._stop.found is not None:
                return
            if not isinstance(event, ContentDelta):
                yield event

    def _tagged(self, events: Iterable[Event]) -> Iterator[OutputEvent]:
        """The same events or, if there are `reasoning_tags`, with the reasoning as content between the tags."""
        for event in events:
            if self._tags is not None:
                was_inside, self._is_inside_tags = self._is_inside_tags, isinstance(event, ReasoningDelta)
                if isinstance(event, ReasoningDelta):
                    yield ContentDelta(event.text if was_inside else self._tags.start + event.text)
                    continue
                if was_inside:
                    yield ContentDelta(self._tags.end)
            yield event


def _has_reasoning(events: Iterable[Event]) -> bool:
    return any(isinstance(event, ReasoningDelta) for event in events)
