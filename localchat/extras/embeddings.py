"""Embeddings: the bodies of requests to /embeddings, and the validated vectors of the responses. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from ..errors import ProtocolError
from ..events import Usage
from ..reply.payloads import as_index, as_list, find_usage, parse_usage
from ..transport.options import CallOptions, Settings
from ..transport.retries import read_json

# The number of texts in one request.
DEFAULT_BATCH_SIZE = 256

Item = TypeVar("Item")


class Embeddings(list[Item]):
    """A list: the numbers of one vector, or the vectors of several texts in the order of the texts."""

    # The tokens of all texts; None if the server does not report them.
    usage: Usage | None = None
    # The name of the model in the response.
    model: str | None = None


def check_texts(texts: object) -> list[Any]:
    """The texts of a call as a list. A text may also be a list of tokens.

    Raises:
        TypeError: An argument is neither.
    """
    if isinstance(texts, str):
        return [texts]
    listed = list(texts) if isinstance(texts, Sequence) and not isinstance(texts, (bytes, bytearray)) else [None]
    for text in listed:
        is_tokens = isinstance(text, (list, tuple)) and all(isinstance(token, int) for token in text)
        if not isinstance(text, str) and not is_tokens:
            raise TypeError(f"embed takes a text or a list of texts or of lists of tokens, not {texts!r:.100}")
    return listed


def batches(texts: Sequence[Any], size: int | None) -> Iterator[Sequence[Any]]:
    """Split the texts into the batches of the requests. A size of None is DEFAULT_BATCH_SIZE.

    Raises:
        ValueError: The size is less than 1.
    """
    size = DEFAULT_BATCH_SIZE if size is None else size
    if size < 1:
        raise ValueError(f"batch_size must be at least 1, not {size}")
    return (texts[start : start + size] for start in range(0, len(texts), size))


def parse_embeddings(body: Any, n: int, base64: bool = False) -> Embeddings[list[float]]:
    """The vectors of a response of /embeddings, in the order of the texts.

    Args:
        body: The parsed JSON.
        n: The number of texts.
        base64: Whether a vector may be little-endian 32-bit floats in base64, as with encoding_format "base64".

    Raises:
        ProtocolError: The response does not have `n` vectors of the same length, each with an index of its own.
    """
    data = body.get("data") if isinstance(body, dict) else None
    items = [item for item in as_list(data) if isinstance(item, dict)]
    if len(items) != n:
        raise ProtocolError(f"the response holds {len(items)} embeddings for {n} texts")
    vectors = {as_index(item.get("index", i)): _vector(item.get("embedding"), base64) for i, item in enumerate(items)}
    if vectors.keys() != set(range(n)):
        raise ProtocolError(f"the embeddings do not have the indexes 0 to {n - 1}, each once")
    embeddings = Embeddings(vectors[i] for i in range(n))
    _check_lengths(embeddings)
    usage, model = find_usage(body), body.get("model")
    embeddings.usage = None if usage is None else parse_usage(usage)
    embeddings.model = model if isinstance(model, str) else None
    return embeddings


def _check_lengths(vectors: Sequence[list[float]]) -> None:
    lengths = sorted({len(vector) for vector in vectors})
    if len(lengths) > 1:
        raise ProtocolError(f"the embeddings have different lengths: {lengths[0]} and {lengths[-1]}")


def _vector(value: Any, base64: bool) -> list[float]:
    if isinstance(value, str) and base64:
        import binascii  # Imported here, like struct: few calls need them.
        import struct

        try:
            value = [number for (number,) in struct.iter_unpack("<f", binascii.a2b_base64(value))]
        except (ValueError, struct.error) as error:
            raise ProtocolError(f"an embedding is not base64 of 32-bit floats: {error}") from error
    if not isinstance(value, list) or not value or not all(type(number) in (float, int) for number in value):
        raise ProtocolError(f"an embedding is a list of numbers, not {type(value).__name__} of something else")
    if not abs(sum(value)) < float("inf"):
        raise ProtocolError("an embedding has NaN or infinity in it")
    return value


def joined(parts: Sequence[Embeddings[list[float]]]) -> Embeddings[list[float]]:
    """Join the vectors of several responses, and add up their usage.

    Raises:
        ProtocolError: The vectors have different lengths.
    """
    vectors = [vector for part in parts for vector in part]
    _check_lengths(vectors)
    embeddings = Embeddings(vectors)
    usages = [part.usage for part in parts if part.usage is not None]
    if usages:
        input_tokens = sum(usage.input_tokens for usage in usages)
        embeddings.usage = Usage(input_tokens, 0, sum(usage.total_tokens for usage in usages))
    embeddings.model = parts[0].model if parts else None
    return embeddings


def first_of(vectors: Embeddings[list[float]]) -> Embeddings[float]:
    """The first vector, with the usage and the model of the response."""
    vector = Embeddings(vectors[0])
    vector.usage, vector.model = vectors.usage, vectors.model
    return vector


def embedding_body(options: CallOptions, texts: Sequence[str], model: str | None) -> dict[str, Any]:
    """The body of a request to /embeddings."""
    body = {"model": model, **options.fields, "input": texts}
    return {name: value for name, value in body.items() if value is not None}


def read_vectors(settings: Settings, given: CallOptions, raw: bytes, n_texts: int) -> Embeddings[list[float]]:
    """The vectors of the body of a response of /embeddings.

    Raises:
        StreamError: The body reports an error.
        ProtocolError: The body is not JSON, or does not have one vector for each text.
    """
    body = read_json(settings, "embeddings are", raw)
    return parse_embeddings(body, n_texts, given.fields.get("encoding_format") == "base64")
