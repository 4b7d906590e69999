"""MiniCPM5: <function name="f"><param name="a">text</param></function>, a text also as CDATA."""

from __future__ import annotations

from .base import Format
from .tagged import Tags

_TAGS = Tags(
    call='<function name="',
    name_end='">',
    key='<param name="',
    key_end='">',
    value_ends=("</param>",),
    call_end="</function>",
    quotes=("<![CDATA[", "]]>"),
)

FORMAT = Format(
    "minicpm5",
    detected_by=(('<function name="', '<param name="'),),
    openers=_TAGS.openers,
    read_call=_TAGS.read_calls,
    closers=_TAGS.closers,
    call_texts=_TAGS.call_texts,
)
