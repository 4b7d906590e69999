"""Invoke tags: MiniMax-M2, and DeepSeek V3.2 and V4 with a prefix and attributes.

<minimax:tool_call>
<invoke name="f">
<parameter name="a">text</parameter>
</invoke>
</minimax:tool_call>
"""

# ruff: noqa: RUF001 - the model's markers are written with a wide bar

from __future__ import annotations

from dataclasses import replace

from ..call_layout import ALL_TYPES, STRING
from ..dialect import Dialect
from ..shared_formats import invoke_tags

MINIMAX = Dialect(
    "minimax-m2",
    detected_by=(("<minimax:tool_call>",),),
    calls=(invoke_tags("", "minimax:tool_call"),),
)


def _dsml_types(attribute: str) -> frozenset[str] | None:
    # string="true": the value is a string, as bare text. string="false": the value is JSON.
    return STRING if attribute == "true" else None


_DSML_TAGS = replace(
    invoke_tags("｜DSML｜", ""),
    key_end='" string="',
    value='">',
    around=(
        ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),
        ("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"),
    ),
    attribute_types=_dsml_types,
    typed_values=((STRING, '" string="true">'), (ALL_TYPES - STRING, '" string="false">')),
)

DSML = Dialect(
    "deepseek-dsml",
    detected_by=(("｜DSML｜",),),
    calls=(_DSML_TAGS,),
)
