"""Reads arguments that are nested elements, those of MiniMax-M3, and emits them as a JSON object."""

from __future__ import annotations

import json
from typing import Optional

from ...core.scan import Cursor, Reader
from ...schema.types import STRING
from .argument_format import ArgumentFormat
from .argument_reader import ArgumentReader
from .call_format import CallFormat
from .calls import Calls

Path = tuple[Optional[str], ...]  # That of `Calls.types_at`.
_ITEM = "item"  # The name of the items of a list.
_MAX_DEPTH = 60  # The limit of nested elements: deeper than any real schema, and below Python's recursion limit.


class ElementReader(ArgumentReader):
    """Reads the arguments of one call.

    All tags have a prefix P. {"a": "text", "b": [1], "c": {"d": 2}} is written as

        P<a>textP</a>P<b>P<item>1P</item>P</b>P<c>P<d>2P</d>P</c>

    Models leave out end tags and write wrong names in them. So each end tag closes the innermost open element, the
    start tag of another element closes an element that has text, and the end of the call closes all.
    """

    def __init__(self, format: CallFormat, arguments: ArgumentFormat, cursor: Cursor, calls: Calls, tool: str) -> None:
        super().__init__(format, arguments, cursor, calls, tool)
        self._start = arguments.before_key  # P<
        self._end = arguments.after_value  # P</
        self._tags = (self._start, self._end, *self._call_ends)

    def _value(self, name: str) -> Reader[str | None]:
        return (yield from self._element((name,)))

    def _element(self, path: Path) -> Reader[str | None]:
        """Emit the value of the element at `path`, whose start tag was read. Returns the marker that ends it.

        The marker is one of `_tags`, and was read, of an end tag also the rest. None: the output ends.
        """
        types = self._calls.types_at(self._tool, *path)
        if types != STRING and len(path) < _MAX_DEPTH and (yield from self._begins_element()):
            return (yield from self._elements(types, path))
        marker = yield from self._bare_value(types, *self._tags)
        return (yield from self._whole_tag(marker))

    def _elements(self, types: frozenset[str], path: Path) -> Reader[str | None]:
        """Emit the elements inside the element at `path`, the first of which has begun. Returns what `_element` does.

        `types` are those that the schema allows for the element at `path`.
        """
        marker: str | None = self._start
        is_list, before = False, ""
        while marker == self._start:
            name = yield from self._name()
            if name is None:
                return None
            if not before:
                # A first element `item` begins a list. If the schema allows only an object, it is a field of this name.
                is_list = name == _ITEM and types != {"object"}
                before = "[" if is_list else "{"
            self._calls.arguments(before + ("" if is_list else json.dumps(name, ensure_ascii=False) + ": "))
            before = ", "
            marker = yield from self._element((*path, None if types == {"array"} else name))
            if marker == self._end:
                # Other text between elements is dropped.
                _, marker = yield from self._cursor.read_until(*self._tags)
                yield from self._whole_tag(marker)
        if marker:
            self._calls.arguments("]" if is_list else "}")
        return marker

    def _whole_tag(self, marker: str | None) -> Reader[str | None]:
        """Read the name in an end tag, if `marker` is the beginning of one. Returns `marker`."""
        if marker == self._end:
            yield from self._name()
        return marker

    def _begins_element(self) -> Reader[bool]:
        """Read white space and the beginning of a start tag; nothing if another text is next."""
        self._cursor.checkpoint()
        yield from self._cursor.read_run()
        if (yield from self._cursor.read_one_of(*self._tags)) == self._start:
            self._cursor.commit()
            return True
        self._cursor.rewind()
        return False
