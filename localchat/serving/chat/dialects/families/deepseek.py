"""DeepSeek V3, V3.1, and R1 with its distillates.

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>
R1: before the separator is the word "function", after it the name and a JSON code block.
"""

# ruff: noqa: RUF001, RUF002 - the model's markers are written with a wide bar

from __future__ import annotations

from ..dialect import Dialect
from ..named_calls import NamedCalls

_SECTION = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_CALL, _SEPARATOR, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"

DIALECT = Dialect(
    "deepseek",
    detected_by=((_CALL,),),
    calls=(
        NamedCalls(
            call=_CALL,
            before_name="function" + _SEPARATOR,
            before_arguments="\n```json\n",
            after_call="\n```" + _CALL_END,
            separator="\n",
            section=_SECTION,
            template_text="```json",
        ),
        NamedCalls(call=_CALL, before_arguments=_SEPARATOR, after_call=_CALL_END, section=_SECTION),
    ),
    has_own_tool_prompt=True,
)
