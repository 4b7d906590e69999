"""The base of the encoders of all interfaces for generated text: collects output events, and calls a hook for each.

A stream and a whole body are made of the same events.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ..core import events
from ..core.errors import ApiError
from ..core.request import TextRequest
from ..core.text import decode_json, to_json

CONTENT, REASONING, CALL = "content", "reasoning", "call"
# The kinds of block to which the events with text add it.
_KINDS = {events.ContentDelta: CONTENT, events.ReasoningDelta: REASONING, events.ToolCallArguments: CALL}

LOGPROB_FLOOR = -9999.0  # Replaces a log probability of minus infinity, which JSON cannot represent.

_NO_CALL = events.ToolCallStart(0, "", "")
_MARK = "\0"  # Stands for the text of a chunk while the JSON around it is made.

UsageOf = Callable[..., events.Usage]
"""Returns the usage of the output with an index; without an index, over all outputs."""


@dataclass
class Block:
    """A run of content or of reasoning, or a tool call with its arguments."""

    kind: str
    index: int  # The position in the output.
    call: events.ToolCallStart  # `_NO_CALL`, unless the kind is CALL.
    pieces: list[str] = field(default_factory=list)
    tokens: list[events.OutputToken] = field(default_factory=list)  # Those of the text, for encoders that need them.

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass
class Choice:
    """One output so far."""

    index: int
    blocks: list[Block] = field(default_factory=list)
    is_open: bool = False  # Whether the last block may get more text.
    end: events.OutputEnd | None = None
    sampled: list[events.OutputToken] = field(default_factory=list)

    def text(self, kind: str = CONTENT) -> str:
        """The content or the reasoning."""
        return "".join(block.text for block in self.blocks if block.kind == kind)

    def take_tokens(self) -> list[events.OutputToken]:
        """The sampled tokens since the last call."""
        taken, self.sampled = self.sampled, []
        return taken


R = TypeVar("R", bound=TextRequest)


class Encoder(Generic[R]):
    """Encodes output events as chunks or as one body. Subclasses define the hooks and `body`."""

    id_prefix: str  # The beginning of the ids of responses.

    def __init__(self, head: events.ResponseHead, request: R, usage: UsageOf) -> None:
        self.head = head
        self.request = request
        self.usage = usage
        self.choices = [Choice(i) for i in range(request.n_choices)]
        self.n_chunks = 0  # Of the stream so far.
        self._chunks: list[str] = []  # Those since the last `take`.
        self._is_started = False

    def add(self, index: int, event: events.OutputEvent) -> None:
        """Add the next event of output number `index`."""
        choice = self.choices[index]
        self._start()
        if isinstance(event, (events.ContentDelta, events.ReasoningDelta, events.ToolCallArguments)):
            self._grow(choice, _KINDS[type(event)], event.text)
        elif isinstance(event, events.SampledTokens):
            choice.sampled += event.tokens
        elif isinstance(event, events.ToolCallStart):
            self._open(choice, CALL, event)
        elif isinstance(event, events.PromptProgress):
            counts = {"total": event.n_prompt, "cache": event.n_cached, "processed": event.n_computed}
            self.progress(choice, {"prompt_progress": {**counts, "time_ms": round(event.seconds * 1000)}})
        else:
            choice.end = event
            self._close(choice)
            self.ended(choice)

    def take(self) -> list[str]:
        """The chunks since the last call. Each is the JSON text of one event or line of the stream."""
        chunks, self._chunks = self._chunks, []
        return chunks

    def finish(self) -> None:
        """Emit the last chunks of a stream. Called after the end of every output."""

    @classmethod
    def ping_chunk(cls, request: R) -> Any:
        """A chunk without news, for a stream that waits; None: the format has none, and clients ignore comments."""
        return None

    def ping(self) -> None:
        """Emit the chunk without news that a stream has after the request has started, if it differs."""

    def failed(self, error: ApiError, body: Any) -> None:
        """Emit the last chunk of a request that fails during the stream. `body` is the body of an error response."""
        self.emit(body)

    def body(self) -> Any:
        """The whole response as a JSON value. Called after the end of every output of a request without `stream`."""
        raise NotImplementedError

    # The hooks, in which subclasses `emit` the chunks of a stream:

    def started(self) -> None:
        """The first event has arrived."""

    def opened(self, choice: Choice, block: Block) -> None:
        """A block begins, without text."""

    def delta(self, choice: Choice, block: Block, text: str) -> None:
        """`text` was added to a block."""

    def closed(self, choice: Choice, block: Block) -> None:
        """A block is complete."""

    def progress(self, choice: Choice, progress: Mapping[str, Any]) -> None:
        """More tokens of the prompt are in the KV cache. `progress` is llama.cpp's field for that."""

    def ended(self, choice: Choice) -> None:
        """An output is complete."""

    def emit(self, chunk: Any) -> None:
        """Add a chunk, a JSON value, unless the response is one body."""
        if self.request.stream:
            self.emit_json(to_json(chunk))

    def emit_json(self, chunk: str) -> None:
        """Add a chunk of a stream that is JSON already."""
        self._chunks.append(chunk)
        self.n_chunks += 1

    def _start(self) -> None:
        if not self._is_started:
            self._is_started = True
            self.started()

    def _grow(self, choice: Choice, kind: str, text: str) -> None:
        if not choice.is_open or choice.blocks[-1].kind != kind:
            self._open(choice, kind)
        block = choice.blocks[-1]
        block.pieces.append(text)
        if text:
            self.delta(choice, block, text)

    def _open(self, choice: Choice, kind: str, call: events.ToolCallStart = _NO_CALL) -> None:
        self._close(choice)
        choice.blocks.append(Block(kind, len(choice.blocks), call))
        choice.is_open = True
        self.opened(choice, choice.blocks[-1])

    def _close(self, choice: Choice) -> None:
        if choice.is_open:
            choice.is_open = False
            self.closed(choice, choice.blocks[-1])


