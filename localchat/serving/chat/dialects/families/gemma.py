"""Gemma 4: <|tool_call>call:f{a:<|"|>text<|"|>,b:[1,true]}<tool_call|>: JSON without quotes around keys."""

from __future__ import annotations

import json
import re

from ..call_layout import GEMMA_QUOTE, CallLayout
from ..call_style import CallStyle
from ..calls import Calls
from ..dialect import Dialect
from ..named_calls import offered_name
from ..reasoning import ReasoningTags
from ..scan import Cursor, Markers, Reader, read_one_of, read_space, read_until

_START, _END = "<|tool_call>", "<tool_call|>"

_QUOTE = re.escape(GEMMA_QUOTE)
_PARTS = re.compile(
    rf"{_QUOTE}(?P<text>.*?){_QUOTE}"
    r'|(?P<json>"(?:[^"\\]|\\.)*")'
    r"|(?P<key>[^\s{}\[\],:<\"]+)(?=\s*:)"
    r"|(?P<word>None|True|False)\b",
    re.DOTALL,
)
_WORDS = {"None": "null", "True": "true", "False": "false"}


def as_json(text: str) -> str:
    """Convert Gemma's notation to JSON. Other text stays unchanged."""
    return _PARTS.sub(_part_json, text)


def _part_json(match: re.Match[str]) -> str:
    kind = match.lastgroup or ""
    part = match[kind]
    if kind == "word":
        return _WORDS[part]
    return part if kind == "json" else json.dumps(part, ensure_ascii=False)


class _Calls(CallStyle):
    @property
    def layouts(self) -> tuple[CallLayout, ...]:
        layout = CallLayout(
            opener=_START,
            before_name=_START + "call:",
            before_arguments="",
            after_call=_END,
            json_name=False,
            after_reasoning="",
            notation="gemma",
            end_marker=_END,
        )
        return (layout,)

    @property
    def markers(self) -> tuple[str, ...]:
        return (*super().markers, GEMMA_QUOTE)

    def read(self, cursor: Cursor, calls: Calls, opener: str) -> Reader[bool]:
        yield from read_space(cursor)
        if (yield from read_one_of(cursor, "call:")) is None:
            return False
        name = yield from offered_name(cursor, calls, "{")
        if name is None:
            return False
        yield calls.start(name)
        cursor.drop_record()
        text, end = yield from read_until(cursor, Markers(_END))
        yield calls.arguments(as_json("{" + text.rstrip()))
        if end:
            calls.close()
        return True


DIALECT = Dialect(
    "gemma-4",
    detected_by=((_START,),),
    calls=(_Calls(),),
    reasoning=ReasoningTags("<|channel>thought", "<channel|>"),
    reasons_anywhere=True,
)
