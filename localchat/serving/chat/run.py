"""A request for text in flight: submits its sequences to the engine, and makes output events of what they generate.

`GenerationRun` is the request, `Output` the output of one sequence. Errors of the engine and of chat templates get the
field of the request here.
"""

from __future__ import annotations

import codecs
import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from ..core import errors
from ..core.events import (
    ContentDelta,
    Event,
    OutputEnd,
    OutputEvent,
    OutputToken,
    PromptProgress,
    ReasoningDelta,
    ResponseHead,
    SampledTokens,
    Usage,
)
from ..engine.run import Result
from ..engine.values import GenerationRequest
from .dialects.dialect import ReasoningTags
from .dialects.parser import OutputParser, merged
from .dialects.scan import Markers
from .model import Model

# Returns the prompt tokens of a sequence with log probabilities. Call it after the prefill.
PromptTokens = Callable[[], "tuple[OutputToken, ...]"]


class PlainText:
    """The parser of outputs that have no structure."""

    has_tool_calls = inside_tool_call = reasoning_is_open = False

    def feed(self, text: str) -> list[Event]:
        return [ContentDelta(text)] if text else []

    def finish(self) -> list[Event]:
        return []


class Output:
    """Converts the items that the engine delivers for one sequence to output events.

    The tokens are read one by one, so that the output can end after any of them, at a stop text, which counts only in
    the content. Tokens after the end are neither emitted nor counted.
    """

    def __init__(
        self,
        parser: OutputParser | PlainText,
        *,
        stop: Sequence[str] = (),
        first_events: Callable[[PromptTokens], Iterable[OutputEvent]] = lambda tokens: (),
        reasoning_tags: ReasoningTags | None = None,
    ) -> None:
        """
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
        self._stop = Markers(*stop)
        # The text that may begin a stop text, and the stop text that was found.
        self._held = ""
        self._found: str | None = None
        self._first_events = first_events
        self._tags = reasoning_tags
        # The tokens of reasoning and its tags so far, and whether there is any text between the tags.
        self._n_reasoning = 0
        self._has_reasoning = False
        # The tokens since the last event, which may be the start tag of reasoning.
        self._n_pending = 0
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
        first_events, self._first_events = self._first_events, lambda tokens: ()
        yield from first_events(prompt_tokens)
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
            if self._found is not None:
                break
        self.n_completion += n_read
        yield SampledTokens(tuple(tokens[:n_read]))
        yield from self._tagged(merged(events))
        if self._found is not None:
            yield self._end("stop", self._found)

    def _finish(self, item: OutputEnd) -> Iterator[OutputEvent]:
        self.n_completion += item.last is not None
        events = [*self._parser.feed(self._decoder.decode(b"", final=True)), *self._parser.finish()]
        self._has_reasoning = self._has_reasoning or _has_reasoning(events)
        shown = [*self._up_to_stop(events), *([ContentDelta(self._held)] if self._held else [])]
        yield from self._tagged(merged(shown))
        if self._tags is not None and self._is_inside_tags and not self._parser.reasoning_is_open:
            yield ContentDelta(self._tags.end)
        yield self._end(item.reason, item.stop, item.last) if self._found is None else self._end("stop", self._found)

    def _end(self, reason: str, stop: str | int | None, last: OutputToken | None = None) -> OutputEnd:
        # A client runs the calls of an output that ends with "tool_calls", so no call of it may be cut.
        is_call = self._parser.has_tool_calls and not self._parser.inside_tool_call
        self.finish_reason = "tool_calls" if is_call else reason
        return OutputEnd(self.finish_reason, stop, last)

    def _count_reasoning(self, events: Sequence[Event], was_open: bool) -> None:
        """Count a token with these events, if it is a part of the reasoning or of its tags."""
        self._has_reasoning = self._has_reasoning or _has_reasoning(events)
        self._n_pending += 1
        if was_open or self._parser.reasoning_is_open or _has_reasoning(events):
            self._n_reasoning += self._n_pending
            self._n_pending = 0
        elif events:
            self._n_pending = 0

    def _up_to_stop(self, events: Iterable[Event]) -> Iterator[Event]:
        """The events with the content up to the first stop text. A stop text does not extend across other events.

        Of stop texts that overlap, the one that ends first counts; of those that end together, the longest one.
        """
        for event in events:
            text, end = self._held, len(self._held)
            if isinstance(event, ContentDelta):
                text += event.text
                ends = [(at + len(stop), at, stop) for stop in self._stop.literals if (at := text.find(stop)) >= 0]
                end = self._stop.safe_end(text, 0)
                if ends:
                    _, end, self._found = min(ends)
            self._held = "" if self._found else text[end:]
            if end:
                yield ContentDelta(text[:end])
            if self._found is not None:
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


class GenerationRun:
    """A request in flight, on the HTTP thread: makes output events of the results of the engine's `RequestRun`.

    Leaving the `with` block cancels the sequences that are still running.
    """

    def __init__(
        self,
        model: Model,
        sequences: Sequence[GenerationRequest],
        outputs: Sequence[Output],
        id_prefix: str,
        *,
        n_each: int,
        prompt_field: str,
    ) -> None:
        """Submit the sequences.

        Args:
            sequences: All sequences of the first prompt, then all of the next one.
            outputs: The converter of the output of each sequence.
            n_each: The number of sequences for each prompt.
            prompt_field: The field of the request that has the prompt, for error messages.

        Raises:
            ApiError: The request cannot run; none of its sequences is in the engine.
        """
        n, max_open = len(sequences), model.engine.max_open
        if n > max_open:
            count_field = prompt_field if n > n_each else "n"
            raise errors.BadRequest(
                f"'{count_field}' requests {n} sequences, and this server accepts {max_open} at once, running or "
                "queued: request fewer, or start the server with a larger --queue",
                count_field,
            )
        prompts = tuple(sequence.prompt for sequence in sequences[::n_each])
        id = id_prefix + uuid.uuid4().hex
        self.head = ResponseHead(id, int(time.time()), model.name, prompts, sequences[0].sampling)
        self._outputs = outputs
        self._n_each = n_each
        self._prompt_field = prompt_field
        with wire_errors(prompt_field):
            self._run = model.engine.submit(sequences)

    def __enter__(self) -> GenerationRun:
        return self

    def __exit__(self, *exception: object) -> None:
        self._run.cancel()

    @property
    def is_running(self) -> bool:
        return self._run.is_running

    def take(self, timeout_s: float | None = None) -> list[tuple[int, OutputEvent]]:
        """Wait for output, then return all events of it, each with the index of its sequence.

        The list is empty if the output makes no event yet, or after `timeout_s` seconds without output; None: no
        timeout.

        Raises:
            ApiError: The request failed.
        """
        with wire_errors(self._prompt_field):
            items = self._run.take(timeout_s)
        events: list[tuple[int, OutputEvent]] = []
        for index, item in items:
            output = self._outputs[index]
            if output.is_over:
                continue
            events += [(index, event) for event in output.read(item, partial(self._run.prompt_tokens, index))]
            if output.is_over and not isinstance(item, OutputEnd):
                # The output has ended before the sequence.
                self._run.end(index)
        return events

    def usage(self) -> Usage:
        """The usage so far, over all sequences."""
        usages = [
            replace(self._run.usage(i), n_completion=output.n_completion, n_reasoning=output.n_reasoning)
            for i, output in enumerate(self._outputs)
        ]
        return Usage.total(usages, self._n_each)

    @property
    def summary(self) -> str:
        """Tokens, speeds and finish reasons, for the log."""
        usage = self.usage()
        counted = Counter(output.finish_reason or "cut" for output in self._outputs)
        ends = ", ".join(reason if n == 1 else f"{n} {reason}" for reason, n in counted.items())
        return (
            f"in {usage.n_prompt} ({usage.n_cached} cached) at {usage.prompt_rate or 0:.1f}/s, "
            f"out {usage.n_completion} at {usage.completion_rate or 0:.1f}/s, {ends}"
        )


@contextlib.contextmanager
def wire_errors(prompt_field: str) -> Iterator[None]:
    """Complete errors of the engine and the template, which do not know the field of the prompt, such as "messages"."""
    try:
        yield
    except errors.BadRequest as error:
        error.param = error.param or prompt_field
        raise


def item_path(name: str, items: Sequence[object], i: int) -> str:
    """The path of an item of a field, which is the field itself if it has one item."""
    return name if len(items) == 1 else f"{name}[{i}]"