class ChoicesEncoder(Encoder[R]):
    """The base for OpenAI's formats, whose chunks and bodies have choices, usage and timings."""

    kind: str  # The types of a body and of a chunk.
    chunk_kind: str
    empty: Mapping[str, Any]  # The fields of a choice in a chunk without text.

    def __init__(self, head: events.ResponseHead, request: R, usage: UsageOf) -> None:
        super().__init__(head, request, usage)
        # Whether chunks of text differ in nothing but their text. If so, `_frames` has what `_frame` returns, by the
        # index of the choice and the kind of text, such as (0, CONTENT).
        counts = request.continuous_usage_stats or request.timings_per_token
        self._differ_in_text_alone = not (counts or request.return_token_ids or request.params.top_logprobs is not None)
        self._frames: dict[tuple[int, str], tuple[str, str]] = {}

    def whole(self, choice: Choice) -> dict[str, Any]:
        """The fields of a choice with the whole output."""
        raise NotImplementedError

    def logprobs(self, choice: Choice, sampled: Sequence[events.OutputToken]) -> dict[str, Any] | None:
        """The log probabilities of a choice, with the tokens that were sampled since its last chunk."""
        raise NotImplementedError

    def progress(self, choice: Choice, progress: Mapping[str, Any]) -> None:
        self.emit_choice(choice, self.empty, **progress)

    def finish(self) -> None:
        if self.request.include_usage:
            self.emit({**self._head(self.chunk_kind), "choices": [], **self._totals()})

    def body(self) -> dict[str, Any]:
        choices = [self.choice_body(choice, self.whole(choice)) for choice in self.choices]
        return {**self._head(self.kind), "choices": choices, **self._totals()}

    def emit_choice(self, choice: Choice, fields: Mapping[str, Any], **extra: Any) -> None:
        """Emit a chunk whose choice has these fields, with the `extra` fields beside `choices`."""
        if self.request.stream:
            self.emit({**self._chunk(choice, fields), **extra})

    def emit_text(
        self, choice: Choice, kind: str, text: str, fields_with: Callable[[str], Mapping[str, Any]], **extra: Any
    ) -> None:
        """Emit a chunk like `emit_choice`. `fields_with` makes the fields of the choice from a text of this kind.

        To encode a chunk takes longer than to encode its text, so the JSON around the text is made once.
        """
        if extra or not (self._differ_in_text_alone and self.request.stream):
            self.emit_choice(choice, fields_with(text), **extra)
            return
        key = (choice.index, kind)
        if key not in self._frames:
            self._frames[key] = self._frame(self._chunk(choice, fields_with(_MARK)))
        before, after = self._frames[key]
        self.emit_json(before + to_json(text) + after)

    @staticmethod
    def _frame(chunk: Mapping[str, Any]) -> tuple[str, str]:
        """The JSON before and after the text of a chunk, which is `_MARK`.

        ('{"id": "chatcmpl-1", ..., "choices": [{"index": 0, "delta": {"content": ', '}, ...}]}')
        """
        before, _, after = to_json(chunk).rpartition(to_json(_MARK))
        return before, after

    def _chunk(self, choice: Choice, fields: Mapping[str, Any]) -> dict[str, Any]:
        """A chunk whose choice has these fields."""
        return {**self._head(self.chunk_kind), "choices": [self.choice_body(choice, fields)], **self.counts()}

    def choice_body(self, choice: Choice, fields: Mapping[str, Any]) -> dict[str, Any]:
        """A choice of a chunk or of the body, with these fields, and the tokens since its last chunk."""
        end, sampled = choice.end, choice.take_tokens()
        logprobs = self.logprobs(choice, sampled) if self.request.params.top_logprobs is not None else None
        ids = {"token_ids": [token.id for token in sampled]} if self.request.return_token_ids and sampled else {}
        finish = {"finish_reason": None} if end is None else {"finish_reason": end.reason, "stop_reason": end.stop}
        return {"index": choice.index, **fields, "logprobs": logprobs, **ids, **finish}

    def counts(self, usage: events.Usage | None = None) -> dict[str, Any]:
        """The usage and timings so far, for a chunk, as the request asks for them.

        The field `usage` is null if only the last chunk has a usage.
        """
        request, counts = self.request, dict[str, Any]()
        if request.include_usage:
            counts["usage"] = (usage or self.usage()).body() if request.continuous_usage_stats else None
        if request.timings_per_token:
            counts["timings"] = (usage or self.usage()).timings()
        return counts

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.head.id, "object": kind, "created": self.head.created, "model": self.head.model}

    def _totals(self) -> dict[str, Any]:
        usage = self.usage()
        return {"usage": usage.body(), "timings": usage.timings()}


