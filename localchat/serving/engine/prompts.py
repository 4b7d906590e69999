"""Prompts: from token ids, texts, images and sounds to the sequences of a request.

The methods run on any thread: tokenizing a long text would delay the engine thread.
"""

from __future__ import annotations

from collections import abc
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from ..core.errors import ApiError, BadRequest, ContextLengthExceeded, NotSupported, field_error
from ..core.media import MediaFile
from ..core.params import MAX_LISTED_TOKENS, Bias
from .protocols import Backend
from .sequence import MediaChunk, Sequence
from .values import PromptPart, SequenceRequest, StepOutput, TokenizedPrompts, check_tokens

if TYPE_CHECKING:
    from .media.encoder import MediaEncoder, PreparedMedium

# The tokens of a text that does not fit are counted up to this number, which takes less than a second.
COUNTED_TOKENS = 100_000


class _PreparedPrompt:
    """A prompt that several sequences of a request may have."""

    def __init__(self, tokens: list[int], chunks: list[MediaChunk]) -> None:
        self.tokens = tuple(tokens)
        self.chunks = chunks  # Those of its images and sounds.

    @cached_property
    def shown(self) -> list[int]:
        """The token ids for the response. The cells of media have none, and are -1 there."""
        return [max(token, -1) for token in self.tokens]


