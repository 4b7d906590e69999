"""POST /v1/completions: the request from a body, and the answer as one body or a stream of chunks.

The older API, in which prompts are plain text or token ids and nothing is a message. Choices are counted
over all prompts: those of the first prompt come first.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .chat_response import LOGPROB_FLOOR, ReplyHead, to_json
from .errors import ApiError, BadRequest
from .fields import Members, parse_body, unknown_members
from .inputs import Input, read_inputs
from .params import MAX_TOP_LOGPROBS, WITHOUT_EFFECT, GenerationParams, read_params
from .response_format import Shape, read_shape
from .streaming import Streaming, read_streaming, read_token_ids
from .usage import Usage

# Each choice is a sequence of its own: as many may be in one request, over all its prompts.
MAX_CHOICES = 128


@dataclass(frozen=True)
class CompletionRequest(Streaming):
    """What a caller asked for, checked. Of `best_of` answers to each prompt the likeliest `n` are given.

    `suffix` is the text after the gap that is to be filled, `shape` the form that the answer must have. With
    `adds_special` a text begins with the model's begin token, with `tokens_as_ids` tokens are spelled as ids (V48).
    `unknown` names the members that were ignored.
    """

    model: str = ""
    params: GenerationParams = field(default_factory=GenerationParams)
    prompts: tuple[Input, ...] = ()
    suffix: str | None = None
    echo: bool = False
    shape: Shape | None = None
    best_of: int = 1
    return_token_ids: bool = False
    tokens_as_ids: bool = False
    adds_special: bool = True
    unknown: tuple[str, ...] = ()

    @property
    def n_choices(self) -> int:
        return len(self.prompts) * self.params.n

    @property
    def scores_prompt(self) -> bool:
        """Whether `logprobs` are also those of the prompt, which is part of the answer."""
        return self.echo and self.params.top_logprobs is not None


def parse_completion(raw: bytes, *, strict: bool = False) -> CompletionRequest:
    """The request in a body. With `strict` an unknown member is an error too (K10).

    Raises:
        BadRequest: Anything is not as it should be.
    """
    body = parse_body(raw)
    prompts = read_inputs(body, "prompt", MAX_CHOICES)
    n = body.integer("n", 1, MAX_CHOICES) or 1
    request = CompletionRequest(
        model=body.text("model") or "",
        prompts=prompts,
        suffix=body.text("suffix") or None,
        echo=body.boolean("echo") or False,
        shape=read_shape(body),
        params=GenerationParams(**read_params(body, least_tokens=0), top_logprobs=_top_logprobs(body), n=n),
        best_of=body.integer("best_of", 1, MAX_CHOICES) or n,
        **read_streaming(body),
        return_token_ids=read_token_ids(body),
        tokens_as_ids=body.boolean("return_tokens_as_token_ids") or False,
        adds_special=body.boolean("add_special_tokens") is not False,
        unknown=unknown_members(body, WITHOUT_EFFECT, strict),
    )
    _check_combinations(request)
    return request


def _top_logprobs(body: Members) -> int | None:
    older = body.integer("n_probs", 0, MAX_TOP_LOGPROBS) or None
    wanted = body.integer("logprobs", 0, MAX_TOP_LOGPROBS)
    return older if wanted is None else wanted


def _check_combinations(request: CompletionRequest) -> None:
    n_sequences = len(request.prompts) * request.best_of
    if request.best_of < request.params.n:
        raise BadRequest(f"'best_of' is {request.best_of}, and 'n' asks for {request.params.n} of them", "best_of")
    if request.best_of > request.params.n and request.stream:
        raise BadRequest("'best_of' beyond 'n' cannot be streamed: which is best shows at the end", "best_of")
    if n_sequences > MAX_CHOICES:
        raise BadRequest(
            f"{len(request.prompts)} prompts of {request.best_of} answers each are {n_sequences} answers, and "
            f"{MAX_CHOICES} are the limit",
            "prompt",
        )
    if request.scores_prompt and request.suffix is not None:
        raise BadRequest("'logprobs' with 'echo' are those of the prompt alone: leave out 'suffix'", "suffix")
    if request.scores_prompt and request.params.post_sampling_probs:
        raise BadRequest("'post_sampling_probs' cannot be of an echoed prompt, which was not drawn", "echo")
    if request.scores_prompt and request.params.n_prompt_kept:
        message = "'logprobs' with 'echo' are those of the whole prompt: leave out 'truncate_prompt_tokens'"
        raise BadRequest(message, "truncate_prompt_tokens")
    if request.suffix is not None and not all(isinstance(prompt, str) for prompt in request.prompts):
        raise BadRequest("'suffix' needs a 'prompt' of text, as both are written around the gap", "suffix")


@dataclass(frozen=True)
class ScoredToken:
    """One token of an answer, for `logprobs`, and the likeliest tokens in its place.

    The first token of an echoed prompt has no probability: nothing goes before it. `name` is what it is called
    where that is not its text.
    """

    piece: bytes
    logprob: float | None
    top: tuple[tuple[bytes, float], ...] = ()
    name: str | None = None


class LogprobWriter:
    """The four lists of the older API, of tokens of one choice that come at once or in parts.

    `after_sampling` gives probabilities in place of their logarithms, under names that say so.
    """

    def __init__(self, *, after_sampling: bool = False) -> None:
        self._names = ("token_probs", "top_probs") if after_sampling else ("token_logprobs", "top_logprobs")
        self._value: Callable[[float], float] = math.exp if after_sampling else _floored
        # Where the next token begins in the text: one that ends inside a character begins no new one.
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, tokens: Iterable[ScoredToken]) -> dict[str, Any]:
        names: list[str] = []
        offsets: list[int] = []
        values: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        for token in tokens:
            name = token.name or _text(token.piece)
            names.append(name)
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(token.piece))
            if token.logprob is None:
                values.append(None)
                tops.append(None)
                continue
            value = self._value(token.logprob)
            values.append(value)
            # Of tokens with the same text the likeliest; and the token itself is always among them, as at OpenAI.
            top: dict[str, float] = {}
            for piece, logprob in token.top:
                top.setdefault(_text(piece), self._value(logprob))
            tops.append({**top, name: value})
        return {"tokens": names, self._names[0]: values, self._names[1]: tops, "text_offset": offsets}


@dataclass
class Choice:
    """What there is of one choice: all of it, or what is new since the last chunk.

    `token_ids`, those of the prompt and its log probabilities are there where they were asked for. `progress`
    tells how far the prompt has been read, before anything else.
    """

    text: list[str] = field(default_factory=list)
    tokens: list[ScoredToken] = field(default_factory=list)
    reason: str | None = None
    stop: str | int | None = None
    token_ids: list[int] = field(default_factory=list)
    prompt_token_ids: Sequence[int] = ()
    prompt_logprobs: Sequence[Any] | None = None
    progress: Mapping[str, Any] | None = None

    @property
    def has_news(self) -> bool:
        return bool(self.text or self.tokens or self.token_ids or self.prompt_token_ids or self.progress)

    def body(self, index: int, logprobs: LogprobWriter | None) -> dict[str, Any]:
        body: dict[str, Any] = {
            "index": index,
            "text": "".join(self.text),
            "logprobs": logprobs.write(self.tokens) if logprobs and self.tokens else None,
            "finish_reason": self.reason,
            **({"prompt_token_ids": self.prompt_token_ids} if self.prompt_token_ids else {}),
            **({"token_ids": self.token_ids} if self.token_ids else {}),
            **({} if self.prompt_logprobs is None else {"prompt_logprobs": self.prompt_logprobs}),
        }
        return body if self.reason is None else {**body, "stop_reason": self.stop}


def completion_body(head: ReplyHead, request: CompletionRequest, choices: Sequence[Choice], usage: Usage) -> Any:
    """The whole answer."""
    bodies = [choice.body(i, _logprob_writer(request)) for i, choice in enumerate(choices)]
    return {**_shared(head), "choices": bodies, **_figures(usage)}


class CompletionStream:
    """Chunks as JSON text: text as it comes, then a chunk of its own for each end, then usage."""

    def __init__(self, head: ReplyHead, request: CompletionRequest) -> None:
        self._shared = _shared(head)
        self._writers = [_logprob_writer(request) for _ in range(request.n_choices)]
        self._request = request

    @property
    def wants_figures(self) -> bool:
        return self._request.continuous_usage or self._request.timings_per_token

    def chunk(self, index: int, news: Choice, usage: Usage | None = None) -> str:
        """What is new of a choice, with the figures of the moment where they are wanted."""
        beside: dict[str, Any] = {} if news.progress is None else {"prompt_progress": news.progress}
        if self._request.include_usage:
            beside["usage"] = usage.body() if usage and self._request.continuous_usage else None
        if usage and self._request.timings_per_token:
            beside["timings"] = usage.timings()
        return to_json({**self._shared, "choices": [news.body(index, self._writers[index])], **beside})

    def usage(self, usage: Usage) -> list[str]:
        if not self._request.include_usage:
            return []
        return [to_json({**self._shared, "choices": [], **_figures(usage)})]

    def failed(self, error: ApiError) -> list[str]:
        """What takes the place of everything still to come (K5)."""
        return [to_json(error.body())]


def _figures(usage: Usage) -> dict[str, Any]:
    return {"usage": usage.body(), "timings": usage.timings()}


def _logprob_writer(request: CompletionRequest) -> LogprobWriter | None:
    return (
        None
        if request.params.top_logprobs is None
        else LogprobWriter(after_sampling=request.params.post_sampling_probs)
    )


def _shared(head: ReplyHead) -> dict[str, Any]:
    return {"id": head.id, "object": "text_completion", "created": head.created, "model": head.model}


def _text(piece: bytes) -> str:
    """A piece that is part of a character is told by its bytes, as OpenAI does."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _floored(value: float) -> float:
    return max(value, LOGPROB_FLOOR)