def arguments_object(text: str) -> dict[str, Any]:
    """The arguments of a call for an interface in which they are an object.

    A model may generate others, unless the arguments are constrained. No call is left out for that: a field that no
    tool has shows another value, `_value`, or a text that is no JSON since it is broken or cut, `_incomplete_json`.
    """
    try:
        value = decode_json(text or "{}")
    except (ValueError, RecursionError):
        return {"_incomplete_json": text}
    return value if isinstance(value, dict) else {"_value": value}


def logprob_entry(
    token: events.OutputToken, *, as_ids: bool = False, after_sampling: bool = False, with_id: bool = False
) -> dict[str, Any]:
    """One entry of `logprobs.content`: a token, and the likeliest tokens at its position.

    With `as_ids`, tokens are shown as "token_id:N"; with `after_sampling`, there are probabilities instead of their
    logarithms.
    """

    def entry(shown: events.OutputToken) -> dict[str, Any]:
        text = f"token_id:{shown.id}" if as_ids else shown.piece.decode("utf-8", "replace")
        value = {"prob": math.exp(shown.logprob or 0.0)} if after_sampling else {"logprob": floored(shown.logprob)}
        return {**({"id": shown.id} if with_id else {}), "token": text, **value, "bytes": list(shown.piece)}

    return {**entry(token), "top_probs" if after_sampling else "top_logprobs": [*map(entry, token.top)]}


def floored(logprob: float | None) -> float:
    return max(logprob or 0.0, LOGPROB_FLOOR)
