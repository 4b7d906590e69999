"""MiniCPM5: <function name="f"><param name="a">text</param></function>, a text also as CDATA."""

from __future__ import annotations

from dataclasses import replace

from .call_layout import STRING, ValueLayout
from .dialect import Dialect
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

_QUOTE, _QUOTED_END = "<![CDATA[", "]]></param>"
_ARGUMENTS = replace(
    _TAGS.argument_texts,
    values=(
        ValueLayout(STRING, _QUOTE, _QUOTED_END, _QUOTED_END, tells_type=False),
        *(replace(way, not_start=_QUOTE) for way in _TAGS.argument_texts.values),
    ),
)

DIALECT = Dialect(
    "minicpm5",
    detected_by=(('<function name="', '<param name="'),),
    openers=_TAGS.openers,
    read_call=_TAGS.read_calls,
    closers=_TAGS.closers,
    call_texts=tuple(replace(texts, arguments=_ARGUMENTS) for texts in _TAGS.call_texts),
)
