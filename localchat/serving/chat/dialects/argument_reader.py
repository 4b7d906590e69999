"""Reads arguments that are written one by one, and emits them as a JSON object."""

from __future__ import annotations

import enum
import json
from typing import Optional, Union

from ...core.scan import Cursor, Markers, Reader
from ...schema.types import STRING
from .argument_format import ArgumentFormat, stated_types
from .bare_text import text_json, value_json
from .call_format import CallFormat
from .calls import Calls
from .values import read_container

_ITEM = "item"  # The name of list items that are elements.
Path = tuple[Optional[str], ...]  # That of `Calls.types_at`.
_MAX_DEPTH = 60  # The limit of nested elements: deeper than any real schema, and below Python's recursion limit.


class NoMarker(enum.Enum):
    """Why no marker ends an argument or an element."""

    OTHER_TEXT = "another text follows, which ends the call too"
    OUTPUT_END = "the output ends, perhaps inside a marker"


End = Union[str, NoMarker]
"""What ends an argument or an element: the marker, which was read, or that there is none."""


class ArgumentReader:
    """Reads the arguments of one call.

    Those of MiniMax-M3 are nested elements, with a prefix P before every tag. {"a": "text", "b": [1]} is written as

        P<a>textP</a>P<b>P<item>1P</item>P</b>

    Models leave out end tags. The call, and all that is open in it, ends at each of `call_ends`. In nested elements,
    where each tag has the prefix, a value ends at any tag.
    """

    def __init__(self, format: CallFormat, arguments: ArgumentFormat, cursor: Cursor, calls: Calls, tool: str) -> None:
        self._format = arguments
        self._cursor = cursor
        self._calls = calls
        self._tool = tool
        self._next_call = format.next_opener
        self._call_ends = (*format.ends, self._next_call)
        # The beginning of any end tag; "": values have no nested elements. A tag with another name is taken for that of
        # the innermost element.
        self._any_end = arguments.before_key + "/" if arguments.repeats_key else ""

    def read(self) -> Reader[None]:
        """Begin the call and read the arguments. Raises Mismatch unless an argument or the end of the call is next."""
        start = self._format.before_key
        end: End = yield from self._cursor.expect(start, *self._call_ends)
        self._calls.start(self._tool)
        self._cursor.commit()
        if end == start:
            end = yield from self._items(*self._call_ends, types=frozenset({"object"}))
        else:
            self._calls.arguments("{}")
        # Another text is content. If the output ends first, the call is cut.
        self._calls.is_open = end is NoMarker.OUTPUT_END
        if end == self._next_call:
            self._cursor.unread(end)

    def _items(self, *ends: str, types: frozenset[str], path: Path = ()) -> Reader[End]:
        """Emit the arguments, or the elements in an element, as an object or a list. Returns what ends them.

        The first `before_key` was read already. `ends` are the markers after the last item, `types` are those that the
        schema allows, `path` is that of `Calls.types_at`: empty for the arguments themselves.
        """
        next_item = self._format.before_key
        is_first, is_list = True, False
        end: End = next_item
        while end == next_item:
            name = (yield from self._cursor.read_until(self._format.after_key))[0].strip()
            # A first element `item` begins a list. If the schema allows only an object, it is a field of this name.
            is_list = is_list or (is_first and name == _ITEM and types != {"object"})
            key = "" if is_list else json.dumps(name, ensure_ascii=False) + ": "
            self._calls.arguments((("[" if is_list else "{") if is_first else ", ") + key)
            is_first = False
            end = yield from self._value(name, (*path, None if types == {"array"} else name))
            has_end_tag = end not in (next_item, *self._call_ends, NoMarker.OUTPUT_END)
            if has_end_tag:
                end = yield from self._after_item(*ends, is_element=bool(path))
        if end is not NoMarker.OUTPUT_END:
            self._calls.arguments("]" if is_list else "}")
        return end

    def _after_item(self, *ends: str, is_element: bool) -> Reader[End]:
        """Read the marker that follows an argument or element: that of the next one, or one of `ends`."""
        markers = (self._format.before_key, *ends)
        if is_element:
            # Other text between elements is dropped.
            _, marker = yield from self._cursor.read_until(*markers, self._any_end)
            return (yield from self._end(marker))
        marker = yield from self._cursor.read_end(*markers)
        if marker is None:
            return NoMarker.OTHER_TEXT
        return marker if marker in markers else NoMarker.OUTPUT_END

    def _end(self, marker: str | None) -> Reader[End]:
        """The end that a marker is, which was read. If it is the beginning of an end tag, read the rest of the tag."""
        if marker and marker == self._any_end:
            yield from self._cursor.read_until(self._format.after_key)
        return marker or NoMarker.OUTPUT_END

    def _value(self, name: str, path: Path) -> Reader[End]:
        """Emit the value of the argument or element `name`. Returns what ends it."""
        format, cursor = self._format, self._cursor
        types = self._calls.types_at(self._tool, *path)
        end, *other_ends = self._ends_of_value(name)
        if format.before_value:
            attributes, marker = yield from cursor.read_until(format.before_value, end, *other_ends)
            if marker in (end, *other_ends):
                # The model left out the text before the value.
                self._calls.arguments(value_json(attributes.strip("\n"), types))
                return (yield from self._end(marker))
            types = stated_types(attributes) or types
        if format.value_on_lines:
            yield from cursor.read_one_of("\n")
        quote, end_quote = format.quotes
        if quote and (yield from cursor.read_one_of(quote)):
            return (yield from self._string(*(end_quote + space + end for space in ("", " ", "\n"))))
        if types == STRING:
            return (yield from self._string(end, *other_ends))
        return (yield from self._value_or_text(end, *other_ends, types=types, path=path))

    def _ends_of_value(self, name: str) -> tuple[str, ...]:
        """The markers that end the value of this argument or element, its end tag first."""
        format = self._format
        if format.repeats_key:
            end = format.after_value + name + format.after_key
            return (end, format.before_key, *self._call_ends, self._any_end)
        return (format.after_value, f"\n{format.after_value}") if format.value_on_lines else (format.after_value,)

    def _value_or_text(self, end: str, *other_ends: str, types: frozenset[str], path: Path) -> Reader[End]:
        """Emit a value that may have any type: as JSON, as elements, or as text if it is neither."""
        # Read an object or list by JSON syntax first, since its strings may contain an end marker.
        container, corrected = yield from read_container(self._cursor)
        has_elements = self._format.repeats_key and not container and len(path) < _MAX_DEPTH
        if has_elements and (yield from self._begins_element()):
            return (yield from self._items(end, *self._call_ends, types=types, path=path))
        text, marker = yield from self._cursor.read_until(end, *other_ends)
        json_text = corrected + text
        self._calls.arguments(value_json(container + text, types, json_text=json_text) if marker else json_text)
        return (yield from self._end(marker))

    def _string(self, *ends: str) -> Reader[End]:
        """Emit a value that must be a string, which can be streamed before its end is known."""
        self._calls.arguments('"')
        marker = yield from self._cursor.emit_until(
            Markers(*ends), lambda text: self._calls.arguments(text_json(text)), holds_space=False
        )
        if marker:
            self._cursor.take(len(marker))
            self._calls.arguments('"')
        return (yield from self._end(marker))

    def _begins_element(self) -> Reader[bool]:
        """Read white space and the start of an element; nothing if another text is next."""
        start = self._format.before_key
        self._cursor.checkpoint()
        yield from self._cursor.read_run()
        if (yield from self._cursor.read_one_of(start, self._any_end, *self._call_ends)) == start:
            self._cursor.commit()
            return True
        self._cursor.rewind()
        return False
