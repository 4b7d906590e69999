"""POST /v1/completions, the response: encodes output events as one body or a stream of chunks."""

from __future__ import annotations

import codecs
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from ..core.errors import ApiError
from ..core.events import (
    ContentDelta,
    EchoedTokens,
    OutputEnd,
    OutputEvent,
    OutputToken,
    PromptLogprobs,
    PromptProgress,
    SampledTokens,
)
from ..core.interface import Interface, ResponseHead
from ..core.json_text import to_json
from ..core.logprobs import floored, id_text, prompt_logprobs
from ..core.usage import Usage, chunk_counts, progress_body
from .completions import CompletionRequest, parse_completion


class LogprobWriter:
    """Encodes the `logprobs` object of one choice: four lists with an entry for each token."""

    def __init__(self, request: CompletionRequest) -> None:
        after_sampling = request.params.post_sampling_probs
        self._names = ("token_probs", "top_probs") if after_sampling else ("token_logprobs", "top_logprobs")
        self._value: Callable[[float], float] = math.exp if after_sampling else floored
        # The prompt's tokens may have more alternatives than `logprobs` asks for, because of `prompt_logprobs`.
        self._n_top = request.params.top_logprobs
        self._as_ids = request.tokens_as_ids
        # The offset in the text of the next token. A token that completes a character has the offset of that character.
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def write(self, tokens: Iterable[OutputToken]) -> dict[str, Any]:
        names: list[str] = []
        offsets: list[int] = []
        values: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        for token in tokens:
            name = self._name(token.id, token.piece)
            names.append(name)
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(token.piece))
            if token.logprob is None:  # the first token of a prompt
                values.append(None)
                tops.append(None)
                continue
            value = self._value(token.logprob)
            values.append(value)
            # For tokens with equal text, keep the likeliest. As in OpenAI's API, the sampled token is always included.
            top: dict[str, float] = {}
            for other in token.top[: self._n_top]:
                top.setdefault(self._name(other.token, other.piece), self._value(other.logprob))
            tops.append({**top, name: value})
        return {"tokens": names, self._names[0]: values, self._names[1]: tops, "text_offset": offsets}

    def _name(self, id: int, piece: bytes) -> str:
        return id_text(id) if self._as_ids else _text(piece)


