"""The endpoints without generated text: /v1/embeddings, /v1/rerank, and llama.cpp's /tokenize and /detokenize."""

from __future__ import annotations

import base64
import math
import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.errors import field_error
from ..core.fields import Fields, first_given, refuse_unsupported
from ..core.params import is_token
from ..core.request import EmbeddingsRequest, RerankRequest, Vectors
from .parts import read_inputs

MAX_INPUTS = 2048  # OpenAI's limit.

# Fields with only one supported value: vectors have Euclidean length 1, texts are not truncated (a text that is too
# long is an error), and the model's BOS and EOS are added.
UNSUPPORTED = {"embd_normalize": (2,), "truncate_prompt_tokens": (-1,), "add_special_tokens": (True,)}


def parse_embeddings(body: Fields) -> EmbeddingsRequest:
    refuse_unsupported(body, UNSUPPORTED)
    body.accept(("user", "priority"))
    return read_embeddings(body, encoding_format=body.choice("encoding_format", ("float", "base64")) or "float")


def read_embeddings(body: Fields, name: str = "input", most: int = MAX_INPUTS, **options: Any) -> EmbeddingsRequest:
    """The request with the inputs in a field: at most `most`, and none of them empty."""
    inputs = read_inputs(body, name, most)
    if "" in inputs:
        raise field_error(name, "has an empty text, which has no embedding")
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


@dataclass(frozen=True)
class TokenizeRequest:
    model: str
    content: str
    add_special: bool  # Add the model's BOS.
    parse_special: bool  # Parse the texts of control tokens as control tokens.
    with_pieces: bool  # Return the text of each token, too.


@dataclass(frozen=True)
class DetokenizeRequest:
    model: str
    tokens: tuple[int, ...]


def parse_tokenize(body: Fields) -> TokenizeRequest:
    """The request in a body. `prompt` and `text` are other servers' names for `content`."""
    content = first_given([body.text(name) for name in ("content", "prompt", "text")])
    return TokenizeRequest(
        model=body.text("model") or "",
        content=body.required_text("content") if content is None else content,
        add_special=first_given([body.boolean("add_special"), body.boolean("add_special_tokens")]) or False,
        parse_special=body.boolean("parse_special") is not False,
        with_pieces=body.boolean("with_pieces") or False,
    )


def tokens_body(tokens: Sequence[int], request: TokenizeRequest, piece: Callable[[int], bytes]) -> dict[str, Any]:
    with_pieces = ({"id": token, "piece": _text_or_bytes(piece(token))} for token in tokens)
    return {"tokens": list(with_pieces if request.with_pieces else tokens)}


def parse_detokenize(body: Fields) -> DetokenizeRequest:
    tokens = body.get("tokens")
    if not isinstance(tokens, list) or not all(map(is_token, tokens)):
        body.refuse("tokens", "a list of token ids")
    return DetokenizeRequest(body.text("model") or "", tuple(tokens))


def _text_or_bytes(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
