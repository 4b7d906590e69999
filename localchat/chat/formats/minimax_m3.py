"""MiniMax-M3: arguments as nested elements, every tag with a prefix.

P<tool_call> P<invoke name="f">P<a>textP</a>P<b>P<item>1P</item>P</b>P</invoke> P</tool_call>, P = ]<]minimax[>[
"""

from __future__ import annotations

import json
import re
from typing import Any, Iterator, List, Mapping, Tuple

from ...layouts import A_BREAK, ALL_TYPES, THE_NAME, ArgumentsLayout, ValueLayout
from ..calls import Calls
from ..reasoning import ReasoningTags
from ..scan import Cursor, Markers, Reader, closing, is_next, one_of, space, until
from ..values import parameter_types, value_json
from .base import CallTexts, Format
from .named_json import json_arguments, offered_name

_PREFIX = "]<]minimax[>["
_SECTION, _SECTION_END = _PREFIX + "<tool_call>", _PREFIX + "</tool_call>"
_CALL, _CALL_END = _PREFIX + '<invoke name="', _PREFIX + "</invoke>"
_TAG = re.compile(re.escape(_PREFIX) + r"<(/?)([^>]+)>")


def _read_calls(cursor: Cursor, calls: Calls, opener: str) -> Reader[bool]:
    is_call = False
    while True:
        yield from space(cursor)
        if (yield from one_of(cursor, _CALL)) is None:
            break
        name = yield from offered_name(cursor, calls, '">')
        if name is None:
            return is_call
        is_call = True
        yield from space(cursor)
        if (yield from is_next(cursor, "{")):
            yield from json_arguments(cursor, calls, name, _CALL_END)
            continue
        yield calls.head(name)
        cursor.commit()
        body, end = yield from until(cursor, Markers(_CALL_END))
        yield calls.arguments(arguments_json(body, calls.schema(name)))
        if end is None:
            return True
        calls.close()
    if is_call:
        yield from closing(cursor, _SECTION_END)
    return is_call


def arguments_json(body: str, schema: Mapping[str, Any]) -> str:
    """The elements of a call as a JSON object; an element without elements has a value of its type."""
    tokens = _tokens(body)
    members = [(key, _element(tokens, key, schema)) for kind, key in tokens if kind == "open"]
    return "{" + ", ".join(f"{json.dumps(key, ensure_ascii=False)}: {value}" for key, value in members) + "}"


def _tokens(body: str) -> Iterator[Tuple[str, str]]:
    at = 0
    for match in _TAG.finditer(body):
        yield "text", body[at : match.start()]
        yield "close" if match[1] else "open", match[2]
        at = match.end()
    yield "text", body[at:]


def _element(tokens: Iterator[Tuple[str, str]], name: str, schema: Mapping[str, Any]) -> str:
    text = ""
    children: List[Tuple[str, str]] = []
    for kind, value in tokens:
        if kind == "close":
            break
        if kind == "open":
            children.append((value, _element(tokens, value, {})))
        else:
            text += value
    if not children:
        return value_json(text, parameter_types(schema, name))
    if all(key == "item" for key, _ in children):
        return "[" + ", ".join(value for _, value in children) + "]"
    return "{" + ", ".join(f"{json.dumps(key, ensure_ascii=False)}: {value}" for key, value in children) + "}"


FORMAT = Format(
    "minimax-m3",
    detected_by=((_PREFIX,),),
    openers=(_SECTION,),
    read_call=_read_calls,
    closers=(_PREFIX,),
    # Lists and objects are written as JSON here, which has types within.
    call_texts=(
        CallTexts(
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
            ),
        ),
    ),
    think=ReasoningTags("<mm:think>", "</mm:think>"),
    no_thought="</mm:think>",
)
