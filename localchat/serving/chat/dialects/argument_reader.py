"""Reads arguments that are written one by one, and emits them as a JSON object."""

from __future__ import annotations

import enum
import json
import re
from dataclasses import dataclass
from typing import Union

from ...core.scan import Cursor, Markers, Reader
from ...schema.types import STRING, types_at
from .bare_text import text_json, value_json
from .call_format import ArgumentFormat
from .calls import Calls
from .values import read_container

_ATTRIBUTE = re.compile(r'\b(type|string)="(\w+)"')  # The attributes that state the type of a value.
_ITEM = "item"  # The name of list items that are elements.
_MAX_DEPTH = 60  # The limit of nested elements: deeper than any real schema, and below Python's recursion limit.


class NoMarker(enum.Enum):
    """Why no marker ends an argument or an element."""

    OTHER_TEXT = "another text follows, which ends the call too"
    OUTPUT_END = "the output ends, perhaps inside a marker"


End = Union[str, NoMarker]
"""What ends an argument or an element: the marker, which was read, or that there is none."""


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
        end: End = yield from self.cursor.expect(self.format.before_key, self.call_end)
        self.calls.start(self.tool_name)
        self.cursor.end_record()
        if end == self.format.before_key:
            end = yield from self._items(self.call_end, frozenset({"object"}))
        else:
            self.calls.arguments("{}")
        # Another text is content. If the output ends first, the call is cut.
        self.calls.is_open = end not in (self.call_end, NoMarker.OTHER_TEXT)

    def _items(self, last_end: str, types: frozenset[str], *path: str | None) -> Reader[End]:
        """Emit the arguments, or the elements in an element, as an object or a list. Returns what ends them.

        The first `before_key` was read already. `last_end` is the marker after the last item, `types` are those that
        the schema allows, `path` is that of `types_at`: empty for the arguments themselves.
        """
        start = self.format.before_key
        # Any other end tag ends the items too, since models leave out end tags.
        ends = (last_end, self.call_end, start + "/")
        before, is_list = "", False
        end: End = start
        while end == start:
            name = (yield from self.cursor.read_until(self.format.after_key))[0].strip()
            # A first element `item` begins a list. If the schema allows only an object, it is a field of this name.
            is_list = is_list or (not before and name == _ITEM and types != {"object"})
            before = ", " if before else "[" if is_list else "{"
            self.calls.arguments(before if is_list else f"{before}{json.dumps(name, ensure_ascii=False)}: ")
            end = yield from self._value(name, *path, None if types == {"array"} else name)
            if isinstance(end, str) and end != self.call_end:
                end = yield from self._after_item(start, *ends, is_element=bool(path))
        if end in (*ends, NoMarker.OTHER_TEXT):
            self.calls.arguments("]" if is_list else "}")
        return end

    def _after_item(self, *markers: str, is_element: bool) -> Reader[End]:
        """Read the marker that follows an argument or element."""
        if is_element:
            # Other text between elements is dropped.
            _, next_marker = yield from self.cursor.read_until(*markers)
            return next_marker or NoMarker.OUTPUT_END
        marker = yield from self.cursor.read_end(*markers)
        if marker is None:
            return NoMarker.OTHER_TEXT
        return marker if marker in markers else NoMarker.OUTPUT_END

    def _value(self, name: str, *path: str | None) -> Reader[End]:
        """Emit the value of the argument or element `name`. Returns what ends it.

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
        return marker or NoMarker.OUTPUT_END

    def _string(self, *ends: str) -> Reader[End]:
        """Emit a value that must be a string, which can be streamed before its end is known."""
        self.calls.arguments('"')
        marker = yield from self.cursor.emit_until(
            Markers(*ends), lambda text: self.calls.arguments(text_json(text)), holds_space=False
        )
        if marker:
            self.cursor.take(len(marker))
            self.calls.arguments('"')
        return marker or NoMarker.OUTPUT_END

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
