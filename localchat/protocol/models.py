"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def model_body(name: str, created: int, meta: Mapping[str, Any]) -> dict[str, Any]:
    """One model; `meta` says what it is, for people who choose one."""
    return {"id": name, "object": "model", "created": created, "owned_by": "localchat", "meta": dict(meta)}


def models_body(models: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {"object": "list", "data": list(models)}
