"""DeepSeek V3, V3.1, and R1 with its distillates.

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>
R1 writes "function" for the name, then the name and a block of JSON code.
"""

# ruff: noqa: RUF001, RUF002 - the model's markers are written with a wide bar

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .calls import Calls
from .dialect import CallTexts, Dialect
from .named_json import json_arguments, offered_name
from .scan import Cursor, Reader, one_of, space

_SECTION, _SECTION_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _SEPARATOR, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"


def _read_call(cursor: Cursor, calls: Calls, opener: str) -> Reader[bool]:
    yield from space(cursor)
    yield from one_of(cursor, "function" + _SEPARATOR)
    name = yield from offered_name(cursor, calls, _SEPARATOR, "\n```json")
    if name is None:
        return False
    yield from json_arguments(cursor, calls, name, _CALL_END, "```" + _CALL_END, "```\n" + _CALL_END)
    return True


def _calls_text(calls: Sequence[Mapping[str, Any]]) -> str:
    texts = [
        f"{_CALL}{call['name']}{_SEPARATOR}{json.dumps(call['arguments'], ensure_ascii=False)}{_CALL_END}"
        for call in calls
    ]
    return f"{_SECTION}{''.join(texts)}{_SECTION_END}"


_WITH_CODE = CallTexts(
    opener=_SECTION,
    begin=_SECTION,
    before_name=f"{_CALL}function{_SEPARATOR}",
    before_arguments="\n```json\n",
    after_call="\n```" + _CALL_END,
    separator="\n",
    end=_SECTION_END,
    json_name=False,
    mark="```json",
)
_PLAIN = replace(
    _WITH_CODE, before_name=_CALL, before_arguments=_SEPARATOR, after_call=_CALL_END, separator="", mark=""
)

DIALECT = Dialect(
    "deepseek",
    detected_by=((_CALL,),),
    openers=(_CALL,),
    read_call=_read_call,
    closers=(_SEPARATOR, _CALL_END),
    sections=(_SECTION,),
    dropped=(_SECTION_END,),
    write_calls=_calls_text,
    call_texts=(_WITH_CODE, _PLAIN, _WITH_CODE.bare(_CALL), _PLAIN.bare(_CALL)),
)
