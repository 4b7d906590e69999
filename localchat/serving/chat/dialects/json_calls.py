"""Reads tool calls that are JSON objects with a name and arguments: one, several in a row, or a list.

Other orders of the fields, additional fields, and missing end markers are accepted, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...core.events import ContentDelta
from .calls import Calls
from .json_scan import decoded, read_value, stream_value
from .scan import Cursor, Markers, Reader, emit_until, is_next, read_end, read_marker, read_one_of, read_space

# Some models nest the name and the arguments in an object with this name.
_WRAPPER = "function"


@dataclass(frozen=True)
class JsonFields:
    """The names of the fields of a call."""

    name: str
    """The field with the name of the tool. "": the name is itself the name of the field with the arguments."""
    arguments: tuple[str, ...]
    """The fields that may have the arguments: some models use the name of another family."""
    id: str

    @classmethod
    def of(cls, call: str) -> JsonFields:
        """The fields in the text of a call format."""
        name, arguments, call_id = (
            re.search(rf'"(\w+)": {value}', call) for value in (r'"\$name"', r"\$args", r'"\$(?:id|n)"')
        )
        own = (arguments[1],) if arguments else ()
        return cls(name[1] if name else "", (*own, "arguments", "parameters"), call_id[1] if call_id else "id")

    def __contains__(self, field: str) -> bool:
        return field in (self.name, *self.arguments, self.id, _WRAPPER, "type")


def read_json_calls(
    cursor: Cursor, calls: Calls, fields: JsonFields, ends: tuple[str, ...], *, is_list: bool, is_strict: bool
) -> Reader[bool]:
    """Parse calls up to one of the markers `ends`. Returns whether there is one.

    With `is_strict`, an object with any other field is not a call. It may be JSON content, which is then streamed
    without delay.
    """
    yield from read_space(cursor)
    is_list = is_list or (yield from read_one_of(cursor, "[")) is not None
    is_call = False
    while True:
        yield from read_space(cursor)
        if not (yield from is_next(cursor, "{")):
            break
        if is_call:
            cursor.begin()
        is_complete = yield from _CallObject(cursor, calls, fields, is_strict=is_strict).read()
        if is_complete is None and is_call:
            yield ContentDelta(cursor.end_record())
        if is_complete is False:
            yield from raw_arguments(cursor, calls, *ends)
        if not is_complete:
            return is_call or is_complete is False
        is_call = True
        yield from read_space(cursor)
        yield from read_one_of(cursor, ",", ";")
    if is_call:
        if is_list:
            yield from read_end(cursor, "]")
        yield from read_end(cursor, *ends)
    return is_call


class _CallObject:
    """Reads one call object: the name and arguments in either order. Other fields are skipped."""

    def __init__(self, cursor: Cursor, calls: Calls, fields: JsonFields, *, is_strict: bool) -> None:
        self._cursor = cursor
        self._calls = calls
        self._names = fields
        self._is_strict = is_strict
        self._is_wrapped = False
        self._has_started = False
        self._has_arguments = False
        self._id: str | None = None
        # Arguments that precede the name. They are emitted after the start of the call.
        self._held = ""

    def read(self) -> Reader[bool | None]:
        """Read from the opening brace to the closing one.

        Returns whether the call is complete; None if the object is not a call. Then no event was emitted.
        """
        complete = yield from self._fields()
        if not self._has_started:
            return None
        if complete:
            if not self._has_arguments:
                yield self._calls.arguments("{}")
            self._calls.close()
        return complete

    def _fields(self) -> Reader[bool]:
        separator = yield from read_one_of(self._cursor, "{")
        while separator in ("{", ","):
            yield from read_space(self._cursor)
            if (yield from read_one_of(self._cursor, "}")):
                return True
            if self._has_started:
                self._cursor.begin()
            complete = yield from self._field()
            if self._has_started:
                broken = self._cursor.end_record()
                # Broken JSON before the name is content. After the name, it is emitted as arguments.
                if broken and not complete:
                    yield self._calls.arguments(broken)
            if not complete:
                return False
            yield from read_space(self._cursor)
            separator = yield from read_one_of(self._cursor, ",", "}")
        return separator == "}"

    def _field(self) -> Reader[bool]:
        raw, _ = yield from read_value(self._cursor)
        key = decoded(raw)
        yield from read_space(self._cursor)
        if not isinstance(key, str) or (self._is_strict and key not in self._names):
            return False
        if (yield from read_one_of(self._cursor, ":")) is None:
            return False
        yield from read_space(self._cursor)
        if not self._names.name and not self._has_started:
            return (yield from self._start(key)) and (yield from self._arguments())
        if key == self._names.name and not self._has_started:
            raw, _ = yield from read_value(self._cursor)
            return (yield from self._start(decoded(raw)))
        if key in self._names.arguments and not self._has_arguments:
            return (yield from self._arguments())
        if key == _WRAPPER and not self._is_wrapped and (yield from is_next(self._cursor, "{")):
            self._is_wrapped = True
            return (yield from self._fields())
        raw, complete = yield from read_value(self._cursor)
        if key == self._names.id:
            call_id = decoded(raw)
            self._id = call_id if isinstance(call_id, str) else None
        return complete

    def _start(self, name: object) -> Reader[bool]:
        """Emit the start of the call and the arguments so far. Returns False if no tool has the name."""
        if not isinstance(name, str) or not self._calls.may_call(name):
            return False
        self._has_started = True
        yield self._calls.start(name, self._id)
        self._cursor.drop_record()
        if self._held:
            yield self._calls.arguments(self._held)
        return True

    def _arguments(self) -> Reader[bool]:
        self._has_arguments = True
        is_text = yield from is_next(self._cursor, '"')
        if self._has_started:
            self._cursor.drop_record()
            if not is_text:
                return (yield from stream_value(self._cursor, self._calls.arguments))
        raw, complete = yield from read_value(self._cursor)
        text = raw
        if is_text and complete:
            # Arguments may be JSON within a JSON string. Emit the decoded string.
            value = decoded(raw)
            text = raw if value is None else value if value.strip() else "{}"
        if self._has_started:
            yield self._calls.arguments(text)
        else:
            self._held = text
        return complete


def json_arguments(
    cursor: Cursor, calls: Calls, name: str, *ends: str, call_id: str | None = None
) -> Reader[str | None]:
    """Emit a call whose name was read, and read its arguments, one JSON object. Returns the marker after it, if any."""
    yield calls.start(name, call_id)
    cursor.drop_record()
    yield from read_space(cursor)
    if not (yield from is_next(cursor, "{")):
        end = yield from read_one_of(cursor, *ends)
        if end:
            yield calls.arguments("{}")
            calls.close()
        elif cursor.left():
            end = yield from raw_arguments(cursor, calls, *ends)
        return end
    if (yield from stream_value(cursor, calls.arguments)):
        calls.close()
        return (yield from read_end(cursor, *ends))
    return (yield from raw_arguments(cursor, calls, *ends))


def raw_arguments(cursor: Cursor, calls: Calls, *ends: str) -> Reader[str | None]:
    """Emit the text of a broken call as its arguments, up to one of the markers `ends`. Returns the marker, if any."""
    end = yield from emit_until(cursor, Markers(*ends), calls.arguments)
    if end:
        read_marker(cursor, end)
        calls.close()
    return end
