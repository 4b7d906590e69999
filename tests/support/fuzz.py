"""Bytes that are cut, and values that are replaced, at every place or at random."""

import copy
import random
from typing import Any


def pieces_of(raw: bytes, chance: random.Random) -> list[bytes]:
    """The bytes, cut at random. Some pieces are empty."""
    cuts = sorted(chance.randrange(len(raw) + 1) for _ in range(chance.randrange(30)))
    return [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)])]


def cuts(raw: bytes) -> list[list[bytes]]:
    """The whole stream, its single bytes, and every cut in two."""
    return [[raw], [raw[i : i + 1] for i in range(len(raw))], *([raw[:i], raw[i:]] for i in range(1, len(raw)))]


def replace_value(value: Any, chance: random.Random, values: list[Any]) -> None:
    """Replace a random part of a dict or a list, if it has any, by one of these values."""
    if not value:
        return
    key = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
    if isinstance(value[key], (dict, list)) and value[key] and chance.random() < 0.8:
        replace_value(value[key], chance, values)
    else:
        value[key] = copy.deepcopy(chance.choice(values))
