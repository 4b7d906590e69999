"""The base of the encoders of all interfaces for generated text: collects output events, and calls a hook for each.

A stream and a whole body are made of the same events. To add an interface, write a parser and a subclass of `Encoder`,
and add a line to the table in http/endpoints.py, which also has the formats of errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from ..core.errors import ApiError
from ..core.events import (
    ContentDelta,
    EchoedTokens,
    OutputEnd,
    OutputEvent,
    OutputToken,
    PromptLogprobs,
    PromptProgress,
    ReasoningDelta,
    ResponseHead,
    SampledTokens,
    ToolCallArguments,
    ToolCallStart,
    Usage,
)
from ..core.request import TextRequest
from ..core.text import to_json

CONTENT, REASONING, CALL = "content", "reasoning", "call"

# Replaces a log probability of minus infinity, which JSON cannot represent.
LOGPROB_FLOOR = -9999.0


class Block:
    """A run of content or of reasoning, or a tool call with its arguments."""

    def __init__(self, kind: str, index: int, call: ToolCallStart | None) -> None:
        self.kind = kind
        self.index = index  # The position in the output.
        self._call = call
        self.pieces: list[str] = []

    @property
    def call(self) -> ToolCallStart:
        assert self._call is not None, "only a block of kind CALL has a call"
        return self._call

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class Choice:
    """One output so far."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.blocks: list[Block] = []
        self.is_open = False  # Whether the last block may get more text.
        self.n_sampled = 0
        # The tokens of the prompt with log probabilities, if the request asks for them.
        self.prompt_tokens: tuple[OutputToken, ...] | None = None
        self.end: OutputEnd | None = None
        self.echoed: tuple[OutputToken, ...] = ()  # The tokens of the prompt that the next chunk repeats.
        self.sampled: list[OutputToken] = []

    def text(self, kind: str = CONTENT) -> str:
        """The content or the reasoning."""
        return "".join(block.text for block in self.blocks if block.kind == kind)

    @property
    def calls(self) -> list[Block]:
        return [block for block in self.blocks if block.kind == CALL]

    def take_tokens(self) -> list[OutputToken]:
        """The sampled tokens since the last call."""
        taken, self.sampled = self.sampled, []
        return taken


R = TypeVar("R", bound=TextRequest)


class Encoder(Generic[R]):
    """Encodes output events as chunks or as one body. Subclasses define the hooks and `body`."""

    id_prefix: str  # The beginning of the ids of responses.

    def __init__(self, head: ResponseHead, request: R, usage: Callable[[], Usage]) -> None:
        """`usage` returns the counts so far, over all outputs."""
        self.head = head
        self.request = request
        self.usage = usage
        self.choices = [Choice(i) for i in range(request.n_choices)]
        self._chunks: list[Any] = []  # Those since the last `take`, as JSON values.
        self._is_started = False

    # --- for the sender of the response ---

    def add(self, index: int, event: OutputEvent) -> None:
        """Add the next event of output number `index`."""
        choice = self.choices[index]
        self._start()
        if isinstance(event, ContentDelta):
            self._grow(choice, CONTENT, event.text)
        elif isinstance(event, SampledTokens):
            choice.sampled += event.tokens
            choice.n_sampled += len(event.tokens)
        elif isinstance(event, ReasoningDelta):
            self._grow(choice, REASONING, event.text)
        elif isinstance(event, ToolCallStart):
            self._open(choice, CALL, event)
        elif isinstance(event, ToolCallArguments):
            self._grow(choice, CALL, event.text)
        elif isinstance(event, PromptProgress):
            self.progress(choice, event)
        elif isinstance(event, PromptLogprobs):
            choice.prompt_tokens = event.tokens
        elif isinstance(event, EchoedTokens):
            choice.echoed = event.tokens
        else:
            choice.end = event
            self._close(choice)
            self.ended(choice)

    def take(self) -> list[str]:
        """The chunks since the last call. Each is the JSON text of one event or line of the stream."""
        chunks, self._chunks = self._chunks, []
        return [to_json(chunk) for chunk in chunks]

    def finish(self) -> None:
        """Emit the last chunks of a stream. Called after the end of every output."""

    def failed(self, error: ApiError) -> None:
        """Emit the last chunk of a request that fails during the stream."""
        self.emit(error.body())

    def body(self) -> Any:
        """The whole response as a JSON value. Called after the end of every output of a request without `stream`."""
        raise NotImplementedError

    # --- the hooks: subclasses `emit` the chunks of a stream in them ---

    def started(self) -> None:
        """The first event has arrived."""

    def opened(self, choice: Choice, block: Block) -> None:
        """A block begins, without text."""

    def delta(self, choice: Choice, block: Block, text: str) -> None:
        """`text` was added to a block."""

    def closed(self, choice: Choice, block: Block) -> None:
        """A block is complete."""

    def progress(self, choice: Choice, progress: PromptProgress) -> None:
        """More tokens of the prompt are in the KV cache."""

    def ended(self, choice: Choice) -> None:
        """An output is complete."""

    def counts(self, usage: Usage | None = None) -> dict[str, Any]:
        """The usage and timings so far, as the request asks for them in every chunk.

        `usage` is null in other chunks if only the last chunk has it.
        """
        request = self.request
        so_far = (usage or self.usage()) if request.continuous_usage or request.timings_per_token else None
        counts: dict[str, Any] = {}
        if request.include_usage:
            counts["usage"] = so_far.body() if so_far and request.continuous_usage else None
        if so_far and request.timings_per_token:
            counts["timings"] = so_far.timings()
        return counts

    def totals(self) -> dict[str, Any]:
        usage = self.usage()
        return {"usage": usage.body(), "timings": usage.timings()}

    def emit(self, chunk: Any) -> None:
        """Add a chunk, unless the response is one body."""
        if self.request.stream:
            self._chunks.append(chunk)

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

    def _open(self, choice: Choice, kind: str, call: ToolCallStart | None = None) -> None:
        self._close(choice)
        choice.blocks.append(Block(kind, len(choice.blocks), call))
        choice.is_open = True
        self.opened(choice, choice.blocks[-1])

    def _close(self, choice: Choice) -> None:
        if choice.is_open:
            choice.is_open = False
            self.closed(choice, choice.blocks[-1])


