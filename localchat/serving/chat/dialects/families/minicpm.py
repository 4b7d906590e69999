"""MiniCPM5: <function name="f"><param name="a">text</param></function>. Text may be in CDATA."""

from __future__ import annotations

from ..dialect import Dialect
from ..tagged import TaggedCalls

DIALECT = Dialect(
    "minicpm5",
    detected_by=(('<function name="', '<param name="'),),
    calls=(
        TaggedCalls(
            call='<function name="',
            name_end='">',
            key='<param name="',
            key_end='">',
            value_ends=("</param>",),
            call_end="</function>",
            quotes=("<![CDATA[", "]]>"),
        ),
    ),
)
