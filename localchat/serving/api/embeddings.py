"""POST /v1/embeddings and /v1/rerank: parses JSON bodies, and encodes vectors and scores."""

from __future__ import annotations

import base64
import math
import struct
from array import array
from collections.abc import Sequence
from typing import Any

from ..core.errors import field_error, item_path
from ..core.fields import Fields, refuse_unsupported
from ..core.request import EmbeddingsRequest, RerankRequest, Vectors
from .content import read_inputs

MAX_INPUTS = 2048  # OpenAI's limit.

# Fields of /v1/embeddings with only one supported value.
UNSUPPORTED = {
    "embd_normalize": (2,),  # Vectors have Euclidean length 1.
    "truncate_prompt_tokens": (-1,),  # A text that is too long is an error. Only Ollama's interface truncates it.
    "add_special_tokens": (True,),  # The model's BOS and EOS are added.
}


def parse_embeddings(body: Fields) -> EmbeddingsRequest:
    refuse_unsupported(body, UNSUPPORTED)
    body.accept(("user", "priority"))
    return read_embeddings(body, encoding_format=body.choice("encoding_format", ("float", "base64")) or "float")


def read_embeddings(body: Fields, name: str = "input", most: int = MAX_INPUTS, **options: Any) -> EmbeddingsRequest:
    """The request with the inputs in a field: at most `most`, and none of them empty."""
    inputs = read_inputs(body, name, most)
    if "" in inputs:
        raise field_error(item_path(name, inputs, inputs.index("")), "is an empty text, which has no embedding")
    return EmbeddingsRequest(body.text("model") or "", inputs, body.integer("dimensions", 1), **options)


def embeddings_body(model: str, request: EmbeddingsRequest, vectors: Vectors, n_tokens: int) -> dict[str, Any]:
    encode = _base64 if request.encoding_format == "base64" else array.tolist
    data = [{"object": "embedding", "index": i, "embedding": encode(vector)} for i, vector in enumerate(vectors)]
    return {"object": "list", "data": data, "model": model, "usage": _usage_body(n_tokens)}


def _usage_body(n_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": n_tokens, "total_tokens": n_tokens}


def _base64(vector: array[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")


def parse_rerank(body: Fields) -> RerankRequest:
    """The request in a body. One with `texts` in place of `documents` is that of text-embeddings-inference.

    A document is a text, or an object with the field `text` alone, as Jina's and Cohere's clients send it.
    """
    body.accept(("user", "truncate", "truncation_direction"))
    is_tei = "texts" in body.raw and "documents" not in body.raw
    field = "texts" if is_tei else "documents"
    documents = [
        item["text"] if isinstance(item, dict) and list(item) == ["text"] else item
        for item in body.items(field, "strings")
    ]
    if not 0 < len(documents) <= MAX_INPUTS or not all(isinstance(document, str) for document in documents):
        body.refuse(field, f"a list of 1 to {MAX_INPUTS} strings")
    return RerankRequest(
        model=body.text("model") or "",
        query=body.nonempty_text("query"),
        documents=tuple(documents),
        top_n=body.integer("top_n", 1),
        return_documents=body.boolean("return_text" if is_tei else "return_documents") or False,
        field=field,
        raw_scores=body.boolean("raw_scores") or False if is_tei else True,
    )


def rerank_body(model: str, request: RerankRequest, scores: Sequence[float], n_tokens: int) -> Any:
    """The documents, sorted by score. Scores are comparable with one another, but are not probabilities.

    The response of text-embeddings-inference is a list. It has probabilities unless the request has `raw_scores`.
    """
    order = sorted(range(len(scores)), key=lambda i: -scores[i])[: request.top_n]
    if request.field == "texts":
        texts = [{"text": text} if request.return_documents else {} for text in request.documents]
        values = scores if request.raw_scores else [_sigmoid(score) for score in scores]
        return [{"index": i, "score": values[i], **texts[i]} for i in order]

    def result(i: int) -> dict[str, Any]:
        document = {"document": {"text": request.documents[i]}} if request.return_documents else {}
        return {"index": i, "relevance_score": scores[i], **document}

    return {"object": "list", "model": model, "results": [*map(result, order)], "usage": _usage_body(n_tokens)}


def _sigmoid(value: float) -> float:
    return 0.5 + 0.5 * math.tanh(value / 2)
