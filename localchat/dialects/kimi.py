"""Kimi K2 and K3.

K2: <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1}
<|tool_call_end|><|tool_calls_section_end|>
K3: <|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="a" type="string"<|sep|>text
<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>
"""

from __future__ import annotations

from .call_layout import A_NUMBER, ALL_TYPES
from .calls import Calls
from .dialect import CallTexts, Dialect
from .named_json import json_arguments, offered_name
from .reasoning import ReasoningTags
from .scan import Cursor, Markers, Reader, one_of, space, until
from .tagged import Tags

_SECTION, _SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
_CALL, _CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
_ARGUMENTS = "<|tool_call_argument_begin|>"


def _read_call(cursor: Cursor, calls: Calls, opener: str) -> Reader[bool]:
    yield from space(cursor)
    if (yield from one_of(cursor, "functions.")) is None:
        return False
    name = yield from offered_name(cursor, calls, ":")
    if name is None:
        return False
    number, marker = yield from until(cursor, Markers(_ARGUMENTS))
    if marker is None:
        return False
    # The history shows the model ids of this form, so this one is passed on as it is.
    call_id = f"functions.{name}:{number.strip()}"
    yield from json_arguments(cursor, calls, name, _CALL_END, call_id=call_id)
    return True


_K2_CALLS = CallTexts(
    opener=_SECTION,
    begin=_SECTION,
    before_name=_CALL + "functions.",
    before_arguments=f":{A_NUMBER}{_ARGUMENTS}",
    after_call=_CALL_END,
    end=_SECTION_END,
    json_name=False,
)

K2 = Dialect(
    "kimi-k2",
    detected_by=((_ARGUMENTS,),),
    openers=(_CALL,),
    read_call=_read_call,
    closers=(_ARGUMENTS, _CALL_END),
    sections=(_SECTION,),
    dropped=(_SECTION_END,),
    call_texts=(_K2_CALLS, _K2_CALLS.bare(_CALL)),
)


def _attribute_types(attributes: str) -> frozenset[str] | None:
    _, found, rest = attributes.partition('type="')
    return frozenset({rest.partition('"')[0]}) if found else None


_K3_TAGS = Tags(
    call='<|open|>call tool="',
    name_end='"',
    attributes=f' index="{A_NUMBER}"',
    attributes_end="<|sep|>",
    key='<|open|>argument key="',
    key_end='"',
    value="<|sep|>",
    value_ends=("<|close|>argument<|sep|>",),
    call_end="<|close|>call<|sep|>",
    sections=(("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),),
    attribute_types=_attribute_types,
    typed_values=tuple((frozenset({kind}), f'" type="{kind}"<|sep|>') for kind in sorted(ALL_TYPES - {"integer"})),
)

K3 = Dialect(
    "kimi-k3",
    detected_by=(("<|open|>", "<|close|>", "<|sep|>"),),
    openers=_K3_TAGS.openers,
    read_call=_K3_TAGS.read_calls,
    closers=("<|open|>", "<|close|>", "<|sep|>"),
    call_texts=_K3_TAGS.call_texts,
    sections=("<|open|>response<|sep|>",),
    dropped=(
        "<|close|>response<|sep|>",
        "<|close|>message<|sep|>",
        "<|end_of_msg|>",
    ),
    text_start=("<|open|>response<|sep|>", "<|open|>response<|sep|>"),
    think=ReasoningTags("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
)
