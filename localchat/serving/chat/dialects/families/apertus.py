"""Apertus: <|tools_prefix|>[{"f": {"a": 1}}, {"g": {}}]<|tools_suffix|>. The name is the only key."""

from __future__ import annotations

from ....core.events import ContentDelta
from ..call_layout import CallLayout
from ..call_style import CallStyle
from ..calls import Calls
from ..dialect import Dialect
from ..named_calls import json_arguments, offered_name
from ..reasoning import ReasoningTags
from ..scan import Cursor, Reader, read_end, read_one_of, read_space

_START, _END = "<|tools_prefix|>", "<|tools_suffix|>"


class _Calls(CallStyle):
    @property
    def layouts(self) -> tuple[CallLayout, ...]:
        layout = CallLayout(
            opener=_START,
            begin=_START + "[",
            before_name='{"',
            before_arguments='": ',
            after_call="}",
            separator=", ",
            end="]" + _END,
        )
        return (layout,)

    def read(self, cursor: Cursor, calls: Calls, opener: str) -> Reader[bool]:
        yield from read_space(cursor)
        is_call = False
        separator = yield from read_one_of(cursor, "[")
        while separator in ("[", ","):
            yield from read_space(cursor)
            if is_call:
                cursor.begin()
            if (yield from read_one_of(cursor, "{")) is None:
                break
            yield from read_space(cursor)
            name = (yield from read_one_of(cursor, '"')) and (yield from offered_name(cursor, calls, '":', '" :'))
            if name is None:
                if is_call:
                    yield ContentDelta(cursor.end_record())
                return is_call
            yield from json_arguments(cursor, calls, name, "}")
            is_call = True
            yield from read_space(cursor)
            separator = yield from read_one_of(cursor, ",", "]")
        if is_call:
            yield from read_end(cursor, _END)
        return is_call


DIALECT = Dialect(
    "apertus",
    detected_by=((_START,),),
    calls=(_Calls(),),
    reasoning=ReasoningTags("<|inner_prefix|>", "<|inner_suffix|>"),
)
