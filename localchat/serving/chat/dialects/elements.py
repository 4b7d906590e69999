"""Reads arguments that are nested elements, as MiniMax-M3 generates them.

P<invoke name="f">P<a>textP</a>P<b>P<item>1P</item>P</b>P</invoke>, where P is a prefix of every tag
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from .call_layout import STRING, ArgumentsLayout, bare
from .calls import Calls, stream_text
from .notation import maybe_nested
from .scan import Cursor, Reader, Silent, read_until
from .values import parameter_types, value_json

# The limit of nesting: deeper than any real schema, and below Python's recursion limit.
_MAX_DEPTH = 60


class _End(Enum):
    """What ended a value."""

    VALUE = auto()  # Its end tag.
    CALL = auto()  # The end tag of the call.
    TEXT = auto()  # The end of the output.


class Elements:
    """Reads the elements of one argument, whose start tag was read."""

    def __init__(
        self, cursor: Cursor, calls: Calls, schema: Mapping[str, Any], layout: ArgumentsLayout, call_end: str
    ) -> None:
        self._cursor = cursor
        self._calls = calls
        self._schema = schema
        self._item = layout.item
        self._open = bare(layout.before_key)
        self._call_end = call_end.removeprefix(self._open).removesuffix(">")

    def read(self, name: str) -> Reader[bool]:
        """Emit the value of the argument. Returns whether the end of the call was read, too."""
        return (yield from self._value((name,))) is _End.CALL

    def _value(self, path: tuple[str | None, ...]) -> Reader[_End]:
        """Emit a value as JSON of the type in the schema. Returns what ended it."""
        cursor, calls = self._cursor, self._calls
        types = parameter_types(self._schema, *path)
        if types == STRING:
            if not (yield from stream_text(cursor, calls, self._open + "/")):
                return _End.TEXT
            end, _ = yield from read_until(cursor, ">")
            return _End.CALL if "/" + end == self._call_end else _End.VALUE
        text = yield from maybe_nested(cursor)
        text += (yield from read_until(cursor, self._open))[0]
        tag = yield from self._tag()
        if isinstance(tag, str) and len(path) <= _MAX_DEPTH:
            return (yield from self._children(path, tag))
        if tag is _End.TEXT:
            yield calls.arguments(text)
        elif not text.strip() and types in ({"object"}, {"array"}):
            yield calls.arguments("{}" if types == {"object"} else "[]")
        else:
            yield calls.arguments(value_json(text, types))
        return _End.VALUE if isinstance(tag, str) else tag

    def _children(self, path: tuple[str | None, ...], tag: str) -> Reader[_End]:
        """Emit child elements, of which the first has this tag: as a list if it is an item, else as an object.

        If the schema allows no list, an item is a field with this name.
        """
        types = parameter_types(self._schema, *path)
        is_list = tag == self._item and types != {"object"}
        before, name, end = ("[" if is_list else "{"), tag, _End.VALUE
        while end is _End.VALUE:
            yield self._calls.arguments(before if is_list else f"{before}{json.dumps(name, ensure_ascii=False)}: ")
            before = ", "
            end = yield from self._value((*path, None if types == {"array"} else name))
            if end is _End.VALUE:
                yield from read_until(self._cursor, self._open)
                found = yield from self._tag()
                if not isinstance(found, str):
                    end = found
                    break
                name = found
        if end is not _End.TEXT:
            yield self._calls.arguments("]" if is_list else "}")
        return end

    def _tag(self) -> Silent[str | _End]:
        """Read a tag after its opening bracket. Returns the name of a start tag, or what an end tag ends."""
        text, bracket = yield from read_until(self._cursor, ">")
        if bracket is None:
            return _End.TEXT
        if text == self._call_end:
            return _End.CALL
        return _End.VALUE if text.startswith("/") else text
