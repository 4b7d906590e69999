"""A request for text in flight: starts its sequences in the engine, and makes output events of what they generate.

`GenerationRun` is the request, `Output` the output of one sequence. Errors of the engine and of chat templates get the
field of the request here.
"""

from __future__ import annotations

import codecs
import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ...core import errors
from ...core.events import (
    ContentDelta,
    Event,
    OutputEnd,
    OutputEvent,
    OutputToken,
    ReasoningDelta,
    ResponseHead,
    SampledTokens,
    Usage,
)
from ...core.mailbox import Mailbox
from ...core.scan import Markers
from ...engine.values import End, Sampled, SequenceRequest, StepOutput, TokenTexts
from ..dialects.parser import OutputParser, ParserEvent, merged
from ..dialects.raw_text import FormatText
from ..model import Model


class PlainText:
    """The parser of outputs that have no structure."""

    has_tool_calls = inside_tool_call = reasoning_is_open = reasoning_may_open = holds_text = is_raw = False

    def feed(self, text: str) -> list[ParserEvent]:
        return [ContentDelta(text)] if text else []

    def finish(self) -> list[ParserEvent]:
        return []


class Output:
    """The output of one sequence: makes output events of what the engine produces, and counts tokens and times.

    The engine does not know stop texts. They are searched for here, in the content alone. The engine may generate
    further tokens before it learns that an output has ended; these are neither emitted nor counted.

    The end of what was generated may be held back, in three places one after another: by the decoder the bytes of a
    character that is not complete, by the parser what may begin a tag or a call, and in `_undecided` the content that a
    stop text may begin with.
    """

    def __init__(
        self,
        request: SequenceRequest,
        texts: TokenTexts,
        parser: OutputParser | PlainText,
        echo: Iterable[Event] = (),
    ) -> None:
        """`echo` has the events to emit before the first token.

        It may be an iterator, which is read then: the engine has checked the token ids of the prompt by that time.
        """
        self.request = request
        self.finish_reason: str | None = None
        self.n_prompt = 0
        self._texts = texts
        self._parser = parser
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._echo = echo
        self._has_begun = False
        # Whether the response has token ids or log probabilities. If not, only the first SampledTokens is emitted,
        # without tokens, at which a stream begins.
        self._shows_tokens = request.returns_ids or request.params.top_logprobs is not None
        self._stops = Markers(*request.params.stop)
        # The last characters of the stop texts. Only a token with one of them can complete a stop text.
        self._stop_ends = tuple({stop[-1] for stop in self._stops.literals})
        self._undecided = ""  # The end of the content so far, not emitted since a stop text may begin with it.
        self._stop_text: str | None = None  # The stop text that has ended the output.
        self._n_reasoning = 0  # The tokens of reasoning and of its tags so far.
        self._has_reasoning = False  # Whether there is any text between the tags.
        # The tokens since the last event. If they are the start tag of reasoning, `_count_reasoning` counts them later.
        self._n_pending = 0
        # The sampled tokens, with the one that ended the output.
        self._n_completion = 0
        self._n_cached = self._n_drafted = self._n_draft_accepted = 0
        # Times by `time.perf_counter`.
        self._submitted_at = time.perf_counter()
        self._started_at: float | None = None  # The start of the prefill.
        self._first_at: float | None = None  # The first token.
        self._last_at: float | None = None  # The last token so far.

    def read(self, steps: Sequence[StepOutput]) -> list[OutputEvent]:
        """The events of the next steps: at most the newest progress, one SampledTokens and one OutputEnd.

        After an OutputEnd, the caller must drop all later steps.
        """
        events: list[OutputEvent] = []
        sampled: list[Sampled] = []
        for step in steps:
            self._count(step)
            sampled += step.tokens
            if step.progress is not None and self.request.reports_progress:
                events = [step.progress]
        end = steps[-1].end
        if not sampled and end is None:
            return events
        is_first, self._has_begun = not self._has_begun, True
        if is_first:
            events += self._echo
        parsed, n_read = self._parse(sampled)
        self._n_completion += n_read
        if n_read and (self._shows_tokens or is_first):
            shown = sampled[:n_read] if self._shows_tokens else ()
            events.append(SampledTokens(tuple(map(self._token, shown))))
        events += self._as_shown(parsed)
        if self._stop_text is not None or end is not None:
            events += self._finish(end or End("stop"))
        return events

    def _parse(self, sampled: list[Sampled]) -> tuple[list[ParserEvent], int]:
        """The events of the next tokens, up to a stop text, and the number of tokens up to there."""
        pieces = [self._piece(item if isinstance(item, int) else item[0]) for item in sampled]
        parser, parsed = self._parser, list[ParserEvent]()
        # All tokens at once, if there is no reasoning whose tokens are counted, and no token can complete a stop text.
        # None can if their text has the last character of no stop text, and the parser holds back no earlier text that
        # it would return now.
        has_reasoning = parser.reasoning_is_open or parser.reasoning_may_open
        if not has_reasoning and not (self._stop_ends and parser.holds_text):
            state = self._decoder.getstate()
            text = self._decoder.decode(b"".join(pieces))
            if not any(end in text for end in self._stop_ends):
                return self._up_to_stop(parser.feed(text)), len(sampled)
            self._decoder.setstate(state)
        # Token by token, to count those of the reasoning, and to find the one that completes a stop text.
        for n_read, piece in enumerate(pieces, 1):
            was_open = parser.reasoning_is_open
            new_events = parser.feed(self._decoder.decode(piece))
            self._count_reasoning(new_events, was_open)
            parsed += self._up_to_stop(new_events)
            if self._stop_text is not None:
                return parsed, n_read
        return parsed, len(sampled)

    def usage(self) -> Usage:
        """The counts and times so far."""
        return Usage(
            n_prompt=self.n_prompt,
            n_cached=self._n_cached,
            n_completion=self._n_completion,
            queue_s=_seconds(self._submitted_at, self._started_at),
            prompt_s=_seconds(self._started_at, self._first_at),
            completion_s=_seconds(self._first_at, self._last_at),
            # Tags without text between them are no reasoning.
            n_reasoning=self._n_reasoning if self._has_reasoning else 0,
            n_drafted=self._n_drafted,
            n_draft_accepted=self._n_draft_accepted,
        )

    def _count(self, step: StepOutput) -> None:
        self._n_drafted += step.n_drafted
        self._n_draft_accepted += step.n_draft_accepted
        if step.progress is not None:
            self._started_at = self._started_at or step.at
            self._n_cached = step.progress.n_cached
        if step.tokens or (step.end is not None and step.end.last is not None):
            self._first_at = self._first_at or step.at
            self._last_at = step.at

    def _piece(self, token: int) -> bytes:
        return self._texts.piece(token, token in self.request.visible_tokens)

    def _token(self, sampled: Sampled) -> OutputToken:
        if isinstance(sampled, int):
            return OutputToken(sampled, self._piece(sampled))
        token, logprob, top = sampled
        likeliest = tuple(OutputToken(id, self._piece(id), p) for id, p in top)
        return OutputToken(token, self._piece(token), logprob, likeliest)

    def _finish(self, end: End) -> list[OutputEvent]:
        """The last events, after a stop text or at the end of the sequence."""
        events: list[OutputEvent] = []
        if self._stop_text is None:
            last_events = [*self._parser.feed(self._decoder.decode(b"", final=True)), *self._parser.finish()]
            self._has_reasoning = self._has_reasoning or _has_reasoning(last_events)
            shown = self._up_to_stop(last_events)
            if self._undecided:
                shown.append(ContentDelta(self._undecided))
            events += self._as_shown(shown)
        stop: str | int | None = self._stop_text
        token = self._token(end.last) if end.last is not None and stop is None else None
        if token is not None:
            self._n_completion += 1
            stop = None if self._texts.is_end(token.id) else token.id
        # A client runs the calls of an output that ends with "tool_calls", so no call of it may be cut.
        is_call = self._parser.has_tool_calls and not self._parser.inside_tool_call
        self.finish_reason = "tool_calls" if is_call else "stop" if self._stop_text else end.reason
        return [*events, OutputEnd(self.finish_reason, stop, token)]

    def _count_reasoning(self, events: Iterable[ParserEvent], was_open: bool) -> None:
        """Count a token if it is a part of the reasoning or of its tags.

        `events` are those that the parser made of the token; `was_open`: whether the reasoning was open before it. A
        token without events may be a part of a tag, so it is counted once a later token has decided that.

        The tokens "<", "think", ">" have no events, and the third one opens the reasoning: all three are counted. The
        tokens "<", "b" have one event, the text "<b" of the content: neither is counted.
        """
        has_reasoning = _has_reasoning(events)
        self._has_reasoning = self._has_reasoning or has_reasoning
        self._n_pending += 1
        if was_open or self._parser.reasoning_is_open or has_reasoning:
            self._n_reasoning += self._n_pending
            self._n_pending = 0
        elif any(not isinstance(event, FormatText) for event in events):
            self._n_pending = 0

    def _up_to_stop(self, events: list[ParserEvent]) -> list[ParserEvent]:
        """The events with the content up to the first stop text.

        A stop text does not extend across other events. Of stop texts that overlap, the one that ends first counts; of
        those that end together, the longest one.
        """
        if not self._stops.literals:
            return events
        shown: list[ParserEvent] = []
        for event in events:
            text, end = self._undecided, len(self._undecided)
            if isinstance(event, ContentDelta):
                text += event.text
                ends = [(at + len(stop), at, stop) for stop in self._stops.literals if (at := text.find(stop)) >= 0]
                end = self._stops.safe_end(text, 0)
                if ends:
                    _, end, self._stop_text = min(ends)
            self._undecided = "" if self._stop_text else text[end:]
            if end:
                shown.append(ContentDelta(text[:end]))
            if self._stop_text is not None:
                break
            if not isinstance(event, ContentDelta):
                shown.append(event)
        return shown

    def _as_shown(self, events: Iterable[ParserEvent]) -> list[Event]:
        """The events as they are emitted: in a raw output all text is content, and successive texts are merged."""
        final: list[Event] = []
        for event in events:
            if isinstance(event, FormatText) or (self._parser.is_raw and isinstance(event, ReasoningDelta)):
                final.append(ContentDelta(event.text))
            else:
                final.append(event)
        return merged(final)


