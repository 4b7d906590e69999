"""Reads arguments that are written one by one, and emits them as a JSON object."""

from __future__ import annotations

import json
import re

from ...core.scan import Cursor, Markers, Reader
from ...schema.types import STRING
from .argument_format import ArgumentFormat, stated_types
from .bare_text import text_json, value_json
from .call_format import CallFormat
from .calls import Calls
from .values import read_container


class ArgumentReader:
    """Reads the arguments of one call.

    In the family of Qwen3-Coder, the texts after the name of the tool, and what is emitted for each:

        <parameter=city>Rome</parameter>     {"city": "Rome"
        <parameter=days>3</parameter>        , "days": 3
        </function>                          }

    Text that is neither an argument nor the end of a call ends the call, and is content. If the output is cut, the call
    stays open. Some models leave out the end tags of values. So the end of the call ends a text, too, if the model
    ends the output there; otherwise it is text of the value. It ends any other value, and so does the next argument.
    """

    def __init__(self, format: CallFormat, arguments: ArgumentFormat, cursor: Cursor, calls: Calls, tool: str) -> None:
        self._format = arguments
        self._cursor = cursor
        self._calls = calls
        self._tool = tool
        self._next_call = format.next_opener
        # The markers that end the arguments. Models leave out some of them, so the next call ends them, too.
        self._call_ends = (*format.ends, self._next_call)
        self._call_end, *around = format.ends
        self._outer_ends = tuple(around) or ("",)

    def read(self) -> Reader[None]:
        """Begin the call and read the arguments. Raises Mismatch unless an argument or the end of the call is next."""
        calls, cursor = self._calls, self._cursor
        next_argument = self._format.before_key
        markers = (next_argument, *self._call_ends)
        marker: str | None = yield from cursor.expect(*markers)
        calls.start(self._tool)
        cursor.commit()
        before = "{"
        while marker == next_argument:
            name = yield from self._name()
            if name is None:
                return
            calls.arguments(f"{before}{json.dumps(name, ensure_ascii=False)}: ")
            before = ", "
            end = yield from self._value(name)
            if end is None:
                return
            marker = end if end in markers else (yield from cursor.read_end(*markers))
            if marker is not None and marker not in markers:  # The output ends, perhaps inside a marker.
                return
        calls.arguments("{}" if before == "{" else "}")
        calls.is_open = False
        if marker == self._next_call:
            cursor.unread(marker)

    def _name(self) -> Reader[str | None]:
        """Read a name up to `after_key`. Returns None if the output ends before that."""
        name, marker = yield from self._cursor.read_until(self._format.after_key)
        return None if marker is None else name.strip()

    def _value(self, name: str) -> Reader[str | None]:
        """Emit the value of the argument `name`. Returns the marker that ends it; None: the output ends."""
        format, cursor = self._format, self._cursor
        types = self._calls.types_at(self._tool, name)
        ends = (format.after_value, f"\n{format.after_value}") if format.value_on_lines else (format.after_value,)
        if format.before_value:
            attributes, marker = yield from cursor.read_until(format.before_value, *ends)
            if marker in ends:
                # The model left out the text before the value.
                self._calls.arguments(value_json(attributes.strip("\n"), types))
                return marker
            types = stated_types(attributes) or types
        if format.value_on_lines:
            yield from cursor.read_one_of("\n")
        quote, end_quote = format.quotes
        if quote and (yield from cursor.read_one_of(quote)):
            return (yield from self._string(*(end_quote + space + format.after_value for space in ("", " ", "\n"))))
        return (yield from self._bare_value(types, *ends))

    def _bare_value(self, types: frozenset[str], *ends: str) -> Reader[str | None]:
        """Emit a value without quotes, as JSON of one of these types. Returns what `_value` does."""
        if types == STRING:
            return (yield from self._string(*ends))
        # Read an object or list by JSON syntax first, since its strings may contain an end marker.
        container, corrected = yield from read_container(self._cursor)
        if "string" not in types:  # No text of the value begins an argument or ends the call.
            ends = (*ends, self._format.before_key, self._call_end)
        text, marker = yield from self._cursor.read_until(*ends)
        json_text = corrected + text
        if marker is None and not self._cursor.is_cut and (end := self._end_of_call(text)):
            text, json_text = text[: end.start()], corrected + text[: end.start()]
            marker = self._call_end
        if marker:
            self._calls.arguments(value_json(container + text, types, json_text=json_text))
        return marker

    def _end_of_call(self, text: str) -> re.Match[str] | None:
        """The end of a call at the end of a text that has no further argument."""
        if self._format.before_key in text:
            return None
        outer = "|".join(map(re.escape, self._outer_ends))
        return re.search(rf"\n?{re.escape(self._call_end)}\s*(?:{outer})\Z", text.rstrip())

    def _string(self, *ends: str) -> Reader[str | None]:
        """Emit a value that must be a string, which can be streamed before its end is known."""
        self._calls.arguments('"')
        call_ends = (self._call_end, f"\n{self._call_end}")
        while marker := (yield from self._cursor.emit_until(Markers(*ends, *call_ends), self._emit, holds_space=False)):
            if marker in ends or (yield from self._output_ends_with(marker)):
                self._cursor.take(len(marker))
                self._calls.arguments('"')
                return marker if marker in ends else self._call_end
            self._emit(self._cursor.take(1))
        return None

    def _emit(self, text: str) -> None:
        """Emit a piece of a string."""
        self._calls.arguments(text_json(text))

    def _output_ends_with(self, call_end: str) -> Reader[bool]:
        """Whether the output ends with the end of a call, which is next."""
        cursor = self._cursor
        while True:
            rest = cursor.text[cursor.at + len(call_end) :].strip()
            if cursor.ended:
                return rest in self._outer_ends and not cursor.is_cut
            if not any(end.startswith(rest) for end in self._outer_ends):
                return False
            yield
