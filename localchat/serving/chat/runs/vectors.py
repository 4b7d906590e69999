"""Runs embedding and rerank requests on the engine: inputs become vectors or scores."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence

from ...api.embeddings import EmbeddingsRequest, RerankRequest
from ...core import errors
from ..model import Model


class VectorRun:
    def __init__(self, model: Model, check: Callable[[], None] = lambda: None) -> None:
        """`check` is called while the vectors are computed. It may raise an error to end the request."""
        if model.adapters:
            raise errors.NotSupported(f"the adapter {model.name!r} makes no vectors: name its base", "model")
        self.n_tokens = 0
        self._engine = model.engine
        self._pooling = model.engine.facts.pooling
        self._check = check

    def embed(self, request: EmbeddingsRequest) -> list[array[float]]:
        """One vector for each input, normalised to a Euclidean length of 1. Raises ApiError, as `check` may."""
        if self._pooling == "rank":
            raise errors.NotSupported("this model is a reranker and computes no embeddings: use /v1/rerank", "model")
        vectors, self.n_tokens = self._engine.embed(
            request.inputs, field="input", truncates=request.truncates, check=self._check
        )
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
        vectors, self.n_tokens = self._engine.embed(
            request.documents, field="documents", query=request.query, check=self._check
        )
        return [vector[0] for vector in vectors]


def normalised(vector: Sequence[float]) -> array[float]:
    """The vector scaled to length 1; a zero vector is unchanged."""
    length = math.sqrt(sum(value * value for value in vector))
    return array("f", [value / length for value in vector] if length else vector)
