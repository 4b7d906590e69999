"""A request for text in flight: submits its sequences to the engine, and makes output events of what they generate.

`GenerationRun` is the request, `Output` the output of one sequence. Errors of the engine and of chat templates get the
field of the request here.
"""

from __future__ import annotations

import codecs
import contextlib
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from queue import Empty, SimpleQueue

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
from ...core.scan import Markers
from ...engine.values import GenerationRequest, Sampled, StepOutput, TokenTexts
from ..dialects.parser import FormatText, OutputParser, merged
from ..model import Model


class PlainText:
    """The parser of outputs that have no structure."""

    has_tool_calls = inside_tool_call = reasoning_is_open = reasoning_may_open = is_raw = False

    def feed(self, text: str) -> list[Event]:
        return [ContentDelta(text)] if text else []

    def finish(self) -> list[Event]:
        return []


class Output:
    """The output of one sequence: makes output events of what the engine produces, and counts tokens and times. Only
    here an output ends at a stop text, in the content; tokens after the end are neither emitted nor counted."""

    def __init__(
        self,
        request: GenerationRequest,
        texts: TokenTexts,
        parser: OutputParser | PlainText,
        echo: Iterable[Event] = (),
    ) -> None:
        """`echo` has the events to emit before the first token. They are made then, when the engine has checked the
        token ids."""
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
        # The text that may begin a stop text, and the stop text that was found. It ends with one of `_stop_ends`.
        self._stop = Markers(*request.params.stop)
        self._stop_ends = tuple({stop[-1] for stop in self._stop.literals})
        self._held = ""
        self._found: str | None = None
        # The tokens of reasoning and its tags so far, and whether there is any text between the tags.
        self._n_reasoning, self._has_reasoning = 0, False
        self._n_pending = 0  # The tokens since the last event, which may be the start tag of reasoning.
        # The sampled tokens, with the one that ended the output.
        self._n_completion = 0
        self._n_cached = self._n_drafted = self._n_draft_accepted = 0
        # Times by `time.perf_counter`: of the submission, the start of the prefill, the first and the last token.
        self._submitted_at = time.perf_counter()
        self._started_at: float | None = None
        self._first_at: float | None = None
        self._last_at: float | None = None

    def read(self, steps: Sequence[StepOutput]) -> list[OutputEvent]:
        """The events of the next steps: at most the newest progress, one SampledTokens and one OutputEnd. After an
        OutputEnd, the caller must drop all later steps. An error that ended the sequence has no event."""
        events: list[OutputEvent] = []
        sampled: list[Sampled] = []
        for step in steps:
            self._count(step)
            sampled += step.tokens
            if step.progress is not None and self.request.reports_progress:
                events = [step.progress]
        newest = steps[-1]
        reason = newest.end if isinstance(newest.end, str) else None
        if not (sampled or reason):
            return events
        is_first, self._has_begun = not self._has_begun, True
        if is_first:
            events += self._echo
        made, n_read = self._parsed(sampled)
        self._n_completion += n_read
        if n_read and (self._shows_tokens or is_first):
            shown = sampled[:n_read] if self._shows_tokens else ()
            events.append(SampledTokens(tuple(map(self._token, shown))))
        events += self._shown(made)
        if self._found is not None or reason is not None:
            events += self._finish(reason or "stop", newest.last)
        return events

    def _parsed(self, sampled: list[Sampled]) -> tuple[list[Event], int]:
        """The events of the next tokens, up to a stop text, and the number of tokens up to there."""
        pieces = [self._piece(item if isinstance(item, int) else item[0]) for item in sampled]
        parser, made = self._parser, list[Event]()
        if not (parser.reasoning_is_open or parser.reasoning_may_open):
            state = self._decoder.getstate()
            text = self._decoder.decode(b"".join(pieces))
            if not any(end in text for end in self._stop_ends):
                return self._up_to_stop(parser.feed(text)), len(sampled)
            self._decoder.setstate(state)
        # Token by token, to count those of the reasoning, and those up to a stop text.
        for n_read, piece in enumerate(pieces, 1):
            was_open = parser.reasoning_is_open
            new = parser.feed(self._decoder.decode(piece))
            self._count_reasoning(new, was_open)
            made += self._up_to_stop(new)
            if self._found is not None:
                return made, n_read
        return made, len(sampled)

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
        if step.tokens or step.last is not None:
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

    def _finish(self, reason: str, last: Sampled | None) -> list[OutputEvent]:
        """The last events, after a stop text or at the end of the sequence, which has perhaps a last token."""
        events: list[OutputEvent] = []
        if self._found is None:
            made = [*self._parser.feed(self._decoder.decode(b"", final=True)), *self._parser.finish()]
            self._has_reasoning = self._has_reasoning or _has_reasoning(made)
            shown = self._up_to_stop(made)
            if self._held:
                shown.append(ContentDelta(self._held))
            events += self._shown(shown)
        stop: str | int | None = self._found
        token = self._token(last) if last is not None and stop is None else None
        if token is not None:
            self._n_completion += 1
            stop = None if self._texts.is_end(token.id) else token.id
        # A client runs the calls of an output that ends with "tool_calls", so no call of it may be cut.
        is_call = self._parser.has_tool_calls and not self._parser.inside_tool_call
        self.finish_reason = "tool_calls" if is_call else "stop" if self._found else reason
        return [*events, OutputEnd(self.finish_reason, stop, token)]

    def _count_reasoning(self, events: Iterable[Event], was_open: bool) -> None:
        """Count a token with these events, if it is a part of the reasoning or of its tags."""
        has_reasoning = _has_reasoning(events)
        self._has_reasoning = self._has_reasoning or has_reasoning
        self._n_pending += 1
        if was_open or self._parser.reasoning_is_open or has_reasoning:
            self._n_reasoning += self._n_pending
            self._n_pending = 0
        elif any(not isinstance(event, FormatText) for event in events):
            self._n_pending = 0

    def _up_to_stop(self, events: list[Event]) -> list[Event]:
        """The events with the content up to the first stop text. A stop text does not extend across other events. Of
        stop texts that overlap, the one that ends first counts; of those that end together, the longest one."""
        if not self._stop.literals:
            return events
        shown: list[Event] = []
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
                shown.append(ContentDelta(text[:end]))
            if self._found is not None:
                break
            if not isinstance(event, ContentDelta):
                shown.append(event)
        return shown

    def _shown(self, events: list[Event]) -> list[Event]:
        """The same events, but in a raw output with all text as content."""
        if self._parser.is_raw:
            events = [ContentDelta(event.text) if isinstance(event, ReasoningDelta) else event for event in events]
        return merged(events)


