"""The fields of a response that the client does not interpret: they are kept, joined from their pieces. No I/O.

No field of a response is lost. A field that the client reads becomes an event and an attribute of the reply. Any other
field, and a known field with a value of a wrong type, is kept here and is in `Reply.raw`, at its place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

from .payloads import Json


class Joining(NamedTuple):
    """How the values of one field in several payloads are joined."""

    # Whether the texts of the field with this name are pieces of one text. Otherwise the last text counts.
    is_piece: Callable[[str], bool]
    # Whether the items of lists come in pieces too.
    joins_items: bool = False


_LABELS = frozenset({"id", "index", "type", "role", "name", "format", "object"})  # Some servers repeat them.
_TEXTS_OF_REASONING = frozenset({"text", "summary", "thinking"})  # The others, such as the signature, have one value.

# How to join the fields of choices, those of deltas, and those of signed reasoning.
OF_CHOICES = Joining(is_piece=lambda name: False)
OF_DELTAS = Joining(is_piece=lambda name: name not in _LABELS)
OF_REASONING = Joining(is_piece=lambda name: name in _TEXTS_OF_REASONING, joins_items=True)

_MAX_DEPTH = 20  # Objects that are nested more deeply are not merged: the last one counts.


class KeptFields:
    """Fields with all their values, in the order of arrival."""

    def __init__(self) -> None:
        self._values: dict[str, list[Any]] = defaultdict(list)

    def __bool__(self) -> bool:
        return bool(self._values)

    def add(self, name: str, value: Any) -> None:
        """Add a value. A null is no value."""
        if value is not None:
            self._values[name].append(value)

    def replace(self, name: str, value: Any) -> None:
        """Set the only value."""
        self._values[name] = [value]

    def joined(self, how: Joining) -> Json:
        """Each field with one value, see `_joined`."""
        return {name: _joined(values, how, how.is_piece(name)) for name, values in self._values.items()}


def _joined(values: list[Any], how: Joining, is_text: bool = False, depth: int = 0) -> Any:
    """One value for several: texts in pieces and lists are concatenated, objects are merged; else the last one counts.

    Values of different types become a list.
    """
    if isinstance(values[0], list) and how.joins_items and all(isinstance(value, list) for value in values):
        return _joined_items([item for value in values for item in value], how, depth)
    if len(values) == 1 or depth == _MAX_DEPTH:
        return values[-1]
    if len(set(map(type, values))) > 1:
        return values
    if is_text and isinstance(values[0], str):
        return "".join(values)
    if isinstance(values[0], list):
        return [item for value in values for item in value]
    if not isinstance(values[0], dict):
        return values[-1]
    merged: dict[str, list[Any]] = {}
    for name, item in (pair for value in values for pair in value.items()):
        if merged.get(name, [None]) == [None]:
            merged[name] = [item]
        elif item not in (None, ""):
            merged[name].append(item)
    return {name: _joined(items, how, how.is_piece(name), depth + 1) for name, items in merged.items()}


def _joined_items(items: list[Any], how: Joining, depth: int) -> list[Any]:
    """The items of lists that come in pieces.

    An item continues the last one of its type and index, unless that has another id or a signature, which ends an item.
    Encrypted items, which have `data`, are whole.
    """
    groups: list[list[Any]] = []  # The pieces of each item.
    newest: dict[tuple[str, str], list[Any]] = {}  # The newest item of each type and index that may continue.
    for item in items:
        if not isinstance(item, dict) or "data" in item:
            groups.append([item])
            continue
        label = (str(item.get("type")), str(item.get("index")))
        if label not in newest or item.get("id") not in (None, newest[label][0].get("id")):
            newest[label] = []
            groups.append(newest[label])
        newest[label].append(item)
        if item.get("signature"):
            del newest[label]
    return [_joined(group, how, depth=depth + 1) for group in groups]