# --- parts of responses that several interfaces have ---


def progress_body(progress: PromptProgress) -> dict[str, Any]:
    """llama.cpp's `prompt_progress` object."""
    return {
        "total": progress.n_prompt,
        "cache": progress.n_cached,
        "processed": progress.n_computed,
        "time_ms": round(progress.seconds * 1000),
    }


def logprob_entry(
    token: OutputToken, *, as_ids: bool = False, after_sampling: bool = False, with_id: bool = False
) -> dict[str, Any]:
    """One entry of `logprobs.content`: a token, and the likeliest tokens at its position.

    With `as_ids`, tokens are shown as "token_id:N". With `after_sampling`, the entry has probabilities instead of
    their logarithms, under llama.cpp's names. With `with_id`, as in llama.cpp's own format, it has the id, too.
    """

    def entry(one: OutputToken) -> dict[str, Any]:
        text = id_text(one.id) if as_ids else one.piece.decode("utf-8", "replace")
        value = {"prob": math.exp(one.logprob or 0.0)} if after_sampling else {"logprob": floored(one.logprob)}
        return {**({"id": one.id} if with_id else {}), "token": text, **value, "bytes": list(one.piece)}

    return {**entry(token), "top_probs" if after_sampling else "top_logprobs": [*map(entry, token.top)]}


def prompt_logprobs(tokens: Sequence[OutputToken], n_top: int) -> list[Any]:
    """vLLM's `prompt_logprobs`, a list with an entry for each token. The first is null: no token precedes it."""
    return [None if token.logprob is None else _prompt_entry(token, n_top) for token in tokens]


def id_text(id: int) -> str:
    """vLLM's notation of a token by its id."""
    return f"token_id:{id}"


def floored(logprob: float | None) -> float:
    return max(logprob or 0.0, LOGPROB_FLOOR)


def _prompt_entry(token: OutputToken, n_top: int) -> dict[str, Any]:
    """A token and the likeliest tokens at its position, by id. The rank is null for a token that is not among these."""
    top = token.top[:n_top]
    ranks = {one.id: rank for rank, one in enumerate(top, 1)}
    return {
        str(one.id): {
            "logprob": floored(one.logprob),
            "rank": ranks.get(one.id),
            "decoded_token": one.piece.decode("utf-8", "replace"),
        }
        for one in (token, *top)
    }
