"""POST /v1/completions, the request: parses a JSON body into a CompletionRequest, or raises BadRequest.

In this older API of OpenAI, prompts are plain text or token ids, not messages. A request may have several prompts; the
index of a choice counts over all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..core.errors import BadRequest
from ..core.fields import Fields, first_given, parse_body, unknown_fields
from ..core.inputs import Input, read_inputs
from ..core.params import MAX_TOP_LOGPROBS, WITHOUT_EFFECT, read_n_probs, read_params
from ..core.request import DEFAULT_OPTIONS, ParseOptions, TextRequest, read_text_request

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
    best_of: int = 1
    """The number of sequences for each prompt; the likeliest `n` of them are returned."""
    adds_special: bool = True
    """Whether text prompts begin with the model's BOS."""

    @property
    def n_choices(self) -> int:
        return len(self.prompts) * self.params.n

    @property
    def scores_prompt(self) -> bool:
        """Whether `logprobs` includes the tokens of the prompt, because the prompt is echoed."""
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
        params=read_params(body, n=n, top_logprobs=_top_logprobs(body), least_tokens=0, has_prompt_logprobs=True),
        best_of=body.integer("best_of", 1, MAX_CHOICES) or n,
        **read_text_request(body),
        adds_special=body.boolean("add_special_tokens") is not False,
        unknown=unknown_fields(body, WITHOUT_EFFECT, options.strict),
    )
    _check_combinations(request)
    return request


def _top_logprobs(body: Fields) -> int | None:
    return first_given([body.integer("logprobs", 0, MAX_TOP_LOGPROBS), read_n_probs(body)])


def _check_combinations(request: CompletionRequest) -> None:
    n_sequences = len(request.prompts) * request.best_of
    if request.best_of < request.params.n:
        raise BadRequest(f"'best_of' is {request.best_of} and must be at least 'n', {request.params.n}", "best_of")
    if request.best_of > request.params.n and request.stream:
        raise BadRequest("'best_of' above 'n' cannot be streamed: the best are known only at the end", "best_of")
    if n_sequences > MAX_CHOICES:
        raise BadRequest(
            f"{len(request.prompts)} prompts with {request.best_of} completions each are {n_sequences} completions; "
            f"the limit is {MAX_CHOICES}",
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
