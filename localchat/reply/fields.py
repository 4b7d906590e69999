"""The fields of a response that the client does not interpret: they are kept, joined from their pieces. No I/O.

No field of a response is lost. A field that the client reads becomes an event and an attribute of the reply. Any other
field, and a known field with a value of a wrong type, is kept here and is in `Reply.raw`, at its place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
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

    def joined(self, joining: Joining) -> Json:
        """Each field with one value, see `_joined`."""
        return _joined_fields(self._values, joining, 0)


def _joined(values: list[Any], joining: Joining, is_piece: bool, depth: int) -> Any:
    """One value for several, by their type. Values of different types become a list.

    `is_piece`: texts are pieces of one text.
    """
    types = set(map(type, values))
    if depth >= _MAX_DEPTH:
        return values[-1]
    if types == {list}:
        items = [item for value in values for item in value]
        return _joined_items(items, joining, depth) if joining.joins_items else items
    if len(values) == 1:
        return values[0]
    if types == {dict}:
        return _merged(values, joining, depth)
    if types == {str} and is_piece:
        return "".join(values)
    return values[-1] if len(types) == 1 else values


def _joined_fields(fields: Mapping[str, list[Any]], joining: Joining, depth: int) -> Json:
    return {name: _joined(values, joining, joining.is_piece(name), depth) for name, values in fields.items()}


def _merged(objects: list[Json], joining: Joining, depth: int) -> Json:
    """One object with the fields of all."""
    fields: dict[str, list[Any]] = {}
    for name, value in (item for fields_of_one in objects for item in fields_of_one.items()):
        if name not in fields or fields[name] == [None]:  # A later value replaces a null.
            fields[name] = [value]
        elif value not in (None, ""):
            fields[name].append(value)
    return _joined_fields(fields, joining, depth + 1)


def _joined_items(items: list[Any], joining: Joining, depth: int) -> list[Any]:
    """The items of lists that come in pieces.

        items                                                                       joined
        {"type": "text", "text": "a"}, {"type": "text", "text": "b"}                {"type": "text", "text": "ab"}
        {"type": "text", "text": "a", "signature": "x"}, {"type": "text", ...}      both as they are

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
    return [_joined(group, joining, False, depth + 1) for group in groups]
