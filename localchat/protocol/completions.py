"""POST /v1/completions, the request: parses a JSON body into a CompletionRequest, or raises BadRequest.

This is OpenAI's older API: prompts are plain text or token ids, not messages. Choices are numbered over all prompts,
those of the first prompt first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .errors import BadRequest
from .fields import Fields, parse_body, unknown_fields
from .inputs import Input, read_inputs
from .params import MAX_TOP_LOGPROBS, WITHOUT_EFFECT, read_params
from .request import DEFAULT_OPTIONS, ParseOptions, TextRequest, read_text_request

# Limit of the sequences of one request, over all its prompts.
MAX_CHOICES = 128


class SourceFile(NamedTuple):
    """Another file of the project, as context for fill-in-the-middle."""

    name: str
    text: str


@dataclass(frozen=True)
class CompletionRequest(TextRequest):
    """A checked request for text completions. With `echo` the prompt is part of the output."""

    prompts: tuple[Input, ...] = ()
    suffix: str | None = None
    """The text after the gap that the output fills (fill-in-the-middle); None: the output follows the prompt."""
    suffix_field: str = "suffix"
    """The field of the request that has the suffix, for errors."""
    files: tuple[SourceFile, ...] = ()
    """Files that come before the prefix. If the context cannot hold all, their end is kept."""
    begun: str = ""
    """The text with which the filling begins."""
    best_of: int = 1
    """The number of sequences for each prompt; the likeliest `n` of them are returned."""
    adds_special: bool = True
    """A text prompt begins with the model's BOS."""

    @property
    def n_choices(self) -> int:
        return len(self.prompts) * self.params.n

    @property
    def scores_prompt(self) -> bool:
        """Whether `logprobs` include the prompt's, because the prompt is echoed."""
        return self.echo and self.params.top_logprobs is not None


def parse_completion(raw: bytes, options: ParseOptions = DEFAULT_OPTIONS) -> CompletionRequest:
    """The request in a body.

    Raises:
        BadRequest: A field is invalid.
    """
    body = parse_body(raw)
    prompts = read_inputs(body, "prompt", MAX_CHOICES)
    n = body.integer("n", 1, MAX_CHOICES) or 1
    request = CompletionRequest(
        prompts=prompts,
        suffix=body.text("suffix") or None,
        params=read_params(body, n=n, top_logprobs=_top_logprobs(body), least_tokens=0),
        best_of=body.integer("best_of", 1, MAX_CHOICES) or n,
        **read_text_request(body),
        adds_special=body.boolean("add_special_tokens") is not False,
        unknown=unknown_fields(body, WITHOUT_EFFECT, options.strict),
    )
    _check_combinations(request)
    return request


def _top_logprobs(body: Fields) -> int | None:
    older = body.integer("n_probs", 0, MAX_TOP_LOGPROBS) or None
    given = body.integer("logprobs", 0, MAX_TOP_LOGPROBS)
    return older if given is None else given


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
        raise BadRequest("'post_sampling_probs' cannot apply to an echoed prompt, which was not sampled", "echo")
    if request.scores_prompt and request.params.n_prompt_kept:
        message = "'logprobs' with 'echo' are those of the whole prompt: leave out 'truncate_prompt_tokens'"
        raise BadRequest(message, "truncate_prompt_tokens")
    if request.suffix is not None and not all(isinstance(prompt, str) for prompt in request.prompts):
        raise BadRequest("'suffix' needs a 'prompt' of text, as both are written around the gap", "suffix")