def _has_reasoning(events: Iterable[Event]) -> bool:
    return any(type(event) is ReasoningDelta for event in events)


def _seconds(start: float | None, end: float | None) -> float:
    """The time from `start` to `end`; 0 if one of them is still to come."""
    return 0.0 if start is None or end is None else end - start


Events = list[tuple[int, OutputEvent]]
"""Events of a request, each with the index of its sequence."""


class GenerationRun:
    """A request in flight: makes output events of what the engine produces for its sequences.
    Leaving the `with` block cancels the sequences that are still running."""

    def __init__(
        self,
        model: Model,
        outputs: Sequence[Output],
        id_prefix: str,
        check: Callable[[], None] = lambda: None,
        *,
        n_each: int,
        prompt_field: str,
    ) -> None:
        """Submit all sequences or none: `n_each` for each prompt, those of the first one first. `check`: see
        `Engine.submit`. `prompt_field` is the field of the request that has the prompt, for errors. Raises ApiError."""
        self.outputs = outputs
        self._n_each = n_each
        self._prompt_field = prompt_field
        # What the engine produces for all sequences, in order.
        self._queue: SimpleQueue[StepOutput] = SimpleQueue()
        # The `write` of a call of `take` that waits, and the lock of the thread that uses it or the outputs meanwhile.
        self._write: Callable[[Events], bool] | None = None
        self._writing = threading.Lock()
        self._running = set(range(len(outputs)))  # The indexes of the outputs that have not ended.
        self._error: Exception | None = None  # That of the sequence that failed first.
        sequences = [output.request for output in outputs]
        with wire_errors(prompt_field):
            submitted = model.engine.submit(sequences, self._deliver, check)
        self._engine, (self._ids, n_prompts, prompts) = model.engine, submitted
        for output, n_prompt in zip(outputs, n_prompts):
            output.n_prompt = n_prompt
        id = id_prefix + uuid.uuid4().hex
        ids = tuple(map(tuple, prompts[::n_each]))
        self.head = ResponseHead(id, int(time.time()), model.name, ids, sequences[0].sampling)

    def __enter__(self) -> GenerationRun:
        return self

    def __exit__(self, *exception: object) -> None:
        self.cancel()

    @property
    def is_running(self) -> bool:
        """Whether `take` may still return or raise something."""
        return bool(self._running)

    def take(self, timeout_s: float | None = None, write: Callable[[Events], bool] | None = None) -> Events:
        """Wait for output, then return all events of it, each with the index of its sequence; none after `timeout_s`.
        Meanwhile `write` gets the events of tokens on the thread that receives them, so that they wake no other one;
        it must not wait. `take` returns when `write` returns false. Raises ApiError after the last events if a
        sequence failed, which ends the others too; Cancelled."""
        events: Events = []
        taken = self._taken(timeout_s, write) if self._error is None else {}
        if self._error is not None:  # Perhaps `write` has failed meanwhile: what came after that is not read.
            taken = {}
        for index, steps in taken.items():
            if index not in self._running:
                continue
            output, end = self.outputs[index], steps[-1].end
            if output.finish_reason is None:
                events += ((index, event) for event in output.read(steps))
            if output.finish_reason is not None:
                self._running.remove(index)
                if end is None:  # The output has ended before the sequence.
                    self._cancel(index)
            elif isinstance(end, Exception):
                self._error = self._error or end
        if self._error is not None and not events:
            self.cancel()
            self._running.clear()
            with wire_errors(self._prompt_field):
                raise self._error
        return events

    def _taken(self, timeout_s: float | None, write: Callable[[Events], bool] | None) -> dict[int, list[StepOutput]]:
        """What the engine has produced since the last call, except what `write` got, by the index of the sequence."""
        taken: dict[int, list[StepOutput]] = {}
        with self._writing:
            self._write = write if self._queue.empty() else None
        try:
            new = self._queue.get(timeout=timeout_s)
            while True:
                taken.setdefault(new.sequence, []).append(new)
                new = self._queue.get_nowait()
        except Empty:
            return taken
        finally:
            with self._writing:
                self._write = None

    def _deliver(self, step: StepOutput) -> None:
        """Runs on the thread that receives the output of all requests: write it, or leave it to `take`."""
        with self._writing:
            output = self.outputs[step.sequence]
            if self._write is not None and not step.is_urgent and output.finish_reason is None:
                try:
                    events = [(step.sequence, event) for event in output.read([step])]
                    if self._write(events) and output.finish_reason is None:
                        return
                except Exception as error:
                    self._error = error
                step = StepOutput(step.sequence, step.at)
            self._write = None
            self._queue.put(step)

    def cancel(self) -> None:
        """End all sequences within one step of the engine."""
        for index in self._running:
            self._cancel(index)

    def _cancel(self, index: int) -> None:
        self._engine.cancel(self._ids[index])

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
