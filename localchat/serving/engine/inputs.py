"""Prompts and inputs: from token ids, texts, images and sounds to tokens, and from inputs to vectors.

The methods run on any thread: tokenizing a long text would delay the engine thread.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Many
from typing import TYPE_CHECKING

from ..core.errors import ApiError, BadRequest, ContextLengthExceeded, NotSupported, item_path
from ..core.media import MediaFile
from .batch import MediaChunk
from .protocols import Backend
from .values import GenerationRequest, PromptPart, check_tokens

if TYPE_CHECKING:
    from .media.encoder import MediaEncoder, PreparedMedia

# The tokens of a text that does not fit are counted up to this number, which takes less than a second.
_COUNTED_TOKENS = 100_000
# Vectors are computed in groups of inputs with so many tokens. Between two groups other requests run.
_GROUP_TOKENS = 4096


class Inputs:
    """Tokenizes for a backend, and computes vectors on it."""

    def __init__(self, backend: Backend, encoder: MediaEncoder | None) -> None:
        """`encoder` prepares images and sounds; None: the model takes text alone."""
        self._backend = backend
        self._encoder = encoder

    def tokenize_prompt(self, parts: Iterable[PromptPart], *, add_bos: bool = False) -> list[int]:
        """The tokens of a prompt that is given as token ids, texts and media."""
        return self._tokenized(parts, add_bos)[0]

    def _tokenized(
        self, parts: Iterable[PromptPart], add_bos: bool, limit: int | None = None
    ) -> tuple[list[int], list[MediaChunk]]:
        """The tokens of a prompt, and the chunks of its images and sounds. Raises ContextLengthExceeded if the texts
        have more than `limit` tokens; the rest is not counted."""
        tokens: list[int] = []
        chunks: list[MediaChunk] = []
        for part in parts:
            if isinstance(part, int):
                tokens.append(part)
            elif isinstance(part, MediaFile):
                medium = self._prepared(part)
                tokens += medium.cells
                chunks += medium.chunks
            else:
                text, parse_special = part
                n_left = None if limit is None else limit - len(tokens)
                try:
                    tokens += self._backend.tokenize(text, add_bos=add_bos, parse_special=parse_special, limit=n_left)
                except ContextLengthExceeded as error:
                    raise _too_long(len(tokens) + error.n_tokens, self._backend.facts.n_ctx, "at least ") from error
                add_bos = False
        return tokens, chunks

    def media_errors(self, media: Iterable[MediaFile]) -> list[ApiError | None]:
        """Why each image or sound cannot be used; None for those that can. `submit` finds these prepared."""
        errors: list[ApiError | None] = []
        for file in media:
            try:
                self._prepared(file)
                errors.append(None)
            except (BadRequest, NotSupported) as error:
                errors.append(error)
        return errors

    def _prepared(self, file: MediaFile) -> PreparedMedia:
        if self._encoder is None:
            raise NotSupported("this model supports only text: it has no projector", file.path)
        return self._encoder.prepared(file)

    def prompt_of(self, request: GenerationRequest) -> tuple[list[int], list[MediaChunk]]:
        """The tokens of the prompt of a request, which fit into the context, and its images and sounds. Raises what
        `submit` raises for them."""
        facts, n_kept = self._backend.facts, request.params.n_prompt_kept
        if facts.is_non_causal:
            message = "this model makes vectors of texts and writes none: use /v1/embeddings or /v1/rerank"
            raise NotSupported(message, "model")
        try:
            # There is no limit if only the end of the prompt is kept.
            limit = None if n_kept else max(facts.n_ctx, _COUNTED_TOKENS)
            tokens, chunks = self._tokenized(request.prompt, request.add_bos, limit)
            tokens = tokens[-n_kept:]
            if chunks and n_kept:
                message = "'truncate_prompt_tokens' is not supported for a prompt with images or audio"
                raise BadRequest(message, "truncate_prompt_tokens")
            if chunks and tokens[-1] < 0:
                raise BadRequest("the prompt ends with an image or audio: it needs text after it")
            check_tokens([id for id in tokens if id >= 0] if chunks else tokens, facts.n_vocab)
            if len(tokens) >= facts.n_ctx:
                raise _too_long(len(tokens), facts.n_ctx)
        except BadRequest as error:
            error.param = error.param or request.prompt_field
            raise
        return tokens, chunks

    def embed(
        self,
        inputs: Many[str | Many[int]],
        *,
        field: str,
        query: str | None = None,
        truncates: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> tuple[list[array[float]], int]:
        """The vector of each input, not normalised, and the number of their tokens. The inputs are texts or token ids;
        with `query`, the documents that are compared with it. `field` is the field of the request that has them, for
        errors. With `truncates`, an input that is longer than the context is cut. `check` is called between two groups
        of inputs, and may raise an error to end the call. Raises BadRequest for an input that is empty, too long, or
        has a token that the vocabulary does not have."""
        # The context for embeddings is created with the first request. It is never larger than this limit.
        limit = max(self._backend.facts.n_ctx, self._backend.facts.n_ctx_train, _COUNTED_TOKENS)
        tokens: list[Many[int]] = []
        for i, given in enumerate(inputs):
            try:
                if not isinstance(given, str):
                    check_tokens(given, self._backend.facts.n_vocab)
                    tokens.append(given)
                elif query is None:
                    tokens.append(self._backend.tokenize(given, add_bos=True, parse_special=False, limit=limit))
                else:
                    tokens.append(self._backend.pair_tokens(query, given))
            except BadRequest as error:
                error.param = error.param or item_path(field, inputs, i)
                raise
        vectors: list[array[float]] = []
        while len(vectors) < len(inputs):
            check()
            left = tokens[len(vectors) :]
            n_group = 1 + sum(n < _GROUP_TOKENS for n in itertools.accumulate(map(len, left)))
            try:
                vectors += self._backend.embed(left[:n_group])
            except ContextLengthExceeded as error:
                if truncates and error.n_ctx:
                    tokens, truncates = [self._cut(own, error.n_ctx) for own in tokens], False
                    continue
                i = next(i for i, own in enumerate(tokens) if len(own) > error.n_ctx)
                error.param = error.param or item_path(field, inputs, i)
                raise
        return vectors, sum(map(len, tokens))

    def _cut(self, tokens: Many[int], n: int) -> Many[int]:
        """The first `n` tokens. The token that the tokenizer adds at the end stays at the end."""
        ends = self._backend.tokenize("", add_bos=True)
        if len(tokens) <= n or tokens[-1] not in ends[-1:]:
            return tokens[:n]
        return [*tokens[: n - 1], tokens[-1]]


def _too_long(n_prompt: int, n_ctx: int, least: str = "") -> ContextLengthExceeded:
    return ContextLengthExceeded(
        f"This model's maximum context length is {n_ctx} tokens, of which the output needs at least one. However, "
        f"your request has {least}{n_prompt} tokens: shorten it or start the server with a larger --ctx",
        n_tokens=n_prompt,
        n_ctx=n_ctx,
    )
