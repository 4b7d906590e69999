"""Ollama's endpoints for models and embeddings: /api/version, /api/tags, /api/ps, /api/show and /api/embed."""

from __future__ import annotations

import hashlib
import math
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from ..core.fields import Fields
from ..core.request import DEFAULT_OPTIONS, ParseOptions
from .embeddings import MAX_INPUTS, EmbeddingsRequest, read_texts

# The version of Ollama that the server reports. Editors refuse servers below a minimum version.
VERSION = "0.13.0"

# Reported as the time at which a model is unloaded that stays loaded.
_NEVER_S = 10982044800
# Longer GGUF fields, such as those with an entry for each token, are left out of the response.
_MAX_METADATA_CHARS = 1000
# A duration as in Go.
_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d*)?)(ns|us|ms|s|m|h)?")
_DURATION = re.compile(rf"(-?)((?:{_PART.pattern})+)")


@dataclass(frozen=True)
class ModelCard:
    """A description of a model."""

    name: str
    created: int
    n_bytes: int
    n_params: int
    n_ctx: int
    quantisation: str
    metadata: Mapping[str, str]
    template: str
    capabilities: tuple[str, ...]

    @property
    def family(self) -> str:
        return self.metadata.get("general.architecture", "unknown")


def tags_body(cards: Iterable[ModelCard]) -> dict[str, Any]:
    return {"models": [{**_entry(card), "modified_at": time_text(card.created)} for card in cards]}


def ps_body(loaded: Iterable[tuple[ModelCard, float]]) -> dict[str, Any]:
    """The loaded models, each with the time in seconds since 1970 at which it is unloaded."""
    return {"models": [{**_entry(card), **_state(card, end)} for card, end in loaded]}


def _state(card: ModelCard, end: float) -> dict[str, Any]:
    return {"expires_at": time_text(min(end, _NEVER_S)), "size_vram": 0, "context_length": card.n_ctx}


def show_body(card: ModelCard) -> dict[str, Any]:
    """The model's details. Clients read `context_length` in `model_info`, so it has the context size of the server."""
    info: dict[str, Any] = {name: _number(v) for name, v in card.metadata.items() if len(v) <= _MAX_METADATA_CHARS}
    info.update({f"{card.family}.context_length": card.n_ctx, "general.parameter_count": card.n_params})
    return {
        "modelfile": f"FROM {card.name}\n",
        "parameters": "",
        "template": card.template,
        "details": _details(card),
        "model_info": info,
        "capabilities": list(card.capabilities),
        "modified_at": time_text(card.created),
    }


def model_entry(card: ModelCard) -> dict[str, Any]:
    """The model's entry in the `models` of /v1/models, with llama.cpp's fields."""
    return {
        **_entry(card),
        "modified_at": time_text(card.created),
        "type": "model",
        "capabilities": list(card.capabilities),
    }


def _entry(card: ModelCard) -> dict[str, Any]:
    # Clients only compare digests. Computing the real one would take minutes for a large file.
    digest = hashlib.sha256(f"{card.name} {card.n_bytes}".encode()).hexdigest()
    details = _details(card)
    return {"name": card.name, "model": card.name, "size": card.n_bytes, "digest": digest, "details": details}


def _details(card: ModelCard) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "gguf",
        "family": card.family,
        "families": [card.family],
        "parameter_size": _parameters(card.n_params),
        "quantization_level": card.quantisation or "unknown",
    }


def _parameters(n: int) -> str:
    return f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.2f}M"


def _number(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def time_text(seconds: float) -> str:
    """A time in seconds since 1970 as in Ollama's responses."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_show(body: Fields) -> str:
    """The name of the model in a body of /api/show."""
    return body.text("model") or body.required_text("name")


def parse_embed(body: Fields, options: ParseOptions = DEFAULT_OPTIONS) -> EmbeddingsRequest:
    """The request in a body of /api/embed."""
    return _parse_embed(body, "input", MAX_INPUTS)


def parse_old_embed(body: Fields, options: ParseOptions = DEFAULT_OPTIONS) -> EmbeddingsRequest:
    """The request in a body of the older /api/embeddings, with one text in `prompt`."""
    return _parse_embed(body, "prompt", 1)


def _parse_embed(body: Fields, field: str, most: int) -> EmbeddingsRequest:
    body.ignore(("options",))
    return EmbeddingsRequest(
        model=body.text("model") or "",
        inputs=read_texts(body, field, most),
        dimensions=body.integer("dimensions", 1),
        as_base64=False,
        truncates=body.boolean("truncate") is not False,
        keep_alive_s=read_keep_alive(body),
    )


def read_keep_alive(body: Fields) -> float | None:
    """How many seconds the model stays loaded after the request: a number, or a duration such as "5m" or "1h30m".

    A negative value means for ever; None: the server's default.

    Raises:
        BadRequest: The value is neither.
    """
    value = body.get("keep_alive")
    if value is None:
        return None
    if isinstance(value, str):
        match = _DURATION.fullmatch(value.strip())
        if match is None:
            body.refuse("keep_alive", 'a number of seconds or a duration such as "5m"')
        parts = _PART.findall(match[2])
        seconds = sum(float(number) * _UNITS[unit or "s"] for number, unit in parts) * (-1 if match[1] else 1)
    else:
        seconds = body.number("keep_alive", -math.inf, math.inf) or 0.0
    return seconds if seconds >= 0 else math.inf


def embed_body(
    model: str, request: EmbeddingsRequest, vectors: Sequence[array[float]], n_tokens: int
) -> dict[str, Any]:
    return {"model": model, "embeddings": [vector.tolist() for vector in vectors], "prompt_eval_count": n_tokens}


def old_embed_body(
    model: str, request: EmbeddingsRequest, vectors: Sequence[array[float]], n_tokens: int
) -> dict[str, Any]:
    return {"embedding": vectors[0].tolist()}
