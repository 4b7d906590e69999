"""Embeddings: the vectors of a text or of many, checked and in order. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from .errors import ModelNotNamed, ProtocolError
from .events import Usage
from .failures import not_json
from .model_list import shown_names
from .options import CallOptions
from .payloads import as_index, as_list, find_usage, parse_usage
from .settings import Settings

# Names of models that make embeddings, not text.
_EMBEDDING_NAME = re.compile(r"embed|minilm|\b(bge|gte|e5|arctic)\b", re.IGNORECASE)

# Texts in one request where `batch_size` is not given.
DEFAULT_BATCH_SIZE = 256

Item = TypeVar("Item")


class Embeddings(list[Item]):
    """A list: the numbers of one vector, or the vectors of several texts in their order.

    `usage` counts the tokens of all texts, None if the server does not; `model` is the server's name for the model.
    """

    usage: Usage | None = None
    model: str | None = None


def makes_embeddings(name: str) -> bool:
    """Whether a model is one for embeddings, by its name."""
    return _EMBEDDING_NAME.search(name) is not None


def choose_embedding_model(models: Sequence[str], default: str | None) -> str | None:
    """The only model of a server, or the only one for embeddings; `default` if it lists none.

    Raises:
        ModelNotNamed: There is no such model. A chat model is never taken for one.
    """
    names = list(dict.fromkeys(models))
    if len(names) < 2:
        return names[0] if names else default
    fitting = [name for name in names if makes_embeddings(name)]
    if len(fitting) != 1:
        raise ModelNotNamed(f"name the model that makes embeddings, embed(..., model=...), of: {shown_names(names)}")
    return fitting[0]


def check_texts(texts: object) -> list[Any]:
    """The texts of a call; each may also be a list of tokens.

    Raises:
        TypeError: They are something else.
    """
    if isinstance(texts, str):
        return [texts]
    if not isinstance(texts, Sequence) or isinstance(texts, (bytes, bytearray)):
        raise TypeError(f"embed takes a text or a list of texts, not {type(texts).__name__}")
    for place, text in enumerate(texts):
        is_tokens = isinstance(text, (list, tuple)) and all(isinstance(token, int) for token in text)
        if not isinstance(text, str) and not is_tokens:
            raise TypeError(f"text {place} is {type(text).__name__}, not str or a list of tokens")
    return list(texts)


def batches(texts: Sequence[Any], size: int | None) -> Iterator[Sequence[Any]]:
    """The texts of each request.

    Raises:
        ValueError: The size is not above zero.
    """
    size = DEFAULT_BATCH_SIZE if size is None else size
    if size < 1:
        raise ValueError(f"batch_size must be at least 1, not {size}")
    return (texts[start : start + size] for start in range(0, len(texts), size))


def parse_embeddings(body: Any, n: int, base64: bool = False) -> Embeddings[list[float]]:
    """The vectors of a response of /embeddings, in the order of the texts.

    Args:
        body: The parsed JSON.
        n: How many texts there were.
        base64: Whether vectors may be text: little-endian 32-bit floats in base64, as OpenAI sends them if asked.

    Raises:
        ProtocolError: They are not `n` vectors of numbers, all of one length, each with an index of its own.
    """
    data = body.get("data") if isinstance(body, dict) else None
    items = [item for item in as_list(data) if isinstance(item, dict)]
    if len(items) != n:
        raise ProtocolError(f"the response holds {len(items)} embeddings for {n} texts")
    indexes = [as_index(item.get("index", place)) for place, item in enumerate(items)]
    if sorted(index for index in indexes if index is not None) != list(range(n)):
        raise ProtocolError(f"the embeddings do not have the indexes 0 to {n - 1}, each once")
    vectors: list[list[float]] = [[]] * n
    for index, item in zip(indexes, items):
        vectors[index or 0] = _vector(item.get("embedding"), base64)
    lengths = sorted({len(vector) for vector in vectors})
    if len(lengths) > 1:
        raise ProtocolError(f"the embeddings have different lengths: {lengths[0]} and {lengths[-1]}")
    found = Embeddings(vectors)
    raw = find_usage(body)
    found.usage = None if raw is None else parse_usage(raw)
    model = body.get("model")
    found.model = model if isinstance(model, str) else None
    return found


def _vector(value: Any, base64: bool) -> list[float]:
    if isinstance(value, str) and base64:
        value = _decoded(value)
    if not isinstance(value, list) or not value or not all(type(number) in (float, int) for number in value):
        raise ProtocolError(f"an embedding is a list of numbers, not {type(value).__name__} of something else")
    if not abs(sum(value)) < float("inf"):
        raise ProtocolError("an embedding has NaN or infinity in it")
    return value


def _decoded(text: str) -> list[float]:
    import binascii  # Late, like struct: hardly any call needs them.
    import struct

    try:
        data = binascii.a2b_base64(text)
        return [number for (number,) in struct.iter_unpack("<f", data)]
    except (ValueError, struct.error) as error:
        raise ProtocolError(f"an embedding is not base64 of 32-bit floats: {error}") from error


def joined(parts: Sequence[Embeddings[list[float]]]) -> Embeddings[list[float]]:
    """The vectors of several requests as those of one.

    Raises:
        ProtocolError: Their lengths differ.
    """
    lengths = sorted({len(part[0]) for part in parts if part})
    if len(lengths) > 1:
        raise ProtocolError(f"the embeddings have different lengths: {lengths[0]} and {lengths[-1]}")
    whole = Embeddings([vector for part in parts for vector in part])
    counted = [part.usage for part in parts if part.usage is not None]
    if counted:
        read, total = sum(usage.input_tokens for usage in counted), sum(usage.total_tokens for usage in counted)
        whole.usage = Usage(read, 0, total)
    whole.model = parts[0].model if parts else None
    return whole


def first_of(vectors: Embeddings[list[float]]) -> Embeddings[float]:
    """The only vector, with the usage and the model of all."""
    vector = Embeddings(vectors[0])
    vector.usage, vector.model = vectors.usage, vectors.model
    return vector


def embedding_body(options: CallOptions, texts: Sequence[str], model: str | None) -> dict[str, Any]:
    """The body of a request for /embeddings."""
    given = dict(options.options)
    given.update(given.pop("extra_body", None) or {})
    body = {"model": model, **given, "input": texts}
    return {name: value for name, value in body.items() if value is not None}


def read_vectors(settings: Settings, given: CallOptions, raw: bytes, n_texts: int) -> Embeddings[list[float]]:
    """The vectors of a response of /embeddings."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise not_json(settings, "embeddings are", raw) from error
    return parse_embeddings(body, n_texts, given.options.get("encoding_format") == "base64")
