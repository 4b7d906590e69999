"""Ollama's endpoints for models and embeddings: /api/version, /api/tags, /api/ps, /api/show and /api/embed."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from ..core.fields import Fields
from ..core.request import DEFAULT_OPTIONS, ParseOptions
from .embeddings import MAX_INPUTS, EmbeddingsRequest, read_texts

# The version of Ollama that the server reports. Editors refuse servers below a minimum version.
VERSION = "0.13.0"

# Reported as the time at which the model is unloaded. The server never unloads it.
_NEVER = "2318-01-01T00:00:00Z"
# Longer GGUF fields, such as those with an entry for each token, are left out of the response.
_MAX_METADATA_CHARS = 1000


@dataclass(frozen=True)
class ModelCard:
    """A description of the served model."""

    name: str
    created: int
    n_bytes: int
    n_params: int
    n_ctx: int
    metadata: Mapping[str, str]
    template: str
    capabilities: tuple[str, ...]

    @property
    def family(self) -> str:
        return self.metadata.get("general.architecture", "unknown")


def tags_body(card: ModelCard) -> dict[str, Any]:
    return {"models": [{**_entry(card), "modified_at": time_text(card.created)}]}


def ps_body(card: ModelCard) -> dict[str, Any]:
    state = {"expires_at": _NEVER, "size_vram": 0, "context_length": card.n_ctx}
    return {"models": [{**_entry(card), **state}]}


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


# The names for `general.file_type` of GGUF files (llama_ftype in llama.h).
_FILE_TYPES: Mapping[str, str] = {
    "0": "F32", "1": "F16", "2": "Q4_0", "3": "Q4_1", "7": "Q8_0", "8": "Q5_0", "9": "Q5_1", "10": "Q2_K",
    "11": "Q3_K_S", "12": "Q3_K_M", "13": "Q3_K_L", "14": "Q4_K_S", "15": "Q4_K_M", "16": "Q5_K_S", "17": "Q5_K_M",
    "18": "Q6_K", "19": "IQ2_XXS", "20": "IQ2_XS", "21": "Q2_K_S", "22": "IQ3_XS", "23": "IQ3_XXS", "24": "IQ1_S",
    "25": "IQ4_NL", "26": "IQ3_S", "27": "IQ3_M", "28": "IQ2_S", "29": "IQ2_M", "30": "IQ4_XS", "31": "IQ1_M",
    "32": "BF16", "36": "TQ1_0", "37": "TQ2_0", "38": "MXFP4_MOE",
}  # fmt: skip


def _details(card: ModelCard) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "gguf",
        "family": card.family,
        "families": [card.family],
        "parameter_size": _parameters(card.n_params),
        "quantization_level": _FILE_TYPES.get(card.metadata.get("general.file_type", ""), "unknown"),
    }


def _parameters(n: int) -> str:
    return f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.2f}M"


def _number(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def time_text(seconds: int) -> str:
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
    body.ignore(("keep_alive", "options"))
    return EmbeddingsRequest(
        model=body.text("model") or "",
        inputs=read_texts(body, field, most),
        dimensions=body.integer("dimensions", 1),
        as_base64=False,
        truncates=body.boolean("truncate") is not False,
    )


def embed_body(
    model: str, request: EmbeddingsRequest, vectors: Sequence[array[float]], n_tokens: int
) -> dict[str, Any]:
    return {"model": model, "embeddings": [vector.tolist() for vector in vectors], "prompt_eval_count": n_tokens}


def old_embed_body(
    model: str, request: EmbeddingsRequest, vectors: Sequence[array[float]], n_tokens: int
) -> dict[str, Any]:
    return {"embedding": vectors[0].tolist()}
