"""Runs embedding and rerank requests on the engine: inputs become vectors or scores."""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Callable, Sequence

from ..api.embeddings import EmbeddingsRequest, RerankRequest
from ..core import errors
from ..core.request import Input
from ..engine.front import AnyEngine
from .model import Model, check_tokens
from .run import item_path, wire_errors

# Inputs are computed in groups of this many tokens. Between two groups other requests run, and a cancel takes effect.
_GROUP_TOKENS = 4096
# An input is tokenized up to this many tokens, so that the error for a longer one than the context states its length.
_COUNTED_TOKENS = 100_000


class VectorRun:
    """An embedding or rerank request in flight."""

    def __init__(self, model: Model, check: Callable[[], None] = lambda: None) -> None:
        """`check` is called before each group of inputs. It may raise an error to end the request."""
        self.n_tokens = 0
        self._engine = model.engine
        self._pooling = model.engine.facts.pooling
        self._check = check

    def embed(self, request: EmbeddingsRequest) -> list[array[float]]:
        """One vector for each input, normalised to a Euclidean length of 1. Raises ApiError, as `check` may."""
        if self._pooling == "rank":
            raise errors.NotSupported("this model is a reranker and computes no embeddings: use /v1/rerank", "model")
        paths = (item_path("input", request.inputs, i) for i in range(len(request.inputs)))
        inputs = [_tokens(self._engine, given, path) for given, path in zip(request.inputs, paths)]
        try:
            vectors = self._computed(inputs, "input")
        except errors.ContextLengthExceeded as error:
            if not request.truncates or not error.n_ctx:
                raise
            vectors = self._computed([self._cut(tokens, error.n_ctx) for tokens in inputs], "input")
        width = len(vectors[0])
        if request.dimensions is not None and request.dimensions > width:
            text = f"'dimensions' is {request.dimensions}, and this model's vectors have {width}"
            raise errors.BadRequest(text, "dimensions")
        return [normalised(vector[: request.dimensions]) for vector in vectors]

    def scores(self, request: RerankRequest) -> list[float]:
        """The relevance of each document to the query, in the order of the documents. Raises as `embed` does."""
        if self._pooling != "rank":
            text = "this model is not a reranker: start the server with a model of pooling type rank"
            raise errors.NotSupported(text, "model")
        with wire_errors("documents"):
            pairs = self._engine.pair_tokens(request.query, request.documents)
        vectors = self._computed(pairs, "documents")
        return [vector[0] for vector in vectors]

    def _computed(self, inputs: Sequence[Sequence[int]], name: str) -> list[array[float]]:
        self.n_tokens = sum(map(len, inputs))
        vectors: list[array[float]] = []
        with wire_errors(name):
            while len(vectors) < len(inputs):
                self._check()
                try:
                    vectors += self._engine.embed(_group(inputs[len(vectors) :]))
                except errors.ContextLengthExceeded as error:
                    i = next(i for i, tokens in enumerate(inputs) if len(tokens) > error.n_ctx)
                    error.param = item_path(name, inputs, i)
                    raise
        return vectors

    def _cut(self, tokens: Sequence[int], n: int) -> Sequence[int]:
        """The first `n` tokens. The token that the tokenizer adds at the end stays at the end."""
        ends = self._engine.tokenize("", add_bos=True)
        if len(tokens) <= n or tokens[-1] not in ends[-1:]:
            return tokens[:n]
        return [*tokens[: n - 1], tokens[-1]]


def _tokens(engine: AnyEngine, given: Input, name: str) -> Sequence[int]:
    if isinstance(given, str):
        with wire_errors(name):
            # The embedding context is created with the first request. It is never larger than this limit.
            limit = max(engine.facts.n_ctx, engine.facts.n_ctx_train, _COUNTED_TOKENS)
            return engine.tokenize(given, add_bos=True, parse_special=False, limit=limit)
    check_tokens(given, engine.facts.n_vocab, name)
    return given


def normalised(vector: Sequence[float]) -> array[float]:
    """The vector scaled to length 1; a zero vector is unchanged."""
    length = math.sqrt(sum(value * value for value in vector))
    return array("f", [value / length for value in vector] if length else vector)


def _group(inputs: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
    """The first inputs, with about `_GROUP_TOKENS` tokens."""
    sums = itertools.accumulate(map(len, inputs))
    return inputs[: 1 + sum(n < _GROUP_TOKENS for n in sums)]
