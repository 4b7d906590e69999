"""Reads tool calls that are JSON objects with a name and arguments.

Other orders of the fields, additional fields, and missing end markers are accepted, too.
"""

from __future__ import annotations

import re
from typing import Any

from .call_layout import CallLayout
from .calls import Calls
from .notation import JSON, Notation, decoded, read_value, value_pieces
from .scan import (
    Cursor,
    Markers,
    Reader,
    Silent,
    emit,
    emit_until,
    is_next,
    read_end,
    read_marker,
    read_one_of,
    read_run,
)

# Some models nest the name and the arguments in an object with this name.
_WRAPPER = "function"


def read_json_call(cursor: Cursor, calls: Calls, layout: CallLayout) -> Reader[bool | None]:
    """Read one call object: the name and arguments in either order. Other fields are skipped.

    Returns whether the call is complete; None if the next text is not a call. Then no event was emitted. The text of a
    broken call after its name is emitted as arguments. If the calls have no opener, an object with any other field is
    not a call: it may be JSON content, which is then streamed without delay.
    """
    if (yield from read_one_of(cursor, "{")) is None:
        return None
    name_key, argument_keys, id_key = _keys(layout)
    known = (name_key, *argument_keys, id_key, _WRAPPER, "type")
    # Arguments that precede the name are held back until the call has started.
    arguments, has_arguments, has_started = "", False, False
    call_id: str | None = None
    n_open = 1
    while n_open:
        yield from read_run(cursor)
        mark = yield from read_one_of(cursor, ",", "}")
        if mark:
            n_open -= mark == "}"
            continue
        if has_started:
            cursor.begin()
        key = yield from _key(cursor)
        is_complete = key is not None and (bool(layout.opener) or key in known)
        if is_complete and not has_started and name_key in (key, ""):
            name: Any = decoded((yield from read_value(cursor))[0]) if name_key else key
            if not calls.may_call(name):
                return None
            has_started = True
            yield calls.start(name, call_id)
            cursor.end_record()
            if arguments:
                yield calls.arguments(arguments)
            if name_key:
                continue
            key = argument_keys[0]
        if not is_complete:
            pass
        elif key in argument_keys and not has_arguments:
            has_arguments = True
            if has_started:
                cursor.end_record()
            if has_started and not (yield from is_next(cursor, '"')):
                is_complete = yield from emit(value_pieces(cursor), calls.arguments)
            else:
                arguments, is_complete = yield from _held_arguments(cursor)
                if has_started:
                    yield calls.arguments(arguments)
        elif key == _WRAPPER and n_open == 1 and (yield from read_one_of(cursor, "{")):
            n_open = 2
        else:
            raw, is_complete = yield from read_value(cursor)
            value = decoded(raw)
            if key == id_key:
                call_id = value if isinstance(value, str) else None
        if not is_complete:
            if has_started:
                yield calls.arguments(cursor.end_record())
                yield from raw_arguments(cursor, calls, *layout.ends)
            return False if has_started else None
    if not has_started:
        return None
    cursor.end_record()
    if not has_arguments:
        yield calls.arguments("{}")
    calls.close()
    return True


def _keys(layout: CallLayout) -> tuple[str, tuple[str, ...], str]:
    """The fields of a call: that of the name, those that may have the arguments, and that of the id.

    The first is "" if the name is itself the field of the arguments. Some models use the fields of another family.
    """
    name = re.search(r'"(\w+)": "\Z', layout.before_name)
    arguments = re.search(r'"(\w+)": \Z', layout.before_arguments)
    call_id = re.search('"(\\w+)": "[\x00\x04]"', layout.before_name + layout.after_call)
    own = (arguments[1],) if arguments else ()
    return name[1] if name else "", (*own, "arguments", "parameters"), call_id[1] if call_id else "id"


def _key(cursor: Cursor) -> Silent[str | None]:
    """Read the name of a field and the colon after it; None if there is none."""
    key = decoded((yield from read_value(cursor))[0])
    yield from read_run(cursor)
    if not isinstance(key, str) or (yield from read_one_of(cursor, ":")) is None:
        return None
    yield from read_run(cursor)
    return key


def _held_arguments(cursor: Cursor) -> Silent[tuple[str, bool]]:
    """Read arguments. Returns their JSON, which may be within a JSON string, and whether it is complete."""
    is_text = yield from is_next(cursor, '"')
    raw, is_complete = yield from read_value(cursor)
    value = decoded(raw) if is_text and is_complete else None
    return (raw if value is None else value if value.strip() else "{}"), is_complete


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