def _has_reasoning(events: Iterable[ParserEvent]) -> bool:
    return any(isinstance(event, ReasoningDelta) for event in events)


def _seconds(start: float | None, end: float | None) -> float:
    """The time from `start` to `end`; 0 if one of them is still to come."""
    return 0.0 if start is None or end is None else end - start


Events = list[tuple[int, OutputEvent]]
"""Events of a request, each with the index of its sequence."""


class GenerationRun:
    """A request in flight: makes output events of what the engine produces for its sequences.

    Leaving the `with` block ends the sequences that are still running.
    """

    def __init__(
        self,
        model: Model,
        outputs: Sequence[Output],
        id_prefix: str,
        mailbox: Mailbox,
        *,
        n_each: int,
        prompt_field: str,
    ) -> None:
        """Start all sequences or none: `n_each` for each prompt, those of the first one first.

        The output comes through `mailbox`, which belongs to the calling thread. `prompt_field` is the field of the
        request that has the prompt, for errors. Raises ApiError, and what the mailbox raises.
        """
        self.outputs = outputs
        self._n_each = n_each
        self._prompt_field = prompt_field
        self._running = set(range(len(outputs)))  # The indexes of the outputs that have not ended.
        sequences = [output.request for output in outputs]
        with naming_field(prompt_field):
            self._request = model.engine.generate(sequences, mailbox)
            try:
                # The first item is the TokenizedPrompts, all others are StepOutputs.
                prompts, *self._steps = self._request.take()
            except BaseException:
                self._request.drop()
                raise
        for output, n_tokens in zip(outputs, prompts.n_tokens):
            output.n_prompt = n_tokens
        id = id_prefix + uuid.uuid4().hex
        ids = tuple(map(tuple, prompts.tokens[::n_each]))
        self.head = ResponseHead(id, int(time.time()), model.name, ids, sequences[0].sampling)

    def __enter__(self) -> GenerationRun:
        return self

    def __exit__(self, *exception: object) -> None:
        self.drop()

    @property
    def is_running(self) -> bool:
        """Whether `take` may still return or raise something."""
        return bool(self._running)

    def take(self, timeout_s: float | None = None) -> Events:
        """Wait for output, then return all events of it, each with the index of its sequence; none after `timeout_s`.

        If a sequence fails, all end: the error, an ApiError, is raised after the last events. The events may be empty,
        as those of a token that may begin a stop text.
        """
        steps, self._steps = self._steps, list[Any]()
        if not steps:
            try:
                with naming_field(self._prompt_field):
                    steps = self._request.take(timeout_s)
            except BaseException:
                self.drop()
                raise
        by_sequence: dict[int, list[StepOutput]] = {}
        for step in steps:
            by_sequence.setdefault(step.sequence, []).append(step)
        events: Events = []
        for index, new_steps in by_sequence.items():
            if index not in self._running:  # It ended at a stop text.
                continue
            output = self.outputs[index]
            events += ((index, event) for event in output.read(new_steps))
            if output.finish_reason is not None:
                self._running.remove(index)
                if new_steps[-1].end is None:  # The output has ended before the sequence.
                    self._request.drop(index)
        return events

    def drop(self) -> None:
        """End all sequences. They produce nothing more."""
        if self._running:
            self._running.clear()
            self._request.drop()

    def usage(self, index: int | None = None) -> Usage:
        """The usage so far of one sequence; None: over all sequences."""
        if index is not None:
            return self.outputs[index].usage()
        return Usage.total([output.usage() for output in self.outputs], self._n_each)

    @property
    def summary(self) -> str:
        """Tokens, speeds and finish reasons, for the log."""
        usage = self.usage()
        counted = Counter(output.finish_reason or "cut" for output in self.outputs)
        ends = ", ".join(reason if n == 1 else f"{n} {reason}" for reason, n in counted.items())
        prompt_rate, completion_rate = (
            "" if rate is None else f" at {rate:.1f}/s" for rate in (usage.prompt_rate, usage.completion_rate)
        )
        n_in = f"in {usage.n_prompt} ({usage.n_cached} cached){prompt_rate}"
        return f"{n_in}, out {usage.n_completion}{completion_rate}, {ends}"


@contextlib.contextmanager
def naming_field(prompt_field: str) -> Iterator[None]:
    """Name the field that has the prompt, such as "messages", in errors of the block that name no field.

    The engine and the template do not know it.
    """
    try:
        yield
    except errors.BadRequest as error:
        error.param = error.param or prompt_field
        raise