class _Choice:
    """Collects the text and tokens of one choice since its last chunk."""

    def __init__(self, head: ResponseHead, request: CompletionRequest, index: int) -> None:
        self.index = index
        self._request = request
        self._logprobs = None if request.params.top_logprobs is None else LogprobWriter(request)
        self._text: list[str] = []
        self._tokens: list[OutputToken] = []
        self._token_ids: list[int] = []
        # Fields of the first chunk.
        prompt = head.prompts[index // request.best_of]
        self._prompt_ids = {"prompt_token_ids": prompt} if request.return_token_ids else {}
        self._prompt_logprobs: dict[str, Any] = {}
        self.is_changed = False
        self.end: OutputEnd | None = None
        # Sum and number of the log probabilities of sampled tokens.
        self._sum_of_logprobs = 0.0
        self._n_scored = 0

    @property
    def likelihood(self) -> float:
        """The mean log probability of its tokens."""
        return self._sum_of_logprobs / max(self._n_scored, 1)

    def add(self, event: OutputEvent) -> None:
        if isinstance(event, ContentDelta):
            self._text.append(event.text)
            self.is_changed = True
        elif isinstance(event, SampledTokens):
            self._score(event.tokens)
            if self._request.return_token_ids:
                self._token_ids += (token.id for token in event.tokens)
                self.is_changed = True
        elif isinstance(event, EchoedTokens):
            self._tokens += event.tokens
        elif isinstance(event, PromptLogprobs):
            logprobs = prompt_logprobs(event.tokens, self._request.params.prompt_logprobs or 0)
            self._prompt_logprobs = {"prompt_logprobs": logprobs}
        elif isinstance(event, OutputEnd):
            self.end = event
            if event.last is not None:
                # The token that ended the output is in the lists, but its text is not part of the output.
                self._score((replace(event.last, piece=b""),))

    def body(self, end: OutputEnd | None) -> dict[str, Any]:
        """The choice with the text and tokens since the last chunk."""
        body: dict[str, Any] = {
            "index": self.index,
            "text": "".join(self._text),
            "logprobs": self._logprobs.write(self._tokens) if self._logprobs and self._tokens else None,
            "finish_reason": end and end.reason,
            **self._prompt_ids,
            **({"token_ids": self._token_ids} if self._token_ids else {}),
            **self._prompt_logprobs,
        }
        self._text, self._tokens, self._token_ids, self.is_changed = [], [], [], False
        self._prompt_ids, self._prompt_logprobs = {}, {}
        return body if end is None else {**body, "stop_reason": end.stop}

    def _score(self, tokens: tuple[OutputToken, ...]) -> None:
        for token in tokens:
            if token.logprob is not None:
                self._sum_of_logprobs += token.logprob
                self._n_scored += 1
                if self._logprobs is not None:
                    self._tokens.append(token)
                    self.is_changed = True


class CompletionBody:
    """Encodes a whole response as one body."""

    def __init__(self, head: ResponseHead, request: CompletionRequest) -> None:
        self._head = head
        self._request = request
        self._choices = [_Choice(head, request, i) for i in range(len(request.prompts) * request.best_of)]

    def add(self, index: int, event: OutputEvent) -> None:
        self._choices[index].add(event)

    def body(self, usage: Usage) -> dict[str, Any]:
        n, best_of = self._request.params.n, self._request.best_of
        by_prompt = [self._choices[start : start + best_of] for start in range(0, len(self._choices), best_of)]
        chosen = [choice for choices in by_prompt for choice in _likeliest(choices, n)]
        bodies = [{**choice.body(choice.end), "index": i} for i, choice in enumerate(chosen)]
        return {**_shared(self._head), "choices": bodies, "usage": usage.body(), "timings": usage.timings()}


class CompletionStream:
    """Encodes chunks as JSON text: chunks of text, one chunk for the end of each choice, then the usage."""

    def __init__(self, head: ResponseHead, request: CompletionRequest, usage: Callable[[], Usage]) -> None:
        self._shared = _shared(head)
        self._request = request
        self._usage = usage
        self._choices = [_Choice(head, request, i) for i in range(request.n_choices)]
        # Since the last `take`: prompt progress by index, and the choices that have changed.
        self._progress: list[tuple[int, PromptProgress]] = []
        self._changed: dict[int, _Choice] = {}

    def add(self, index: int, event: OutputEvent) -> None:
        if isinstance(event, PromptProgress):
            self._progress.append((index, event))
        else:
            self._choices[index].add(event)
            self._changed[index] = self._choices[index]

    def take(self) -> list[str]:
        progress, self._progress = self._progress, []
        changed, self._changed = self._changed, {}
        chunks: list[str] = []
        for index, event in progress:
            body = {"index": index, "text": "", "logprobs": None, "finish_reason": None}
            chunks.append(self._chunk(body, prompt_progress=progress_body(event)))
        for choice in changed.values():
            if choice.is_changed:
                chunks.append(self._chunk(choice.body(None)))
            if choice.end is not None:
                chunks.append(self._chunk(choice.body(choice.end)))
        return chunks

    def finish(self) -> list[str]:
        chunks = self.take()
        if self._request.include_usage:
            usage = self._usage()
            chunks.append(to_json({**self._shared, "choices": [], "usage": usage.body(), "timings": usage.timings()}))
        return chunks

    def failed(self, error: ApiError) -> list[str]:
        """The error as the last chunk."""
        return [to_json(error.body())]

    def _chunk(self, choice: dict[str, Any], **extra: Any) -> str:
        counts = chunk_counts(self._request, self._usage)
        return to_json({**self._shared, "choices": [choice], **extra, **counts})


INTERFACE = Interface(id_prefix="cmpl-", parse=parse_completion, stream=CompletionStream, whole=CompletionBody)


def _likeliest(choices: list[_Choice], n: int) -> list[_Choice]:
    best = sorted(choices, key=lambda choice: -choice.likelihood)[:n]
    return [choice for choice in choices if choice in best]


def _shared(head: ResponseHead) -> dict[str, Any]:
    return {"id": head.id, "object": "text_completion", "created": head.created, "model": head.model}


def _text(piece: bytes) -> str:
    """The text of a token. As in OpenAI's API, a token that is not valid UTF-8 is shown as "bytes:\\x.."."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