class Prompts:
    """Makes sequences for a backend: tokenizes prompts, and prepares their images and sounds."""

    def __init__(self, backend: Backend, encoder: MediaEncoder | None) -> None:
        """`encoder` prepares images and sounds; None: the model takes text alone."""
        self._backend = backend
        self._encoder = encoder

    def tokenize_prompt(self, parts: abc.Iterable[PromptPart], *, add_bos: bool = False) -> list[int]:
        """The tokens of a prompt that is given as token ids, texts and media."""
        return self._tokenized(parts, add_bos)[0]

    def _tokenized(
        self, parts: abc.Iterable[PromptPart], add_bos: bool, limit: int | None = None
    ) -> tuple[list[int], list[MediaChunk]]:
        """The tokens of a prompt, and the chunks of its images and sounds.

        Raises ContextLengthExceeded if the texts have more than `limit` tokens; the rest is not counted.
        """
        tokens: list[int] = []
        chunks: list[MediaChunk] = []
        for part in parts:
            if isinstance(part, int):
                tokens.append(part)
            elif isinstance(part, MediaFile):
                medium = self._prepared(part)
                tokens += medium.tokens
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

    def media_errors(
        self, media: abc.Iterable[MediaFile], check: abc.Callable[[], None] = lambda: None
    ) -> list[ApiError | None]:
        """Why each image or sound cannot be used; None for those that can. A request finds these prepared.

        `check` is called before each is decoded, also when the call has waited for another one, and may raise an error
        to end the call.
        """
        errors: list[ApiError | None] = []
        for file in media:
            try:
                self._prepared(file, check)
                errors.append(None)
            except (BadRequest, NotSupported) as error:
                errors.append(error)
        return errors

    def _prepared(self, file: MediaFile, check: abc.Callable[[], None] = lambda: None) -> PreparedMedium:
        if self._encoder is None:
            raise NotSupported("this model supports only text: it has no projector", file.path)
        return self._encoder.prepared(file, check)

    def sequences_of(
        self,
        requests: abc.Sequence[SequenceRequest],
        deliver: abc.Callable[[StepOutput], None],
        check: abc.Callable[[], None] = lambda: None,
    ) -> tuple[list[Sequence], TokenizedPrompts]:
        """The sequences of one request, and their tokenized prompts; see `Engine.prepare`."""
        # The sequences of a request have few prompts, and one object for each: thousands of token ids. So the tokenized
        # prompts, by the ids of these objects, are shared by their sequences, too; and so are the biases.
        prompts: dict[int, _PreparedPrompt] = {}
        biases: dict[int, tuple[tuple[int, float], ...]] = {}
        sequences: list[Sequence] = []
        for index, request in enumerate(requests):
            check()
            if id(request.prompt) not in prompts:
                prompts[id(request.prompt)] = _PreparedPrompt(*self.prompt_of(request))
            logit_bias = request.sampling.logit_bias
            if id(logit_bias) not in biases:
                biases[id(logit_bias)] = self.biases_of(logit_bias, request.params.at("logit_bias"))
            sampling = replace(request.sampling, logit_bias=biases[id(logit_bias)])
            prompt = prompts[id(request.prompt)]
            with_tokens = replace(request, prompt=prompt.tokens, sampling=sampling)
            # On this thread, since parsing a large grammar would delay the engine thread.
            sampler = self._backend.new_sampler(with_tokens)
            sequences.append(
                Sequence(
                    id=0,  # It gets one when it is queued.
                    prompt=list(prompt.tokens),  # The list grows with the output.
                    max_length=self._max_length(request, len(prompt.tokens)),
                    request=with_tokens,
                    chunks=prompt.chunks,
                    sampler=sampler,
                    index=index,
                    deliver=deliver,
                )
            )
        tokenized = [prompts[id(request.prompt)] for request in requests]
        shown = [prompt.shown if request.returns_ids else () for prompt, request in zip(tokenized, requests)]
        return sequences, TokenizedPrompts([len(prompt.tokens) for prompt in tokenized], shown)

    def _max_length(self, request: SequenceRequest, n_prompt: int) -> int:
        """The limit of prompt and output together."""
        max_tokens, n_ctx = request.params.max_tokens, self._backend.facts.n_ctx
        # Even with a limit of 0 one token is sampled, so that the prompt is computed.
        return n_ctx if max_tokens is None else min(n_ctx, n_prompt + max(max_tokens, 1))

    def prompt_of(self, request: SequenceRequest) -> tuple[list[int], list[MediaChunk]]:
        """The tokens of the prompt of a request, which fit into the context, and its images and sounds.

        Raises what `Engine.prepare` raises for them.
        """
        facts, n_kept = self._backend.facts, request.params.truncate_prompt_tokens
        if facts.is_non_causal:
            message = "this model makes vectors of texts and writes none: use /v1/embeddings or /v1/rerank"
            raise NotSupported(message, "model")
        try:
            # There is no limit if only the end of the prompt is kept.
            limit = None if n_kept else max(facts.n_ctx, COUNTED_TOKENS)
            tokens, chunks = self._tokenized(request.prompt, request.add_bos, limit)
            check_tokens([id for id in tokens if id >= 0] if chunks else tokens, facts.n_vocab)  # Also those to echo.
            if n_kept:
                tokens = tokens[-n_kept:]
            if chunks and n_kept:
                path = request.params.at("truncate_prompt_tokens")
                raise field_error(path, "is not supported for a prompt with images or audio")
            if chunks and tokens[-1] < 0:
                raise BadRequest("the prompt ends with an image or audio: it needs text after it")
            if len(tokens) >= facts.n_ctx:
                raise _too_long(len(tokens), facts.n_ctx)
        except BadRequest as error:
            error.param = error.param or request.prompt_field
            raise
        return tokens, chunks

    def biases_of(self, logit_bias: abc.Iterable[Bias], path: str) -> tuple[tuple[int, float], ...]:
        """The biases by token ids. The bias of a text applies to each token of the text.

        Raises BadRequest for the field at `path` if the texts have too many tokens.
        """
        biases: dict[int, float] = {}
        n_left = MAX_LISTED_TOKENS
        for key, bias in logit_bias:
            try:
                tokens = self._backend.tokenize(key, limit=n_left) if isinstance(key, str) else [key]
            except ContextLengthExceeded as error:
                n_tokens = MAX_LISTED_TOKENS - n_left + error.n_tokens
                message = f"has texts of at least {n_tokens} tokens, the limit is {MAX_LISTED_TOKENS}"
                raise field_error(path, message) from error
            n_left -= len(tokens)
            for token in tokens:
                biases[token] = biases.get(token, 0.0) + bias
        return tuple(biases.items())


def _too_long(n_prompt: int, n_ctx: int, least: str = "") -> ContextLengthExceeded:
    return ContextLengthExceeded(
        f"This model's maximum context length is {n_ctx} tokens, of which the output needs at least one. However, "
        f"your request has {least}{n_prompt} tokens: shorten it or its earlier messages, or start with a larger --ctx",
        n_tokens=n_prompt,
        n_ctx=n_ctx,
    )
