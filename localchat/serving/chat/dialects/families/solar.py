"""Solar Open.

<|think|>text<|end|><|begin|>assistant<|content|>text<|end|><|begin|>assistant<|tool_calls|>
<|tool_call:begin|>id<|tool_call:name|>f<|tool_call:args|>{"a": 1}<|tool_call:end|><|calls|>
"""

from __future__ import annotations

from ..call_layout import AN_ID
from ..dialect import Dialect
from ..named_calls import NamedCalls
from ..reasoning import ReasoningTags

DIALECT = Dialect(
    "solar",
    detected_by=(("<|tool_call:begin|>",),),
    calls=(
        NamedCalls(
            call="<|tool_call:begin|>",
            before_name=AN_ID + "<|tool_call:name|>",
            before_arguments="<|tool_call:args|>",
            after_call="<|tool_call:end|>",
            section=("<|tool_calls|>", "<|calls|>"),
            after_reasoning="<|begin|>assistant",
        ),
    ),
    section_markers=("<|begin|>assistant", "<|content|>"),
    also_dropped=("<|end|>",),
    text_start=("<|content|>", "<|begin|>assistant<|content|>"),
    reasoning=ReasoningTags("<|think|>", "<|end|>"),
)
