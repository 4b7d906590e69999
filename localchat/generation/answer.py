"""One chat request at work: what its generations give passes a parser and is told, event by event, to a Reply.

Knows neither HTTP nor JSON, and not where the generations come from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

from ..dialects import Dialect
from ..dialects.parser import OutputParser
from ..dialects.reasoning import ReasoningTags, ReasoningTracker
from ..engine import Cancelled, Delta, EngineError, Finish, OutputToken, Progress, RequestRun
from ..protocol import errors
from ..protocol.chat import ChatRequest
from ..protocol.chat_response import (
    Reply,
    ReplyHead,
    StreamReply,
    WholeReply,
    finish_reason,
    logprob_entry,
    prompt_entry,
)
from ..protocol.events import ContentDelta, Event, ReasoningDelta, ToolCallArguments, ToolCallStart
from ..protocol.usage import Usage
from .reasoning_limit import parser_prompt, reasoning_tracker


class Answer:
    """One chat request at work. Leaving the `with` ends what still runs."""

    def __init__(
        self,
        head: ReplyHead,
        request: ChatRequest,
        choices: list[_Choice],
        run: RequestRun,
        fault: Callable[[EngineError], errors.ApiError],
    ) -> None:
        self.head = head
        self.request = request
        # What an error of the engine is on the wire.
        self._fault = fault
        self._choices = choices
        self._run = run
        self._is_stopped = False

    def __enter__(self) -> Answer:
        return self

    def __exit__(
        self, type: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run.cancel()

    def cancel(self) -> None:
        """Ends all choices within one turn; any thread. Who advances then gets Cancelled."""
        self._run.cancel()

    def stop(self) -> None:
        """As `cancel`, because the server ends; any thread. Who advances gets ShuttingDown."""
        self._is_stopped = True
        self.cancel()

    def streamed(self, *, thought: bool = False) -> StreamReply:
        """A reply in chunks that has its beginning: roles, and what opens the answers (K2, K24)."""
        request = self.request
        reply = StreamReply(
            self.head,
            request.params.n,
            include_usage=request.include_usage,
            continuous_usage=request.continuous_usage,
            timings_per_token=request.timings_per_token,
            thought=thought,
        )
        if reply.wants_figures:
            reply.figures(self.usage)
        reply.roles()
        self._echo(reply)
        return reply

    def whole(self, *, thought: bool = False) -> WholeReply:
        """A reply in one body that has its beginning."""
        reply = WholeReply(self.head, self.request.params.n, thought=thought)
        self._echo(reply)
        return reply

    @property
    def is_running(self) -> bool:
        return self._run.is_running

    def advance(self, reply: Reply, patience_s: float | None = None) -> bool:
        """Tell `reply` what is new of the running choices; False if nothing is after so long a time.

        Looking at all in turn interleaves the choices (T17); one that still waits for its slot holds up
        no other.

        Raises:
            ApiError: The request failed.
            Cancelled: `cancel` was called.
        """
        try:
            news = self._run.take(patience_s)
            for i, item in news:
                if reply.wants_figures:
                    reply.figures(self.usage)
                self._choices[i].tell(reply, item)
        except EngineError as error:
            if self._is_stopped:
                raise errors.ShuttingDown(errors.SHUTTING_DOWN) from error
            if isinstance(error, Cancelled):
                raise
            raise self._fault(error) from error
        return bool(news)

    @property
    def usage(self) -> Usage:
        """By now, over all choices (K14)."""
        return Usage.total([choice.usage for choice in self._choices], len(self._choices))

    @property
    def prompt_logprobs(self) -> list[Any] | None:
        """Once all is read, where they are asked for."""
        n_top = self.request.params.prompt_logprobs
        return None if n_top is None else prompt_logprobs(self._run.prompt_tokens(), n_top)

    @property
    def summary(self) -> str:
        """Tokens, speeds and end, for the log."""
        usage = self.usage
        ends = ",".join(choice.finish_reason or "cut" for choice in self._choices)
        read = f"in {usage.n_prompt} ({usage.n_cached} cached) at {usage.prompt_rate or 0:.1f}/s"
        return f"{read}, out {usage.n_completion} at {usage.completion_rate or 0:.1f}/s, {ends}"

    def _echo(self, reply: Reply) -> None:
        thought, text = self.request.opening if self.request.echo else ("", "")
        for choice in self._choices:
            choice.echo(reply, thought, text)


def prompt_logprobs(tokens: Sequence[OutputToken], n_top: int) -> list[Any]:
    """Of each token of a prompt that was scored, null for the first (V44)."""
    return [
        None if token.logprob is None else prompt_entry((token.id, token.piece, token.logprob), _top(token)[:n_top])
        for token in tokens
    ]


def choices_of(request: ChatRequest, run: RequestRun, dialect: Dialect, prompt: str) -> list[_Choice]:
    """A choice for each generation. The prompt may have opened thinking."""
    thought = request.opening[0] if request.continue_final_message == "reasoning_content" else None
    choices = []
    for i in range(request.params.n):
        parser = OutputParser(
            dialect,
            tools=request.callable_tools,
            prompt=parser_prompt(request, dialect, prompt),
            splits_reasoning=request.splits_reasoning,
            is_bound=request.shape is not None,
        )
        # White space at its end would wait for what follows, and then be told with it.
        parser.feed((thought or "").rstrip())
        tracker = reasoning_tracker(request, dialect, prompt)
        choices.append(_Choice(i, run, parser, tracker, dialect.think, request))
    return choices


class _Choice:
    """One generation on its way to the reply."""

    def __init__(
        self,
        i: int,
        run: RequestRun,
        parser: OutputParser,
        reasoning: ReasoningTracker,
        tags: ReasoningTags,
        request: ChatRequest,
    ) -> None:
        self._run = run
        self.finish_reason: str | None = None
        self._i = i
        self._parser = parser
        self._reasoning = reasoning
        self._tags = tags
        self._request = request
        # Whether the content stands inside thinking, where it has that too.
        self._is_inside_tags = False
        self._began_at = time.monotonic()

    @property
    def usage(self) -> Usage:
        """By now: of what has been read of the generation."""
        n_reasoning = self._reasoning.n_tokens if self._request.splits_reasoning else 0
        return replace(self._run.usage(self._i), n_reasoning=n_reasoning)

    def echo(self, reply: Reply, thought: str, text: str) -> None:
        """What the answer was opened with is part of it (K24)."""
        if thought:
            reply.reasoning(self._i, thought)
        if text:
            reply.content(self._i, text)

    def tell(self, reply: Reply, item: Progress | Delta | Finish) -> bool:
        """Tell an item; False when it was the last."""
        if isinstance(item, Finish):
            events = self._parser.finish()
            self._reasoning.finish()
            self._tell(reply, events)
            return self._finish(reply, item)
        if isinstance(item, Progress):
            if self._i == 0:
                reply.progress(item.n_done, item.n_prompt, item.n_cached, time.monotonic() - self._began_at)
            return True
        self._tell_tokens(reply, item.tokens)
        events = self._parser.feed(item.text)
        for token in item.tokens:
            self._reasoning.feed(token.piece)
        first_call = events if self._request.parallel_tool_calls else _first_call(events)
        self._tell(reply, first_call)
        if not self._request.parallel_tool_calls and self._has_its_call(events):
            self._run.cancel(self._i)
            return self._finish(reply, Finish("stop", None, self.usage))
        return True

    def _has_its_call(self, events: list[Event]) -> bool:
        has_one = self._parser.has_tool_calls and not self._parser.inside_tool_call
        return has_one or len(_first_call(events)) < len(events)

    def _tell_tokens(self, reply: Reply, tokens: tuple[OutputToken, ...]) -> None:
        if self._request.params.top_logprobs is not None and tokens:
            reply.logprobs(self._i, [_entry(token, self._request) for token in tokens])
        if self._request.return_token_ids:
            reply.token_ids(self._i, [token.id for token in tokens])

    def _finish(self, reply: Reply, end: Finish) -> bool:
        if self._is_inside_tags and not self._reasoning.is_open:
            reply.content(self._i, self._tags.end)
        is_cut = end.reason == "length" and self._parser.inside_tool_call
        self.finish_reason = finish_reason(end.reason, has_calls=self._parser.has_tool_calls, is_cut=is_cut)
        reply.finish(self._i, self.finish_reason, end.stop)
        return False

    def _tell(self, reply: Reply, events: Iterable[Event]) -> None:
        for event in events:
            if self._request.keeps_reasoning:
                self._tell_tags(reply, event)
            _TELL[type(event)](reply, self._i, event)

    def _tell_tags(self, reply: Reply, event: Event) -> None:
        """Thinking as content within its tags, before what comes after it."""
        was_inside, self._is_inside_tags = self._is_inside_tags, isinstance(event, ReasoningDelta)
        if isinstance(event, ReasoningDelta):
            reply.content(self._i, event.text if was_inside else self._tags.start + event.text)
        elif was_inside:
            reply.content(self._i, self._tags.end)


def _first_call(events: list[Event]) -> list[Event]:
    """The events before a second call (V3)."""
    second = (i for i, event in enumerate(events) if isinstance(event, ToolCallStart) and event.index > 0)
    return events[: next(second, len(events))]


_TELL: dict[type, Callable[[Reply, int, Any], None]] = {
    ContentDelta: lambda reply, i, event: reply.content(i, event.text),
    ReasoningDelta: lambda reply, i, event: reply.reasoning(i, event.text),
    ToolCallStart: lambda reply, i, event: reply.tool_head(i, event.index, event.id, event.name),
    ToolCallArguments: lambda reply, i, event: reply.tool_arguments(i, event.index, event.text),
}


def _entry(token: OutputToken, request: ChatRequest) -> dict[str, Any]:
    drawn = (token.id, token.piece, token.logprob or 0.0)
    return logprob_entry(
        drawn, _top(token), as_ids=request.tokens_as_ids, after_sampling=request.params.post_sampling_probs
    )


def _top(token: OutputToken) -> list[tuple[int, bytes, float]]:
    return [(other.token, other.piece, other.logprob) for other in token.top]
