"""Reads tool calls in the layouts of a family while they are generated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .call_layout import A_NUMBER, A_SPACE, AN_ID, STRING, ArgumentsLayout, CallLayout, bare, parts_of
from .calls import Calls, stream_text
from .json_calls import read_arguments, read_json_call
from .notation import NAME, NOTATIONS, maybe_nested
from .scan import Cursor, Reader, Silent, is_next, next_run, read_end, read_one_of, read_run, read_until
from .values import parameter_types, value_json

# The limit of nested elements: deeper than any real schema, and below Python's recursion limit.
_MAX_DEPTH = 60


def read_calls(layout: CallLayout, cursor: Cursor, calls: Calls) -> Reader[bool]:
    """Read a call with the texts around it, or all calls of a list. Some models leave out the end of these texts.

    Returns False if the text is not a call; then no event was emitted, and `cursor` has a record of the text.
    """
    if layout.json_name or layout.notation == "python":
        return (yield from _list(layout, cursor, calls))
    is_call = yield from _call(layout, cursor, calls)
    if is_call:
        yield from read_end(cursor, *layout.ends)
    return is_call


def _list(layout: CallLayout, cursor: Cursor, calls: Calls) -> Reader[bool]:
    """Read calls that may be the items of a list."""
    begin = layout.begin + (layout.before_name.partition("{")[0] if layout.json_name else "")
    if (yield from _read_text(cursor, begin.rstrip(A_SPACE).removesuffix("["))) is None:
        return False
    is_list = (yield from read_one_of(cursor, "[")) is not None
    read = read_json_call if layout.json_name else _python_call
    is_call = False
    while True:
        if is_call:
            cursor.begin()
            yield from read_end(cursor, ",", ";")
        yield from read_run(cursor)
        is_complete = yield from read(cursor, calls, layout)
        if is_complete is None:
            break
        is_call = True
        if not is_complete:
            return True
    if is_call:
        cursor.put_back()
        if is_list:
            yield from read_end(cursor, "]", ",]")
        yield from read_end(cursor, *layout.ends)
    return is_call


def _python_call(cursor: Cursor, calls: Calls, layout: CallLayout) -> Reader[bool | None]:
    """Read a call in Python's syntax, with named arguments or with one object.

    Returns whether the call is complete; None if the next text is not a call.
    """
    names = {name + "(": name for name in calls.offered}
    found = yield from read_one_of(cursor, *names)
    if found is None:
        return None
    key = yield from next_run(cursor, NAME)
    first = cursor.text[cursor.at + len(key) :][:1]
    if not first or first not in ("=" if key.strip() else "{)"):
        return None
    notation = NOTATIONS["python" if first == "{" else "python arguments"]
    yield from read_arguments(cursor, calls, names[found], *layout.ends, notation=notation)
    if first == "{" and not calls.is_open:
        yield from read_end(cursor, ")")
    return not calls.is_open


def _call(layout: CallLayout, cursor: Cursor, calls: Calls) -> Reader[bool]:
    ids = yield from _read_text(cursor, layout.begin + layout.before_name)
    name = None if ids is None else (yield from read_one_of(cursor, *calls.offered))
    more = None if name is None else (yield from _read_text(cursor, layout.before_arguments))
    if ids is None or name is None or more is None:
        return False
    ends = parts_of(layout.after_call)[:1]
    if (yield from is_next(cursor, "{")) or (layout.before_arguments and layout.arguments is None):
        call_id = ids + more
        if layout.id_has_name:
            before, after = layout.before_name.rpartition(">")[2], layout.before_arguments.partition(A_NUMBER)[0]
            call_id = before + name + after + call_id
        notation = NOTATIONS[layout.notation]
        yield from read_arguments(cursor, calls, name, *ends, call_id=call_id, notation=notation)
        return True
    return layout.arguments is not None and (yield from _arguments(layout.arguments, cursor, calls, name, *ends))


def _read_text(cursor: Cursor, text: str) -> Silent[str | None]:
    """Read a text around a name, with white space before each part and at the end.

    Returns the ids in it; None if another text follows.
    """
    parts = list(parts_of(text))
    ids = ""
    while parts:
        part = parts.pop(0)
        if part in (A_NUMBER, AN_ID):
            found, marker = yield from read_until(cursor, parts.pop(0))
            if marker is None:
                return None
            ids += found.strip()
        else:
            yield from read_run(cursor)
            if (yield from read_one_of(cursor, part)) is None:
                return None
    yield from read_run(cursor)
    return ids


def _arguments(layout: ArgumentsLayout, cursor: Cursor, calls: Calls, name: str, end: str) -> Reader[bool]:
    """Read arguments one by one. They are a call if one of them or the end of the call is next."""
    start = bare(layout.before_key)
    tag = yield from read_one_of(cursor, start, end)
    if tag is None:
        return False
    yield calls.start(name)
    cursor.end_record()
    opening, schema = "{", calls.schema(name)
    while tag == start:
        key = (yield from read_until(cursor, layout.key_end))[0].strip()
        yield calls.arguments(f"{opening}{json.dumps(key, ensure_ascii=False)}: ")
        opening, is_end = ", ", False
        if layout.item:
            is_end = (yield from _Elements(layout, cursor, calls, schema, end).value(key, key)) == end
        else:
            yield from _value(layout, cursor, calls, parameter_types(schema, key))
        tag = end if is_end else (yield from read_end(cursor, start, end))
    if tag in (None, end):
        # Any other text ends the call as well, and is content.
        yield calls.arguments("{}" if opening == "{" else "}")
        calls.close()
    return True


def _value(layout: ArgumentsLayout, cursor: Cursor, calls: Calls, types: frozenset[str]) -> Reader[None]:
    """Read the value of an argument."""
    ends = ("\n" + layout.end, layout.end) if layout.on_lines else (layout.end,)
    before_value = bare(layout.before_value)
    if before_value:
        attributes, mark = yield from read_until(cursor, before_value, *ends)
        types = layout.stated_types(attributes) or types
        if mark in ends:
            # The model left out the text before the value.
            yield calls.arguments(value_json(attributes.strip("\n"), types))
            return
    if layout.on_lines:
        yield from read_one_of(cursor, "\n")
    quote, end_quote = layout.quotes
    if quote and (yield from read_one_of(cursor, quote)):
        yield from stream_text(cursor, calls, end_quote, then=ends)
    elif types == STRING:
        # A value that must be a string can be streamed before its end is known.
        yield from stream_text(cursor, calls, *ends)
    else:
        # Read an object or list by JSON syntax first, since its strings may contain an end marker.
        nested = yield from maybe_nested(cursor)
        rest, mark = yield from read_until(cursor, *ends)
        yield calls.arguments(value_json(nested + rest, types) if mark else nested + rest)


@dataclass(frozen=True)
class _Elements:
    """Reads arguments that are nested elements, as MiniMax-M3 generates them.

    P<a>textP</a>P<b>P<item>1P</item>P</b>, where P is a prefix of every tag
    """

    layout: ArgumentsLayout
    cursor: Cursor
    calls: Calls
    schema: Mapping[str, Any]
    call_end: str

    @property
    def start(self) -> str:
        """The beginning of every start tag."""
        return bare(self.layout.before_key)

    def value(self, name: str, *path: str | None) -> Reader[str | None]:
        """Emit the value of an element, whose start tag was read: a text, or child elements as an object or a list.

        Returns the end tag, which may also be that of the call; None if there is none. `path`: see `parameter_types`.
        """
        cursor, end = self.cursor, self.start + "/"
        types = parameter_types(self.schema, *path)
        if types == STRING:
            yield from stream_text(cursor, self.calls, end)
            return (yield from self._end_tag())
        text = yield from maybe_nested(cursor)
        cursor.begin()
        yield from read_run(cursor)
        if not text and len(path) < _MAX_DEPTH and (yield from read_one_of(cursor, self.start, end)) == self.start:
            cursor.end_record()
            return (yield from self._children(types, path))
        cursor.put_back()
        rest, tag = yield from read_until(cursor, f"{end}{name}>", self.call_end)
        text += rest
        if tag:
            is_empty = not text.strip() and types in ({"object"}, {"array"})
            text = value_json(text, types) if not is_empty else "{}" if types == {"object"} else "[]"
        yield self.calls.arguments(text)
        return tag

    def _children(self, types: frozenset[str], path: tuple[str | None, ...]) -> Reader[str | None]:
        opening, is_list, tag = "", False, None
        while True:
            name, _ = yield from read_until(self.cursor, ">")
            # If the schema allows no list, an item is a field with this name.
            is_list = is_list or (not opening and name == self.layout.item and types != {"object"})
            opening = ", " if opening else "[" if is_list else "{"
            yield self.calls.arguments(opening if is_list else f"{opening}{json.dumps(name, ensure_ascii=False)}: ")
            tag = yield from self.value(name, *path, None if types == {"array"} else name)
            if tag != f"{self.start}/{name}>":
                break
            _, mark = yield from read_until(self.cursor, self.start)
            if mark is None or (yield from read_one_of(self.cursor, "/")):
                tag = yield from self._end_tag()
                break
        if tag:
            yield self.calls.arguments("]" if is_list else "}")
        return tag

    def _end_tag(self) -> Silent[str | None]:
        """Read the rest of an end tag. Returns the whole tag."""
        name, end = yield from read_until(self.cursor, ">")
        return f"{self.start}/{name}>" if end else None
