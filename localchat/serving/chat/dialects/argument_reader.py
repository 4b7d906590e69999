"""Reads arguments that are written one by one, and emits them as a JSON object."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from ...core.scan import Cursor, Markers, Reader
from ...schema.types import STRING, types_at
from .bare_text import text_json, value_json
from .call_format import ArgumentFormat
from .calls import Calls
from .values import read_container

_ATTRIBUTE = re.compile(r'\b(type|string)="(\w+)"')  # The attributes that state the type of a value.
_ITEM = "item"  # The name of list items that are elements.
_MAX_DEPTH = 60  # The limit of nested elements: deeper than any real schema, and below Python's recursion limit.


@dataclass(frozen=True)
class ArgumentReader:
    """Reads the arguments of one call.

    Those of MiniMax-M3 are nested elements, with a prefix P before every tag. {"a": "text", "b": [1]} is written as

        P<a>textP</a>P<b>P<item>1P</item>P</b>
    """

    format: ArgumentFormat
    cursor: Cursor
    calls: Calls
    tool_name: str
    call_end: str  # The marker after the arguments.

    def read(self) -> Reader[None]:
        """Begin the call and read the arguments. Raises Mismatch unless an argument or the end of the call is next."""
        marker: str | None = yield from self.cursor.expect(self.format.before_key, self.call_end)
        self.calls.start(self.tool_name)
        self.cursor.end_record()
        if marker == self.format.before_key:
            marker = yield from self._items(self.call_end, frozenset({"object"}))
        else:
            self.calls.arguments("{}")
        self.calls.is_open = marker not in (None, self.call_end)  # Any other text ends the call as well: it is content.

    def _items(self, end: str, types: frozenset[str], *path: str | None) -> Reader[str | None]:
        """Emit the arguments, or the elements in an element, as an object or a list.

        The first `before_key` was read already. `end` is the marker after the last item, `types` are those that the
        schema allows, `path` is that of `types_at`. Returns the marker that ends the items; None: another text follows;
        "" or a part of a marker: the output ends.
        """
        start = self.format.before_key
        # Any other end tag ends the items too, since models leave out end tags.
        ends = (end, self.call_end, start + "/")
        before, is_list = "", False
        marker: str | None = start
        while marker == start:
            name = (yield from self.cursor.read_until(self.format.after_key))[0].strip()
            # A first element `item` begins a list. If the schema allows only an object, it is a field of this name.
            is_list = is_list or (not before and name == _ITEM and types != {"object"})
            before = ", " if before else "[" if is_list else "{"
            self.calls.arguments(before if is_list else f"{before}{json.dumps(name, ensure_ascii=False)}: ")
            marker = yield from self._value(name, *path, None if types == {"array"} else name)
            if marker and marker != self.call_end and path:
                # Other text between elements is dropped.
                marker = (yield from self.cursor.read_until(start, *ends))[1] or ""
            elif marker and marker != self.call_end:
                marker = yield from self.cursor.read_end(start, *ends)
        if marker in (None, *ends):
            self.calls.arguments("]" if is_list else "}")
        return marker

    def _value(self, name: str, *path: str | None) -> Reader[str | None]:
        """Emit the value of the argument or element `name`. Returns the marker that ends it, or what `_items` returns.

        The end marker of the call may also end an element.
        """
        format, cursor = self.format, self.cursor
        types = types_at(self.calls.schemas[self.tool_name], *path)
        end = format.after_value + (name + format.after_key if format.repeats_key else "")
        ends: tuple[str, ...] = (end,)
        if format.repeats_key:
            ends = (end, self.call_end)
        elif format.value_on_lines:
            ends = (f"\n{end}", end)
        if format.before_value:
            attributes, marker = yield from cursor.read_until(format.before_value, *ends)
            if marker in ends:
                # The model left out the text before the value.
                self.calls.arguments(value_json(attributes.strip("\n"), types))
                return marker
            types = _stated_types(attributes) or types
        if format.value_on_lines:
            yield from cursor.read_one_of("\n")
        quote, end_quote = format.quotes
        if quote and (yield from cursor.read_one_of(quote)):
            return (yield from self._string(*(end_quote + space + end for space in ("", " ", "\n"))))
        if types == STRING:
            return (yield from self._string(*ends))
        # Read an object or list by JSON syntax first, since its strings may contain an end marker.
        json_text = yield from read_container(cursor)
        has_elements = format.repeats_key and not json_text and len(path) < _MAX_DEPTH
        if has_elements and (yield from self._begins_element()):
            return (yield from self._items(end, types, *path))
        text, marker = yield from cursor.read_until(*ends)
        self.calls.arguments(value_json(json_text + text, types) if marker else json_text + text)
        return marker or ""

    def _string(self, *ends: str) -> Reader[str]:
        """Emit a value that must be a string, which can be streamed before its end is known."""
        self.calls.arguments('"')
        marker = yield from self.cursor.emit_until(
            Markers(*ends), lambda text: self.calls.arguments(text_json(text)), holds_space=False
        )
        if marker:
            self.cursor.take(len(marker))
            self.calls.arguments('"')
        return marker or ""

    def _begins_element(self) -> Reader[bool]:
        """Read white space and the start of an element; nothing if another text is next."""
        start = self.format.before_key
        self.cursor.begin()
        yield from self.cursor.read_run()
        if (yield from self.cursor.read_one_of(start, start + "/")) == start:
            self.cursor.end_record()
            return True
        self.cursor.put_back()
        return False


def _stated_types(attributes: str) -> frozenset[str]:
    """The JSON types that the attributes of a value state; none if they state nothing."""
    attribute = _ATTRIBUTE.search(attributes)
    if attribute is None:
        return frozenset()
    if attribute[1] == "type":
        return frozenset({attribute[2]})
    return STRING if attribute[2] == "true" else frozenset()
