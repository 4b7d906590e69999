"""Tool calls in XML-like tags, with the value of each argument as bare text. The parser converts arguments to JSON.

The schema of the tool determines the types of values. A value that must be a string is streamed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Callable

from ...core.events import ContentDelta, Event
from .call_layout import A_BREAK, ALL_TYPES, STRING, ArgumentsLayout, CallLayout, ValueLayout
from .call_style import CallStyle
from .calls import Calls
from .json_scan import maybe_nested
from .named_calls import json_arguments
from .scan import (
    Cursor,
    Markers,
    Reader,
    emit_until,
    is_next,
    read_end,
    read_marker,
    read_one_of,
    read_space,
    read_until,
)
from .values import parameter_types, text_json, value_json


@dataclass(frozen=True)
class TaggedCalls(CallStyle):
    """Calls in the tags of one family."""

    call: str
    """The text before the name of the tool."""
    name_end: str
    """The text after the name of the tool."""
    key: str
    """The text before the name of an argument."""
    key_end: str
    """The text after the name of an argument."""
    value_ends: tuple[str, ...]
    """The texts that may end a value. Grammars and written calls use the last one."""
    call_end: str
    """The text at the end of a call."""
    attributes_end: str = ""
    """The end of attributes after `name_end`. "": there are no attributes."""
    attributes: str = ""
    """The attributes in written calls and grammars, if the template prints any."""
    value: str = ""
    """The text before a value, with attributes between `key_end` and this text. "": values follow `key_end`."""
    around: tuple[tuple[str, str], ...] = ()
    """Pairs of tags that may be around all calls."""
    is_around_each: bool = False
    """Each call has its own pair of these tags, instead of one pair around all calls."""
    is_on_lines: bool = False
    """Values are on separate lines. One line break before a value is not part of the value."""
    quotes: tuple[str, str] | None = None
    """Tags that may be around a string value. They are not part of the value."""
    attribute_types: Callable[[str], frozenset[str] | None] = lambda attributes: None
    """Returns the JSON types that the attributes of a value state; None if they state none."""
    typed_values: tuple[tuple[frozenset[str], str], ...] = ()
    """The attributes between a name and its value, for values of these JSON types."""
    is_json: bool = False
    """Grammars and written calls have the arguments as one JSON object; tags are only parsed."""

    @property
    def openers(self) -> tuple[str, ...]:
        return (*(start for start, _ in self.around), self.call)

    @property
    def layouts(self) -> tuple[CallLayout, ...]:
        within = [self._layout(*tags) for tags in self.around]
        # Some models leave out the tags around calls, so calls without them are allowed where the template has them.
        bare = self._layout("", "")
        return (*within, *(replace(bare, template_text=start) for start, _ in self.around or (("", ""),)))

    def _layout(self, start: str, end: str) -> CallLayout:
        begin, end = start and start + A_BREAK, end and A_BREAK + end
        is_each = self.is_around_each
        return CallLayout(
            opener=start or self.call,
            begin="" if is_each else begin,
            before_name=(begin if is_each else "") + self.call,
            before_arguments=self.name_end + self.attributes + self.attributes_end,
            after_call=A_BREAK + self.call_end + (end if is_each else ""),
            separator=A_BREAK,
            end="" if is_each else end,
            json_name=False,
            template_text=start,
            arguments=None if self.is_json else self.argument_layout,
        )

    @property
    def argument_layout(self) -> ArgumentsLayout:
        """The layout of arguments in grammars and written calls."""
        middle = self.key_end + (A_BREAK + self.value if self.value else "")
        return ArgumentsLayout(
            before_key=A_BREAK + self.key,
            after_key="" if self.typed_values else middle,
            values=self._value_layouts(),
            names=r'[^\s<>"]+',
            on_lines=self.is_on_lines,
        )

    def _value_layouts(self) -> tuple[ValueLayout, ...]:
        end = self.value_ends[-1]
        if self.typed_values:
            return tuple(
                ValueLayout(types, start, end, end if types == STRING else "") for types, start in self.typed_values
            )
        if self.quotes is None:
            return (ValueLayout(ALL_TYPES, "", end, end),)
        quote, quoted_end = self.quotes[0], self.quotes[1] + end
        quoted = ValueLayout(STRING, quote, quoted_end, quoted_end, names_type=False)
        return (quoted, ValueLayout(ALL_TYPES, "", end, end, not_start=quote))

    def read(self, cursor: Cursor, calls: Calls, opener: str) -> Reader[bool]:
        if opener != self.call:
            return (yield from self._all(cursor, calls))
        if not (yield from self._call(cursor, calls)):
            return False
        # Some models leave out the start tag around all calls, and generate the end tag.
        yield from read_end(cursor, *(end for _, end in self.around))
        return True

    def _all(self, cursor: Cursor, calls: Calls) -> Reader[bool]:
        """Read the calls after a start tag of `around`."""
        is_call = False
        while True:
            yield from read_space(cursor)
            if is_call:
                cursor.begin()
            if (yield from read_one_of(cursor, self.call)) is None:
                break
            if not (yield from self._call(cursor, calls)):
                if is_call:
                    yield ContentDelta(cursor.end_record())
                return is_call
            is_call = True
        if is_call:
            yield from read_end(cursor, *(end for _, end in self.around))
        return is_call

    def _call(self, cursor: Cursor, calls: Calls) -> Reader[bool]:
        """Read a call, beginning with its name. It is a call if a tool has the name and a tag follows."""
        name = yield from self._name(cursor, calls)
        if name is None:
            return False
        if (yield from is_next(cursor, "{")):
            yield from json_arguments(cursor, calls, name, self.call_end)
            return True
        tag = yield from read_one_of(cursor, self.key, self.call_end)
        if tag is None:
            return False
        yield calls.start(name)
        cursor.drop_record()
        opening = "{"
        while tag == self.key:
            is_end = yield from self._argument(cursor, calls, name, opening)
            opening = ", "
            tag = self.call_end if is_end else (yield from read_end(cursor, self.key, self.call_end))
        if tag in (None, self.call_end):
            # Any other text ends the call as well, and is content.
            yield calls.arguments("{}" if opening == "{" else "}")
            calls.close()
        return True

    def _name(self, cursor: Cursor, calls: Calls) -> Reader[str | None]:
        """Read the name of an offered tool and the text after it; None if another text follows."""
        yield from read_space(cursor)
        name = yield from read_one_of(cursor, *calls.offered)
        if name is None or (self.name_end and (yield from read_one_of(cursor, self.name_end)) is None):
            return None
        if self.attributes_end:
            yield from read_until(cursor, Markers(self.attributes_end))
        yield from read_space(cursor)
        return name

    def _argument(self, cursor: Cursor, calls: Calls, name: str, opening: str) -> Reader[bool]:
        """Read an argument, beginning with its name. Returns whether the end of the call was read, too."""
        key, _ = yield from read_until(cursor, Markers(self.key_end))
        types = parameter_types(calls.schema(name), key.strip())
        if self.value:
            attributes, mark = yield from read_until(cursor, Markers(self.value, *self.value_ends))
            types = self.attribute_types(attributes) or types
        yield calls.arguments(f"{opening}{json.dumps(key.strip(), ensure_ascii=False)}: ")
        ends = self.value_ends
        if self.value and mark in ends:
            # The model left out the text before the value.
            yield calls.arguments(value_json(attributes.strip("\n"), types))
            return False
        if self.is_on_lines:
            yield from read_one_of(cursor, "\n")
        if self.quotes and (yield from read_one_of(cursor, self.quotes[0])):
            ends = tuple(self.quotes[1] + end for end in ends)
        if types == STRING:
            # A value that must be a string can be streamed before its end is known.
            yield from _text_value(cursor, calls, ends)
        else:
            # Read an object or list by JSON syntax first, since its strings may contain an end marker.
            nested = yield from maybe_nested(cursor)
            rest, end = yield from read_until(cursor, Markers(*ends))
            yield calls.arguments(value_json(nested + rest, types) if end else nested + rest)
        return False


def _text_value(cursor: Cursor, calls: Calls, ends: tuple[str, ...]) -> Reader[None]:
    """Emit a value that is a string, up to one of the markers `ends`."""

    def piece(text: str) -> Event:
        return calls.arguments(text_json(text))

    yield calls.arguments('"')
    end = yield from emit_until(cursor, Markers(*ends), piece, holds_space=False)
    if end:
        read_marker(cursor, end)
        yield calls.arguments('"')
