"""Kimi K2 and K3.

K2: <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}
<|tool_call_end|><|tool_calls_section_end|>
K3: <|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="a" type="string"<|sep|>text
<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>
"""

from __future__ import annotations

from ..call_layout import A_NUMBER, ALL_TYPES
from ..dialect import Dialect
from ..named_calls import NamedCalls
from ..reasoning import ReasoningTags
from ..tagged import TaggedCalls

_ARGUMENTS = "<|tool_call_argument_begin|>"

K2 = Dialect(
    "kimi-k2",
    detected_by=((_ARGUMENTS,),),
    calls=(
        NamedCalls(
            call="<|tool_call_begin|>",
            before_name="functions.",
            before_arguments=f":{A_NUMBER}{_ARGUMENTS}",
            after_call="<|tool_call_end|>",
            section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
            # Keep the id that the model generates, so that earlier calls in the prompt have ids in its format.
            has_own_id=True,
        ),
    ),
)


def _attribute_types(attributes: str) -> frozenset[str] | None:
    _, found, rest = attributes.partition('type="')
    return frozenset({rest.partition('"')[0]}) if found else None


_K3_TAGS = TaggedCalls(
    call='<|open|>call tool="',
    name_end='"',
    attributes=f' index="{A_NUMBER}"',
    attributes_end="<|sep|>",
    key='<|open|>argument key="',
    key_end='"',
    value="<|sep|>",
    value_ends=("<|close|>argument<|sep|>",),
    call_end="<|close|>call<|sep|>",
    around=(("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),),
    attribute_types=_attribute_types,
    typed_values=tuple((frozenset({kind}), f'" type="{kind}"<|sep|>') for kind in sorted(ALL_TYPES - {"integer"})),
)

K3 = Dialect(
    "kimi-k3",
    detected_by=(("<|open|>", "<|close|>", "<|sep|>"),),
    calls=(_K3_TAGS,),
    section_markers=("<|open|>response<|sep|>",),
    also_dropped=(
        "<|close|>response<|sep|>",
        "<|close|>message<|sep|>",
        "<|end_of_msg|>",
    ),
    text_start=("<|open|>response<|sep|>", "<|open|>response<|sep|>"),
    reasoning=ReasoningTags("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
)
