"""Reads the output of one sequence: tokens of the engine become output events, and end at stop texts."""

from __future__ import annotations

import codecs
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence

from ...core.events import (
    ContentDelta,
    Event,
    OutputEnd,
    OutputEvent,
    OutputToken,
    ReasoningDelta,
    SampledTokens,
    Usage,
)
from ...core.scan import Markers
from ...engine.values import End, Sampled, SequenceRequest, StepOutput, TokenTexts
from ..dialects.parser import OutputParser, ParserEvent, merged
from ..dialects.raw_text import FormatText


class PlainText:
    """The parser of outputs that have no structure."""

    has_tool_calls = inside_tool_call = reasoning_is_open = reasoning_may_open = holds_text = is_raw = False

    def feed(self, text: str) -> list[ParserEvent]:
        return [ContentDelta(text)] if text else []

    def finish(self, *, is_cut: bool = False) -> list[ParserEvent]:
        return []


class OutputReader:
    """Reads the output of one sequence: makes output events of what the engine produces, and counts tokens and times.

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
        """The events of the next steps: at most the newest progress, the tokens before their texts, and the end.

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
        if self._shows_tokens:
            events += _with_tokens(map(self._token, sampled), map(self._as_shown, parsed))
        else:
            if n_read and is_first:
                events.append(SampledTokens(()))
            events += self._as_shown(itertools.chain(*parsed))
        if self._stop_text is not None or end is not None:
            events += self._finish(end or End("stop"))
        return events

    def _parse(self, sampled: list[Sampled]) -> tuple[list[list[ParserEvent]], int]:
        """The events of the next tokens, up to a stop text, and the number of tokens up to there.

        They are those of each token, or of all together if no token matters by itself.
        """
        texts = [self._decoder.decode(self._piece(item if isinstance(item, int) else item[0])) for item in sampled]
        text = "".join(texts)
        if not (self._shows_tokens or self._counts_reasoning or self._may_complete_stop(text)):
            return [self._up_to_stop(self._parser.feed(text))], len(sampled)
        # To show each token with its text, to count those of the reasoning, and to find the one that completes a stop
        # text.
        parsed: list[list[ParserEvent]] = []
        for text in texts:
            was_open = self._parser.reasoning_is_open
            new_events = self._parser.feed(text)
            self._count_reasoning(new_events, was_open)
            parsed.append(self._up_to_stop(new_events))
            if self._stop_text is not None:
                break
        return parsed, len(parsed)

    @property
    def _counts_reasoning(self) -> bool:
        """Whether the next tokens may be of the reasoning, and are counted."""
        return self._parser.reasoning_is_open or self._parser.reasoning_may_open

    def _may_complete_stop(self, text: str) -> bool:
        """Whether the text of further tokens may complete a stop text.

        It may if it has the last character of one, or if the parser holds back earlier text, which it may return now.
        """
        if not self._stop_ends:
            return False
        return self._parser.holds_text or any(end in text for end in self._stop_ends)

    def usage(self) -> Usage:
        """The counts and times so far."""
        return Usage(
            n_prompt=self.n_prompt,
            n_cached=self._n_cached,
            n_completion=self._n_completion,
            n_first=min(self._n_completion, 1),
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
        events = [] if self._stop_text is not None else self._rest(is_cut=end.reason != "stop")
        stop: str | int | None
        if self._stop_text is not None:  # It may have been in the rest.
            stop, last, reason = self._stop_text, None, "stop"
        else:
            last, reason = None if end.last is None else self._token(end.last), end.reason
            stop = None if last is None or self._texts.is_end(last.id) else last.id
            self._n_completion += last is not None
        # A client runs the calls of an output that ends with "tool_calls", so no call of it may be cut.
        is_call = self._parser.has_tool_calls and not self._parser.inside_tool_call
        self.finish_reason = "tool_calls" if is_call else reason
        return [*events, OutputEnd(self.finish_reason, stop, last)]

    def _rest(self, *, is_cut: bool) -> list[Event]:
        """The events of what was held back until the end of the sequence."""
        parsed = [*self._parser.feed(self._decoder.decode(b"", final=True)), *self._parser.finish(is_cut=is_cut)]
        self._has_reasoning = self._has_reasoning or _has_reasoning(parsed)
        shown = self._up_to_stop(parsed)
        if self._undecided:
            shown.append(ContentDelta(self._undecided))
        return self._as_shown(shown)

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
            text = self._undecided
            n_shown = len(text)  # What is undecided is no stop text if another event follows it.
            if isinstance(event, ContentDelta):
                text += event.text
                n_shown = self._stops.safe_end(text, 0)
                ends = [(at + len(stop), at, stop) for stop in self._stops.literals if (at := text.find(stop)) >= 0]
                if ends:
                    _, n_shown, self._stop_text = min(ends)
            self._undecided = "" if self._stop_text else text[n_shown:]
            if n_shown:
                shown.append(ContentDelta(text[:n_shown]))
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


def _with_tokens(tokens: Iterable[OutputToken], events: Iterable[list[Event]]) -> Iterator[OutputEvent]:
    """Tokens, and the events of each behind it. Tokens of one text are joined, and so are their events.

    A token without events, as of a tag, is joined to the next ones, which may be read later. So the tokens of a text do
    not depend on how many are read at once.
    """
    groups: list[tuple[list[OutputToken], list[Event]]] = []
    for token, new_events in zip(tokens, events):
        earlier = groups[-1][1][:2] if groups else []
        is_one_text = bool(new_events) and len(merged([*earlier, *new_events])) == 1
        if groups and (not earlier or is_one_text):
            groups[-1][0].append(token)
            groups[-1][1].extend(new_events)
        else:
            groups.append(([token], new_events))
    for group, group_events in groups:
        yield SampledTokens(tuple(group))
        yield from merged(group_events)


def _has_reasoning(events: Iterable[ParserEvent]) -> bool:
    return any(isinstance(event, ReasoningDelta) for event in events)


def _seconds(start: float | None, end: float | None) -> float:
    """The time from `start` to `end`; 0 if one of them is still to come."""
    return 0.0 if start is None or end is None else end - start
