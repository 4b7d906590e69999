"""Qwen3-Coder, Qwen 3.5, Nemotron 3 Nano, StepFun 3.5; Seed-OSS with tags of its own.

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

from .dialect import Dialect
from .reasoning import ReasoningTags
from .tool_call import FUNCTION_TAGS, read_tool_call

DIALECT = Dialect(
    "qwen-coder",
    detected_by=(("<tool_call>", "<function=", "<parameter="),),
    openers=FUNCTION_TAGS.openers,
    read_call=read_tool_call,
    closers=FUNCTION_TAGS.closers,
    call_texts=FUNCTION_TAGS.call_texts,
)

_SEED_TAGS = replace(
    FUNCTION_TAGS,
    value_ends=("</parameter>",),
    sections=(("<seed:tool_call>", "</seed:tool_call>"),),
    is_on_lines=False,
)

SEED = Dialect(
    "seed",
    detected_by=(("<seed:tool_call>",),),
    openers=_SEED_TAGS.openers,
    read_call=_SEED_TAGS.read_calls,
    closers=_SEED_TAGS.closers,
    call_texts=_SEED_TAGS.call_texts,
    think=ReasoningTags("<seed:think>", "</seed:think>"),
)
