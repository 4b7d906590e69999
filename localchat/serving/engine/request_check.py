"""Checks a request against the model before it is queued, and makes its sequence."""

from __future__ import annotations

from .batch import Sequence
from .embedding import is_non_causal
from .values import GenerationRequest, InvalidToken, ModelFacts, PromptTooLong, WritesNoText


def check_request(request: GenerationRequest, facts: ModelFacts) -> None:
    """Checks the prompt and all token ids.

    Raises:
        PromptTooLong: The prompt leaves no space for one token of output.
        InvalidToken: A token id that the vocabulary does not have, or an empty prompt.
        WritesNoText: The model makes embeddings only.
    """
    if is_non_causal(facts.metadata):
        raise WritesNoText("this model makes vectors of texts and writes none: use /v1/embeddings or /v1/rerank")
    if len(request.prompt) >= facts.n_ctx:
        raise PromptTooLong(len(request.prompt), facts.n_ctx)
    if not request.prompt:
        raise InvalidToken("the prompt is empty: it needs one token at least")
    ids = (*request.prompt, *request.params.stop_token_ids, *(id for id, _ in request.sampling.logit_bias))
    if min(ids) < 0 or max(ids) >= facts.n_vocab:
        raise InvalidToken(f"token ids go from 0 to {facts.n_vocab - 1}; the request has {min(ids)} to {max(ids)}")


def new_sequence(id: int, request: GenerationRequest, facts: ModelFacts) -> Sequence:
    """The sequence of a request, with its length limited by the request and the context."""
    n_prompt, max_tokens = len(request.prompt), request.params.max_tokens
    # Even with a limit of 0 one token is sampled, so that the prompt is computed.
    limit = facts.n_ctx if max_tokens is None else min(facts.n_ctx, n_prompt + max(max_tokens, 1))
    return Sequence(id, list(request.prompt), limit, scores_prompt=request.params.prompt_logprobs is not None)
