"""Reads tool calls that are JSON objects with a name and arguments.

Other orders of the fields, additional fields, and missing end markers are accepted, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .call_layout import CallLayout
from .calls import Calls
from .notation import JSON, Notation, decoded, read_value, value_pieces
from .scan import Cursor, Markers, Reader, emit, emit_until, is_next, read_end, read_marker, read_one_of, read_run

# Some models nest the name and the arguments in an object with this name.
_WRAPPER = "function"


@dataclass(frozen=True)
class _Fields:
    """The names of the fields of a call."""

    name: str
    """The field with the name of the tool. "": the name is itself the name of the field with the arguments."""
    arguments: tuple[str, ...]
    """The fields that may have the arguments: some models use the name of another family."""
    id: str

    @classmethod
    def of(cls, layout: CallLayout) -> _Fields:
        name = re.search(r'"(\w+)": "\Z', layout.before_name)
        arguments = re.search(r'"(\w+)": \Z', layout.before_arguments)
        call_id = re.search('"(\\w+)": "[\x00\x04]"', layout.before_name + layout.after_call)
        own = (arguments[1],) if arguments else ()
        return cls(name[1] if name else "", (*own, "arguments", "parameters"), call_id[1] if call_id else "id")

    def __contains__(self, field: str) -> bool:
        return field in (self.name, *self.arguments, self.id, _WRAPPER, "type")


def read_json_call(cursor: Cursor, calls: Calls, layout: CallLayout) -> Reader[bool | None]:
    """Read one call object: the name and arguments in either order. Other fields are skipped.

    Returns whether the call is complete; None if the next text is not a call. Then no event was emitted. If the calls
    have no opener, an object with any other field is not a call: it may be JSON content, which is then streamed
    without delay.
    """
    if not (yield from is_next(cursor, "{")):
        return None
    return (yield from _JsonCall(cursor, calls, _Fields.of(layout), is_strict=not layout.opener).read())


class _JsonCall:
    def __init__(self, cursor: Cursor, calls: Calls, names: _Fields, *, is_strict: bool) -> None:
        self._cursor = cursor
        self._calls = calls
        self._names = names
        self._is_strict = is_strict
        self._is_wrapped = False
        self._has_started = False
        self._has_arguments = False
        self._id: str | None = None
        # Arguments that precede the name. They are emitted after the start of the call.
        self._held = ""

    def read(self) -> Reader[bool | None]:
        is_complete = yield from self._fields()
        if not self._has_started:
            return None
        if is_complete:
            if not self._has_arguments:
                yield self._calls.arguments("{}")
            self._calls.close()
        return is_complete

    def _fields(self) -> Reader[bool]:
        cursor = self._cursor
        separator = yield from read_one_of(cursor, "{")
        while separator in ("{", ","):
            yield from read_run(cursor)
            if (yield from read_one_of(cursor, "}")):
                return True
            if self._has_started:
                cursor.begin()
            is_complete = yield from self._field()
            if self._has_started:
                broken = cursor.end_record()
                # Broken JSON before the name is content. After the name, it is emitted as arguments.
                if broken and not is_complete:
                    yield self._calls.arguments(broken)
            if not is_complete:
                return False
            yield from read_run(cursor)
            separator = yield from read_one_of(cursor, ",", "}")
        return separator == "}"

    def _field(self) -> Reader[bool]:
        cursor, names = self._cursor, self._names
        key = decoded((yield from read_value(cursor))[0])
        yield from read_run(cursor)
        if not isinstance(key, str) or (self._is_strict and key not in names):
            return False
        if (yield from read_one_of(cursor, ":")) is None:
            return False
        yield from read_run(cursor)
        if not names.name and not self._has_started:
            return (yield from self._start(key)) and (yield from self._arguments())
        if key == names.name and not self._has_started:
            return (yield from self._start(decoded((yield from read_value(cursor))[0])))
        if key in names.arguments and not self._has_arguments:
            return (yield from self._arguments())
        if key == _WRAPPER and not self._is_wrapped and (yield from is_next(cursor, "{")):
            self._is_wrapped = True
            return (yield from self._fields())
        raw, is_complete = yield from read_value(cursor)
        if key == names.id:
            call_id = decoded(raw)
            self._id = call_id if isinstance(call_id, str) else None
        return is_complete

    def _start(self, name: object) -> Reader[bool]:
        """Emit the start of the call and the arguments so far. Returns False if no tool has the name."""
        if not isinstance(name, str) or not self._calls.may_call(name):
            return False
        self._has_started = True
        yield self._calls.start(name, self._id)
        self._cursor.end_record()
        if self._held:
            yield self._calls.arguments(self._held)
        return True

    def _arguments(self) -> Reader[bool]:
        self._has_arguments = True
        is_text = yield from is_next(self._cursor, '"')
        if self._has_started:
            self._cursor.end_record()
            if not is_text:
                return (yield from emit(value_pieces(self._cursor), self._calls.arguments))
        raw, is_complete = yield from read_value(self._cursor)
        text = raw
        if is_text and is_complete:
            # Arguments may be JSON within a JSON string. Emit the decoded string.
            value = decoded(raw)
            text = raw if value is None else value if value.strip() else "{}"
        if self._has_started:
            yield self._calls.arguments(text)
        else:
            self._held = text
        return is_complete


def read_arguments(
    cursor: Cursor, calls: Calls, name: str, *ends: str, call_id: str | None = None, notation: Notation = JSON
) -> Reader[str | None]:
    """Emit a call whose name was read, and read its arguments, one object. Returns the marker after it, if any.

    The text of broken arguments is emitted as it is.
    """
    yield calls.start(name, call_id)
    cursor.end_record()
    yield from read_run(cursor)
    if notation.arguments or (yield from is_next(cursor, "{")):
        if (yield from emit(value_pieces(cursor, notation, *(() if notation.is_json else ends)), calls.arguments)):
            calls.close()
            return (yield from read_end(cursor, *ends))
    else:
        end = yield from read_one_of(cursor, *ends)
        if end:
            yield calls.arguments("{}")
            calls.close()
        if end or not cursor.left():
            return end
    end = yield from raw_arguments(cursor, calls, *ends)
    # A call counts as cut if its arguments were not JSON, so that only a part of them has been converted.
    calls.is_open = calls.is_open or not notation.is_json
    return end


def raw_arguments(cursor: Cursor, calls: Calls, *ends: str) -> Reader[str | None]:
    """Emit the text of a broken call as its arguments, up to one of the markers `ends`. Returns the marker, if any."""
    end = yield from emit_until(cursor, Markers(*ends), calls.arguments)
    if end:
        read_marker(cursor, end)
        calls.close()
    return end
