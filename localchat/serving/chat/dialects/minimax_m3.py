"""MiniMax-M3: arguments as nested elements, every tag with a prefix.

P<tool_call> P<invoke name="f">P<a>textP</a>P<b>P<item>1P</item>P</b>P</invoke> P</tool_call>, P = ]<]minimax[>[
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum, auto
from typing import Any

from .call_format import CallFormat, stream_text
from .call_layout import ALL_TYPES, STRING, THE_NAME, ArgumentsLayout, ValueLayout
from .calls import Calls
from .dialect import Dialect
from .json_scan import maybe_nested
from .reasoning import ReasoningTags
from .scan import Cursor, Markers, Reader, read_until
from .values import parameter_types, value_json

_PREFIX = "]<]minimax[>["
_OPEN, _ITEM = _PREFIX + "<", "item"
# The limit of nesting: deeper than any real schema, and below Python's recursion limit.
_MAX_DEPTH = 60


class _End(Enum):
    """What ended a value."""

    VALUE = auto()  # Its end tag.
    CALL = auto()  # The end tag of the call.
    TEXT = auto()  # The end of the output.


class _Calls(CallFormat):
    @property
    def argument_layout(self) -> ArgumentsLayout:
        value = ValueLayout(ALL_TYPES, "", f"{_PREFIX}</{THE_NAME}>", _PREFIX)
        return replace(super().argument_layout, values=(value,), names=r"[^\s<>/\]]+", item=_ITEM)

    def _one_argument(self, cursor: Cursor, calls: Calls, name: str, opening: str) -> Reader[bool]:
        key, _ = yield from read_until(cursor, Markers(">"))
        yield calls.arguments(f"{opening}{json.dumps(key, ensure_ascii=False)}: ")
        return (yield from _value(cursor, calls, calls.schema(name), (key,))) is _End.CALL


def _value(cursor: Cursor, calls: Calls, schema: Mapping[str, Any], path: tuple[str | None, ...]) -> Reader[_End]:
    """Emit the value of an element as JSON of the type in the schema. Returns what ended it."""
    types = parameter_types(schema, *path)
    if types == STRING:
        if not (yield from stream_text(cursor, calls, _OPEN + "/")):
            return _End.TEXT
        end, _ = yield from read_until(cursor, Markers(">"))
        return _End.CALL if end == "invoke" else _End.VALUE
    text = yield from maybe_nested(cursor)
    piece, _ = yield from read_until(cursor, Markers(_OPEN))
    text += piece
    tag = yield from _tag(cursor)
    if isinstance(tag, str) and len(path) <= _MAX_DEPTH:
        return (yield from _children(cursor, calls, schema, path, tag))
    if tag is _End.TEXT:
        yield calls.arguments(text)
    elif not text.strip() and types in ({"object"}, {"array"}):
        yield calls.arguments("{}" if types == {"object"} else "[]")
    else:
        yield calls.arguments(value_json(text, types))
    return _End.VALUE if isinstance(tag, str) else tag


def _children(
    cursor: Cursor, calls: Calls, schema: Mapping[str, Any], path: tuple[str | None, ...], tag: str
) -> Reader[_End]:
    """Emit child elements, of which the first has this tag: as a list if it is an item, else as an object.

    If the schema allows no list, an item is a field with this name.
    """
    types = parameter_types(schema, *path)
    is_list = tag == _ITEM and types != {"object"}
    before, name, end = ("[" if is_list else "{"), tag, _End.VALUE
    while end is _End.VALUE:
        yield calls.arguments(before if is_list else f"{before}{json.dumps(name, ensure_ascii=False)}: ")
        before = ", "
        end = yield from _value(cursor, calls, schema, (*path, None if types == {"array"} else name))
        if end is _End.VALUE:
            yield from read_until(cursor, Markers(_OPEN))
            found = yield from _tag(cursor)
            if not isinstance(found, str):
                end = found
                break
            name = found
    if end is not _End.TEXT:
        yield calls.arguments("]" if is_list else "}")
    return end


def _tag(cursor: Cursor) -> Reader[str | _End]:
    """Read a tag after its opening bracket. Returns the name of a start tag, or what an end tag ends."""
    text, bracket = yield from read_until(cursor, Markers(">"))
    if bracket is None:
        return _End.TEXT
    if text == "/invoke":
        return _End.CALL
    return _End.VALUE if text.startswith("/") else text


MINIMAX_M3 = Dialect(
    "minimax-m3",
    detected_by=((_PREFIX,),),
    calls=(
        _Calls(
            f'{_PREFIX}<invoke name="$name">*(~{_OPEN}$key>$value{_PREFIX}</$key>)*~{_PREFIX}</invoke>',
            around=((f"{_PREFIX}<tool_call>~", f"~{_PREFIX}</tool_call>"),),
            separator="~",
        ),
    ),
    reasoning=ReasoningTags("<mm:think>", "</mm:think>"),
    no_reasoning="</mm:think>",
)
