"""MiniMax-M3: arguments as nested elements, every tag with a prefix.

P<tool_call> P<invoke name="f">P<a>textP</a>P<b>P<item>1P</item>P</b>P</invoke> P</tool_call>, P = ]<]minimax[>[
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum, auto
from typing import Any

from ..call_layout import ALL_TYPES, THE_NAME, ArgumentsLayout, ValueLayout
from ..calls import Calls
from ..dialect import Dialect
from ..json_scan import maybe_nested
from ..reasoning import ReasoningTags
from ..scan import Cursor, Markers, Reader, read_one_of, read_until
from ..tagged import TaggedCalls
from ..values import parameter_types, value_json

_PREFIX = "]<]minimax[>["
_OPEN, _ITEM = _PREFIX + "<", "item"
# The limit of nesting: deeper than any real schema, and below Python's recursion limit.
_MAX_DEPTH = 60


class _End(Enum):
    """What ended a value."""

    VALUE = auto()  # Its end tag.
    CALL = auto()  # The end tag of the call.
    TEXT = auto()  # The end of the output.


class _Calls(TaggedCalls):
    @property
    def argument_layout(self) -> ArgumentsLayout:
        value = ValueLayout(ALL_TYPES, "", f"{_PREFIX}</{THE_NAME}>", _PREFIX)
        return replace(super().argument_layout, values=(value,), names=r"[^\s<>/\]]+", item=_ITEM)

    def _argument(self, cursor: Cursor, calls: Calls, name: str, opening: str) -> Reader[bool]:
        key, _ = yield from read_until(cursor, Markers(self.key_end))
        value, end = yield from _value(cursor, calls.schema(name), (key,))
        yield calls.arguments(f"{opening}{_text(key)}: {value}")
        return end is _End.CALL


def _value(cursor: Cursor, schema: Mapping[str, Any], path: tuple[str | None, ...]) -> Reader[tuple[str, _End]]:
    """Read the value of an element. Returns the value as JSON, and what ended it."""
    types = parameter_types(schema, *path)
    text = yield from maybe_nested(cursor)
    children: list[tuple[str, str]] = []
    end = _End.VALUE
    while end is _End.VALUE:
        piece, tag = yield from read_until(cursor, Markers(_OPEN))
        text += piece
        if tag is None:
            end = _End.TEXT
            break
        slash = yield from read_one_of(cursor, "/", "/invoke>")
        if slash == "/invoke>":
            end = _End.CALL
            break
        key, _ = yield from read_until(cursor, Markers(">"))
        if slash or len(path) > _MAX_DEPTH:
            break
        value, end = yield from _value(cursor, schema, (*path, None if types == {"array"} else key))
        children.append((key, value))
    return _element_json(text, children, types), end


def _element_json(text: str, children: list[tuple[str, str]], types: frozenset[str]) -> str:
    """The value of an element as JSON: a list if all of its child elements are items, else an object.

    Without child elements, the value has the type in the schema.
    """
    if children and types != {"object"} and all(key == _ITEM for key, _ in children):
        return "[" + ", ".join(value for _, value in children) + "]"
    if children:
        return "{" + ", ".join(f"{_text(key)}: {value}" for key, value in children) + "}"
    if not text.strip() and types in ({"object"}, {"array"}):
        return "{}" if types == {"object"} else "[]"
    return value_json(text, types)


def _text(key: str) -> str:
    """A JSON string."""
    return json.dumps(key, ensure_ascii=False)


DIALECT = Dialect(
    "minimax-m3",
    detected_by=((_PREFIX,),),
    calls=(
        _Calls(
            call=_PREFIX + '<invoke name="',
            name_end='">',
            key=_OPEN,
            key_end=">",
            value_ends=(_PREFIX,),
            call_end=_PREFIX + "</invoke>",
            around=((_PREFIX + "<tool_call>", _PREFIX + "</tool_call>"),),
        ),
    ),
    reasoning=ReasoningTags("<mm:think>", "</mm:think>"),
    no_reasoning="</mm:think>",
)
