"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def model_body(name: str, created: int, meta: Mapping[str, Any]) -> dict[str, Any]:
    """One model. `meta` has llama.cpp's description of it; `max_model_len` is vLLM's name for `n_ctx`."""
    length = {"max_model_len": meta["n_ctx"]} if "n_ctx" in meta else {}
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "localchat",
        **length,
        "meta": dict(meta),
    }


def models_body(models: Iterable[Mapping[str, Any]], entries: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """The list of models. `entries` are the same models in the format of llama.cpp and Ollama."""
    return {"object": "list", "data": list(models), "models": list(entries)}
