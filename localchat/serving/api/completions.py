"""POST /v1/completions: parses a JSON body into a CompletionRequest, and encodes the response.

In this older API of OpenAI, prompts are plain text or token ids, not messages. A request may have several prompts; the
index of a choice counts over all of them.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..core.errors import BadRequest
from ..core.events import OutputToken, PromptProgress, ResponseHead, Usage
from ..core.fields import Fields, first_given, refuse_unsupported
from ..core.params import MAX_TOP_LOGPROBS, read_n_probs, read_params
from ..core.request import DEFAULT_OPTIONS, Input, ParseOptions, TextRequest
from .chat import read_text_request
from .content import read_inputs
from .encoder import Block, Choice, Encoder, Interface, progress_body
from .logprobs import floored, id_text, prompt_logprobs

# The limit of sequences per request, over all prompts.
MAX_CHOICES = 128


class SourceFile(NamedTuple):
    """Another file of the project, as context for fill-in-the-middle."""

    name: str
    text: str


@dataclass(frozen=True)
class CompletionRequest(TextRequest):
    """A validated request for text completions."""

    prompts: tuple[Input, ...] = ()
    suffix: str | None = None
    """The text after the gap that the output fills (fill-in-the-middle, FIM). None: the output follows the prompt."""
    suffix_field: str = "suffix"
    """The field of the request that has the suffix, for errors."""
    files: tuple[SourceFile, ...] = ()
    """Files that the prompt shows before the prefix. If the context is too small, their beginning is cut."""
    begun: str = ""
    """Text at the start of the gap, which the output continues."""
    adds_special: bool = True
    """Whether text prompts begin with the model's BOS."""

    @property
    def n_choices(self) -> int:
        return len(self.prompts) * self.params.n

    @property
    def scores_prompt(self) -> bool:
        """Whether `logprobs` includes the tokens of the prompt, because the prompt is echoed."""
        return self.echo and self.params.top_logprobs is not None


def parse_completion(body: Fields, options: ParseOptions = DEFAULT_OPTIONS) -> CompletionRequest:
    """The request in a body."""
    prompts = read_inputs(body, "prompt", MAX_CHOICES)
    n = body.integer("n", 1, MAX_CHOICES) or 1
    refuse_unsupported(body, {"best_of": (n,)})
    request = CompletionRequest(
        prompts=prompts,
        suffix=body.text("suffix") or None,
        params=read_params(body, n=n, top_logprobs=_top_logprobs(body), least_tokens=0, has_prompt_logprobs=True),
        **read_text_request(body),
        adds_special=body.boolean("add_special_tokens") is not False,
    )
    _check_combinations(request)
    return request


def _top_logprobs(body: Fields) -> int | None:
    return first_given([body.integer("logprobs", 0, MAX_TOP_LOGPROBS), read_n_probs(body)])


def _check_combinations(request: CompletionRequest) -> None:
    if request.n_choices > MAX_CHOICES:
        raise BadRequest(
            f"{len(request.prompts)} prompts with {request.params.n} completions each are {request.n_choices} "
            f"completions; the limit is {MAX_CHOICES}",
            "prompt",
        )
    if request.scores_prompt and request.suffix is not None:
        raise BadRequest("'logprobs' with 'echo' cannot be combined with 'suffix'", "suffix")
    if request.scores_prompt and request.params.post_sampling_probs:
        raise BadRequest("'post_sampling_probs' cannot apply to an echoed prompt, which was not sampled", "echo")
    if request.scores_prompt and request.params.n_prompt_kept:
        message = "'logprobs' with 'echo' needs the whole prompt: leave out 'truncate_prompt_tokens'"
        raise BadRequest(message, "truncate_prompt_tokens")
    if request.suffix is not None and not all(isinstance(prompt, str) for prompt in request.prompts):
        raise BadRequest("'suffix' needs a 'prompt' that is text, not token ids", "suffix")


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


class CompletionEncoder(Encoder[CompletionRequest]):
    """Encodes a text completion. In a stream, a separate chunk has the end of each choice."""

    def __init__(self, head: ResponseHead, request: CompletionRequest, usage: Callable[[], Usage]) -> None:
        super().__init__(head, request, usage)
        self._shared = {"id": head.id, "object": "text_completion", "created": head.created, "model": head.model}
        self._logprobs = [LogprobWriter(request) for _ in self.choices]
        # The fields of the first chunk of each choice.
        self._first: dict[int, dict[str, Any]] = {}
        if request.return_token_ids:
            prompts = (head.prompts[choice.index // request.params.n] for choice in self.choices)
            self._first = {i: {"prompt_token_ids": prompt} for i, prompt in enumerate(prompts)}

    def delta(self, choice: Choice, block: Block, text: str) -> None:
        self._emit(choice, text)

    def progress(self, choice: Choice, progress: PromptProgress) -> None:
        body = {"index": choice.index, "text": "", "logprobs": None, "finish_reason": None}
        self.emit({**self._shared, "choices": [body], "prompt_progress": progress_body(progress), **self.counts()})

    def ended(self, choice: Choice) -> None:
        self._emit(choice, "")

    def finish(self) -> None:
        if self.request.include_usage:
            self.emit({**self._shared, "choices": [], **self._totals()})

    def body(self) -> dict[str, Any]:
        choices = [self._choice(choice, choice.text()) for choice in self.choices]
        return {**self._shared, "choices": choices, **self._totals()}

    def _totals(self) -> dict[str, Any]:
        usage = self.usage()
        return {"usage": usage.body(), "timings": usage.timings()}

    def _emit(self, choice: Choice, text: str) -> None:
        if self.request.stream:
            self.emit({**self._shared, "choices": [self._choice(choice, text)], **self.counts()})

    def _choice(self, choice: Choice, text: str) -> dict[str, Any]:
        """A choice of a chunk or of the body, with the tokens since its last chunk."""
        end, params = choice.end, self.request.params
        echoed, sampled = choice.take_tokens()
        tokens = [*echoed, *sampled]
        if end is not None and end.last is not None:
            # The token that ended the output is in the lists, but its text is not part of the output.
            tokens.append(replace(end.last, piece=b""))
        scored = params.top_logprobs is not None and tokens
        body: dict[str, Any] = {
            "index": choice.index,
            "text": text,
            "logprobs": self._logprobs[choice.index].write(tokens) if scored else None,
            "finish_reason": None if end is None else end.reason,
            **self._first.pop(choice.index, {}),
        }
        if self.request.return_token_ids and sampled:
            body["token_ids"] = [token.id for token in sampled]
        if choice.prompt_tokens is not None and params.prompt_logprobs is not None:
            body["prompt_logprobs"] = prompt_logprobs(choice.prompt_tokens, params.prompt_logprobs)
        return body if end is None else {**body, "stop_reason": end.stop}


def _text(piece: bytes) -> str:
    """The text of a token. As in OpenAI's API, a token that is not valid UTF-8 is shown as "bytes:\\x.."."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


INTERFACE = Interface(id_prefix="cmpl-", parse=parse_completion, encoder=CompletionEncoder)
