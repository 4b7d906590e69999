"""MiniMax-M3: arguments as nested elements, every tag with a prefix.

P<tool_call> P<invoke name="f">P<a>textP</a>P<b>P<item>1P</item>P</b>P</invoke> P</tool_call>, P = ]<]minimax[>[
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from ..protocol.events import ContentDelta
from .call_layout import A_BREAK, ALL_TYPES, THE_NAME, ArgumentsLayout, CallLayout, ValueLayout
from .call_style import CallStyle
from .calls import Calls
from .dialect import Dialect
from .json_scan import maybe_nested
from .named_calls import json_arguments, offered_name
from .reasoning import ReasoningTags
from .scan import Cursor, Markers, Reader, closing, is_next, one_of, space, until
from .values import parameter_types, value_json

_PREFIX = "]<]minimax[>["
_SECTION, _SECTION_END = _PREFIX + "<tool_call>", _PREFIX + "</tool_call>"
_CALL, _CALL_END = _PREFIX + '<invoke name="', _PREFIX + "</invoke>"
_OPEN, _ITEM = _PREFIX + "<", "item"
# No schema goes deeper, and Python does not go much deeper.
_MAX_DEPTH = 60


class _End(Enum):
    """What ended a value."""

    VALUE = auto()  # its own end
    CALL = auto()  # that of the call
    TEXT = auto()  # the answer was cut


def _call(cursor: Cursor, calls: Calls) -> Reader[bool]:
    """Read a call from its name on. It is one if the name is offered and an element follows, or its end."""
    name = yield from offered_name(cursor, calls, '">')
    if name is None:
        return False
    yield from space(cursor)
    if (yield from is_next(cursor, "{")):
        yield from json_arguments(cursor, calls, name, _CALL_END)
        return True
    tag = yield from one_of(cursor, _OPEN, _CALL_END)
    if tag is None:
        return False
    yield calls.head(name)
    cursor.commit()
    opening = "{"
    while tag == _OPEN:
        key, _ = yield from until(cursor, Markers(">"))
        value, end = yield from _value(cursor, calls.schema(name), (key,))
        yield calls.arguments(f"{opening}{_text(key)}: {value}")
        opening = ", "
        tag = _CALL_END if end is _End.CALL else (yield from closing(cursor, _OPEN, _CALL_END))
    if tag in (None, _CALL_END):
        # Text that is no tag ends the call too: it can only be content.
        yield calls.arguments("{}" if opening == "{" else "}")
        calls.close()
    return True


def _value(cursor: Cursor, schema: Mapping[str, Any], path: tuple[str | None, ...]) -> Reader[tuple[str, _End]]:
    """Read an element's value as JSON, and its end.

    An element that has elements is a list, if they are items, or an object; any other has a value of its type.
    """
    types = parameter_types(schema, *path)
    text = yield from maybe_nested(cursor)
    children: list[tuple[str, str]] = []
    end = _End.VALUE
    while end is _End.VALUE:
        piece, tag = yield from until(cursor, Markers(_OPEN))
        text += piece
        if tag is None:
            end = _End.TEXT
            break
        slash = yield from one_of(cursor, "/", "/invoke>")
        if slash == "/invoke>":
            end = _End.CALL
            break
        key, _ = yield from until(cursor, Markers(">"))
        if slash or len(path) > _MAX_DEPTH:
            break
        value, end = yield from _value(cursor, schema, (*path, None if types == {"array"} else key))
        children.append((key, value))
    if children and types != {"object"} and all(key == _ITEM for key, _ in children):
        return "[" + ", ".join(value for _, value in children) + "]", end
    if children:
        return "{" + ", ".join(f"{_text(key)}: {value}" for key, value in children) + "}", end
    if not text.strip() and types in ({"object"}, {"array"}):
        return "{}" if types == {"object"} else "[]", end
    return value_json(text, types), end


def _text(key: str) -> str:
    return json.dumps(key, ensure_ascii=False)


class _Calls(CallStyle):
    @property
    def layouts(self) -> tuple[CallLayout, ...]:
        layout = CallLayout(
            opener=_SECTION,
            begin=_SECTION + A_BREAK,
            before_name=_CALL,
            before_arguments='">',
            after_call=A_BREAK + _CALL_END,
            separator=A_BREAK,
            end=A_BREAK + _SECTION_END,
            json_name=False,
            arguments=ArgumentsLayout(
                before_key=A_BREAK + _PREFIX + "<",
                after_key=">",
                values=(ValueLayout(ALL_TYPES, "", f"{_PREFIX}</{THE_NAME}>", _PREFIX),),
                names=r"[^\s<>/\]]+",
                item=_ITEM,
            ),
        )
        return (layout,)

    def read(self, cursor: Cursor, calls: Calls, opener: str) -> Reader[bool]:
        is_call = False
        while True:
            yield from space(cursor)
            if is_call:
                cursor.begin()
            if (yield from one_of(cursor, _CALL)) is None:
                break
            if not (yield from _call(cursor, calls)):
                if is_call:
                    yield ContentDelta(cursor.recorded())
                return is_call
            is_call = True
        if is_call:
            yield from closing(cursor, _SECTION_END)
        return is_call


DIALECT = Dialect(
    "minimax-m3",
    detected_by=((_PREFIX,),),
    calls=(_Calls(),),
    reasoning=ReasoningTags("<mm:think>", "</mm:think>"),
    no_reasoning="</mm:think>",
)
