"""Parses the prompts of completions and the inputs of embeddings: one or many, each a text or a list of token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

from .errors import BadRequest
from .fields import Fields, show

# A text, or the ids of its tokens.
Input = Union[str, "tuple[int, ...]"]

_EXPECTED = "a string, a list of token ids, or a list of these"


def read_inputs(body: Fields, name: str, most: int) -> tuple[Input, ...]:
    """The inputs in a field, at least one. A text may be empty; a list of token ids may not.

    Raises:
        BadRequest: The field is missing, has another type, or has more than `most` inputs.
    """
    value = body.get(name)
    one = _input(value)
    if one is not None:
        return (one,)
    if not isinstance(value, list) or not value:
        body.refuse(name, _EXPECTED)
    if len(value) > most:
        raise BadRequest(f"'{name}' has {len(value)} items, and the limit is {most}", name)
    return tuple(_listed(item, f"{body.at(name)}[{i}]") for i, item in enumerate(value))


def _listed(value: Any, path: str) -> Input:
    one = _input(value)
    if one is None:
        raise BadRequest(f"'{path}' must be a string or a list of token ids, got {show(value)}", path)
    return one


def _input(value: Any) -> Input | None:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(map(is_token, value)):
        return tuple(value)
    return None


def is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def check_tokens(tokens: Sequence[int], n_vocab: int, name: str) -> None:
    """Raise BadRequest if any token id is not in the vocabulary."""
    highest = max(tokens, default=0)
    if highest >= n_vocab:
        message = f"'{name}' has the token id {highest}; the token ids of this model are 0 to {n_vocab - 1}"
        raise BadRequest(message, name)
