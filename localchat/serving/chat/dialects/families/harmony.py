"""gpt-oss.

<|channel|>analysis<|message|>text<|end|><|start|>assistant<|channel|>final<|message|>text
<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"a": 1}<|call|>
"""

from __future__ import annotations

from ..call_layout import CallLayout
from ..channels import CHANNEL, MESSAGE, START, ChannelDialect
from ..reasoning import ReasoningTags

_FINAL = CHANNEL + "final" + MESSAGE
_TEXT_END = "<|end|>" + START + "assistant"


def _calls(before_name: str, after_name: str) -> CallLayout:
    return CallLayout(
        before_name=before_name,
        before_arguments=after_name + MESSAGE,
        after_call="",
        separator=_TEXT_END,
        json_name=False,
        after_reasoning=START + "assistant",
    )


DIALECT = ChannelDialect(
    "harmony",
    detected_by=((START, CHANNEL, MESSAGE),),
    reasoning=ReasoningTags(CHANNEL + "analysis" + MESSAGE, "<|end|>"),
    ends=("<|end|>", "<|call|>", "<|return|>"),
    reasoning_headers=("analysis",),
    text_start=(_FINAL, START + "assistant" + _FINAL),
    text_end=_TEXT_END,
    # Models generate the parts of the header in several orders. Only the whole header distinguishes a call.
    layouts=(
        _calls(CHANNEL + "commentary to=functions.", " <|constrain|>json"),
        _calls(CHANNEL + "commentary to=functions.", " json"),
        _calls(" to=functions.", CHANNEL + "commentary <|constrain|>json"),
        _calls(" to=functions.", CHANNEL + "commentary json"),
    ),
)
