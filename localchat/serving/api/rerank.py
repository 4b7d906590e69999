"""POST /v1/rerank, in the format of Jina and Cohere: sorts documents by their relevance to a query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..core.errors import BadRequest
from ..core.fields import Fields, parse_body, show, unknown_fields
from ..core.request import DEFAULT_OPTIONS, ParseOptions
from .embeddings import MAX_INPUTS, usage_body


@dataclass(frozen=True)
class RerankRequest:
    """A query, and the documents to sort by relevance."""

    model: str
    query: str
    documents: tuple[str, ...]
    top_n: int | None
    """Return only this many documents; None: all."""
    returns_documents: bool
    """Return the texts of the documents, too."""
    unknown: tuple[str, ...] = ()
    """The names of unknown fields, which were ignored."""


def parse_rerank(raw: bytes, options: ParseOptions = DEFAULT_OPTIONS) -> RerankRequest:
    """The request in a body.

    Raises:
        BadRequest: A field is invalid.
    """
    body = parse_body(raw)
    return RerankRequest(
        model=body.text("model") or "",
        query=body.required_text("query"),
        documents=_documents(body),
        top_n=body.integer("top_n", 1),
        # The names of Cohere and of Hugging Face's TEI. any() gets a list, so that both are read.
        returns_documents=any([body.boolean("return_documents"), body.boolean("return_text")]),
        unknown=unknown_fields(body, ("user",), options.strict),
    )


def rerank_body(model: str, request: RerankRequest, scores: Sequence[float], n_tokens: int) -> dict[str, Any]:
    """The documents, sorted by score. Scores are comparable with one another, but are not probabilities."""
    order = sorted(range(len(scores)), key=lambda i: -scores[i])[: request.top_n]
    results = [{"index": i, "relevance_score": scores[i], **_document(request, i)} for i in order]
    return {"object": "list", "model": model, "results": results, "usage": usage_body(n_tokens)}


def _document(request: RerankRequest, i: int) -> dict[str, Any]:
    return {"document": {"text": request.documents[i]}} if request.returns_documents else {}


def _documents(body: Fields) -> tuple[str, ...]:
    """The documents: texts, or objects with a field `text`. `texts` is an alias of `documents`."""
    texts = body.items("texts", "strings")
    name = "documents" if body.get("documents") is not None or not texts else "texts"
    values = body.items(name, "strings")
    if not 0 < len(values) <= MAX_INPUTS:
        body.refuse(name, f"a list of 1 to {MAX_INPUTS} strings")
    return tuple(_document_text(value, f"{name}[{i}]") for i, value in enumerate(values))


def _document_text(value: Any, path: str) -> str:
    text = value.get("text") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise BadRequest(f"'{path}' must be a string, or an object with a 'text', got {show(value)}", path)
    return text
