"""Qwen3-Coder, Qwen 3.5, Nemotron 3 Nano, StepFun 3.5; Seed-OSS with other tags.

<tool_call>
<function=f>
<parameter=a>
text
</parameter>
</function>
</tool_call>
"""

from __future__ import annotations

from dataclasses import replace

from ..dialect import Dialect
from ..reasoning import ReasoningTags
from ..shared_formats import FUNCTION_TAGS, JSON_OBJECT, KEY_VALUE_TAGS

DIALECT = Dialect(
    "qwen-coder",
    detected_by=(("<tool_call>", "<function=", "<parameter="),),
    overrides=("functionary-3.1",),
    calls=(FUNCTION_TAGS,),
    also_read=(JSON_OBJECT, KEY_VALUE_TAGS),
)

SEED = Dialect(
    "seed",
    detected_by=(("<seed:tool_call>",),),
    overrides=("functionary-3.1",),
    calls=(
        replace(
            FUNCTION_TAGS,
            value_ends=("</parameter>",),
            around=(("<seed:tool_call>", "</seed:tool_call>"),),
            is_on_lines=False,
        ),
    ),
    reasoning=ReasoningTags("<seed:think>", "</seed:think>"),
)
