"""Embeddings: the requests to /embeddings for Client.embed, and the validated vectors of the responses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

from .errors import ProtocolError
from .events import Usage
from .reply.payloads import as_integer, as_list, dump, find_usage
from .request.arguments import BaseRequest
from .texts import excerpt
from .transport.call import Call

DEFAULT_BATCH_SIZE = 256  # The number of texts in one request.

Item = TypeVar("Item")


class Embeddings(list[Item]):
    """A list: the numbers of one vector, or the vectors of several texts in the order of the texts."""

    usage: Usage | None = None  # The tokens of all texts; None if the server does not report them.
    model: str | None = None  # The name of the model in the response.


async def embed(call: Call, arguments: BaseRequest, text: Any) -> Any:
    """The vector of a text, or the vectors of several texts; see Client.embed."""
    texts = _checked_texts(text)
    arguments.check_extra_body("input")
    size = arguments.fields.pop("batch_size", None) or DEFAULT_BATCH_SIZE
    model = await arguments.model(call)
    fields = {"model": model, **arguments.fields, **arguments.extra_body}
    vectors, usages = Embeddings[Any](), []
    for start in range(0, len(texts), size):
        batch = texts[start : start + size]
        body = {name: value for name, value in {**fields, "input": batch}.items() if value is not None}
        raw = await call.fetch_json("POST", "embeddings", body)
        part = parse_embeddings(raw, len(batch), fields.get("encoding_format") == "base64")
        vectors += part
        vectors.model = vectors.model or part.model
        usages += [part.usage] if part.usage else []
    lengths = sorted({len(vector) for vector in vectors})
    if len(lengths) > 1:
        raise ProtocolError(f"the embeddings have different lengths: {lengths[0]} and {lengths[-1]}")
    if usages:
        n_input, n_total = sum(usage.input_tokens for usage in usages), sum(usage.total_tokens for usage in usages)
        vectors.usage = Usage(n_input, 0, n_total)
    if isinstance(text, str):
        vectors[:] = vectors[0]
    return vectors


def _checked_texts(texts: object) -> list[Any]:
    """The texts of a call as a list. A text may also be a list of tokens."""
    if isinstance(texts, str):
        return [texts]
    listed = list(texts) if isinstance(texts, Sequence) and not isinstance(texts, (bytes, bytearray)) else [None]
    for text in listed:
        is_tokens = isinstance(text, (list, tuple)) and all(type(token) is int for token in text)
        if not isinstance(text, str) and not is_tokens:
            raise TypeError(f"embed takes a text or a list of texts or of lists of tokens, not {texts!r:.100}")
    return listed


def parse_embeddings(body: Any, n: int, base64: bool = False) -> Embeddings[list[float]]:
    """The vectors of a response, which may be 32-bit floats in base64. Raises ProtocolError if there are not `n`."""
    data = body.get("data") if isinstance(body, dict) else None
    items = [item for item in as_list(data) if isinstance(item, dict)]
    if len(items) != n:
        raise ProtocolError(f"the response holds {len(items)} embeddings for {n} texts")
    vectors = {
        as_integer(i if item.get("index") is None else item["index"]): _vector(item.get("embedding"), base64)
        for i, item in enumerate(items)
    }
    if vectors.keys() != set(range(n)):
        raise ProtocolError(f"the embeddings do not have the indexes 0 to {n - 1}, each once")
    embeddings = Embeddings(vectors[i] for i in range(n))
    embeddings.usage, model = find_usage(body), body.get("model")
    embeddings.model = model if isinstance(model, str) else None
    return embeddings


def _vector(value: Any, base64: bool) -> list[float]:
    if isinstance(value, str) and base64:
        import binascii  # Imported here, like struct: few calls need them.
        import struct

        try:
            value = [number for (number,) in struct.iter_unpack("<f", binascii.a2b_base64(value))]
        except (ValueError, struct.error) as error:
            raise ProtocolError(f"an embedding is not base64 of 32-bit floats: {error}") from error
    if not isinstance(value, list) or not value or not all(type(number) in (float, int) for number in value):
        shown = excerpt(dump(value), 80)
        raise ProtocolError(f"an embedding is no list of numbers: {shown}")
    try:
        is_finite = all(map(math.isfinite, value))
    except OverflowError:  # An integer that is larger than any float.
        is_finite = False
    if not is_finite:
        raise ProtocolError("an embedding has NaN or infinity in it, or a number that is larger than any float")
    return value
