"""POST /v1/embeddings: parses the request, and encodes vectors as JSON numbers or base64."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..core.errors import BadRequest
from ..core.fields import Fields, parse_body, refuse_unsupported, unknown_fields
from ..core.inputs import Input, read_inputs
from ..core.request import DEFAULT_OPTIONS, ParseOptions

# OpenAI's limit.
MAX_INPUTS = 2048

# Fields with only one supported value: vectors have Euclidean length 1, texts are not truncated (a text that is too
# long is an error), and the model's BOS and EOS are added.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "embd_normalize": (2,),
    "truncate_prompt_tokens": (-1,),
    "add_special_tokens": (True,),
}
_WITHOUT_EFFECT = ("user", "priority")


@dataclass(frozen=True)
class EmbeddingsRequest:
    """Texts or token ids to embed."""

    model: str
    inputs: tuple[Input, ...]
    dimensions: int | None
    """Return only this many numbers of each vector; None: all."""
    as_base64: bool
    """Encode vectors in base64 instead of as lists of numbers."""
    truncates: bool = False
    """Cut inputs that are longer than the context. False: refuse them."""
    unknown: tuple[str, ...] = ()
    """The names of unknown fields, which were ignored."""


def parse_embeddings(raw: bytes, options: ParseOptions = DEFAULT_OPTIONS) -> EmbeddingsRequest:
    """The request in a body.

    Raises:
        BadRequest: A field is invalid.
    """
    body = parse_body(raw)
    refuse_unsupported(body, UNSUPPORTED)
    return EmbeddingsRequest(
        model=body.text("model") or "",
        inputs=read_texts(body, "input", MAX_INPUTS),
        dimensions=body.integer("dimensions", 1),
        as_base64=body.choice("encoding_format", ("float", "base64")) == "base64",
        unknown=unknown_fields(body, _WITHOUT_EFFECT, options.strict),
    )


def read_texts(body: Fields, name: str, most: int) -> tuple[Input, ...]:
    """The inputs in a field, none of them empty.

    Raises:
        BadRequest: The field is invalid, or has more than `most` inputs.
    """
    inputs = read_inputs(body, name, most)
    if "" in inputs:
        raise BadRequest(f"'{name}' has an empty text, which has no embedding", name)
    return inputs


def embeddings_body(
    model: str, request: EmbeddingsRequest, vectors: Iterable[array[float]], n_tokens: int
) -> dict[str, Any]:
    encode = _base64 if request.as_base64 else array.tolist
    data = [{"object": "embedding", "index": i, "embedding": encode(vector)} for i, vector in enumerate(vectors)]
    return {"object": "list", "data": data, "model": model, "usage": usage_body(n_tokens)}


def usage_body(n_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": n_tokens, "total_tokens": n_tokens}


def _base64(vector: array[float]) -> str:
    if sys.byteorder == "big":  # The API uses little-endian numbers.
        vector = array("f", vector)
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode("ascii")
