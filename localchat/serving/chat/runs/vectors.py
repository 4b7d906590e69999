"""Runs embedding and rerank requests on the engine. Each returns its vectors or scores, and the number of tokens."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

from ...core import errors
from ...core.mailbox import Mailbox
from ...core.request import EmbeddingsRequest, RerankRequest, Vectors
from ..model import Model


def _refuse_adapters(model: Model) -> None:
    if model.adapters:
        raise errors.NotSupported(f"the adapter {model.name!r} makes no vectors: name its base", "model")


def embed_inputs(model: Model, request: EmbeddingsRequest, mailbox: Mailbox) -> tuple[Vectors, int]:
    """One vector for each input, normalised to a Euclidean length of 1. Raises ApiError and what the mailbox raises."""
    _refuse_adapters(model)
    if model.engine.facts.pooling == "rank":
        raise errors.NotSupported("this model is a reranker and computes no embeddings: use /v1/rerank", "model")
    vectors, n_tokens = model.engine.embed(request.input, mailbox, field="input", truncates=request.truncate)
    width = len(vectors[0])
    if request.dimensions is not None and request.dimensions > width:
        raise errors.field_error("dimensions", f"is {request.dimensions}, and this model's vectors have {width}")
    return [normalised(vector[: request.dimensions]) for vector in vectors], n_tokens


def score_documents(model: Model, request: RerankRequest, mailbox: Mailbox) -> tuple[list[float], int]:
    """The relevance of each document to the query, in the order of the documents. Raises as `embed_inputs` does."""
    _refuse_adapters(model)
    if model.engine.facts.pooling != "rank":
        text = "this model is not a reranker: start the server with a model of pooling type rank"
        raise errors.NotSupported(text, "model")
    vectors, n_tokens = model.engine.embed(request.documents, mailbox, field=request.field, query=request.query)
    return [vector[0] for vector in vectors], n_tokens


def normalised(vector: Sequence[float]) -> array[float]:
    """The vector scaled to length 1; a zero vector is unchanged."""
    length = math.sqrt(sum(value * value for value in vector))
    return array("f", [value / length for value in vector] if length else vector)
