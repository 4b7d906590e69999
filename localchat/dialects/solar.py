"""Solar Open.

<|think|>text<|end|><|begin|>assistant<|content|>text<|end|><|begin|>assistant<|tool_calls|>
<|tool_call:begin|>id<|tool_call:name|>f<|tool_call:args|>{"a": 1}<|tool_call:end|><|calls|>
"""

from __future__ import annotations

from .call_layout import AN_ID
from .calls import Calls
from .dialect import CallTexts, Dialect
from .named_json import json_arguments, offered_name
from .reasoning import ReasoningTags
from .scan import Cursor, Markers, Reader, until

_CALL, _NAME = "<|tool_call:begin|>", "<|tool_call:name|>"
_ARGUMENTS, _END = "<|tool_call:args|>", "<|tool_call:end|>"


def _read_call(cursor: Cursor, calls: Calls, opener: str) -> Reader[bool]:
    call_id, _ = yield from until(cursor, Markers(_NAME))
    name = yield from offered_name(cursor, calls, _ARGUMENTS)
    if name is None:
        return False
    yield from json_arguments(cursor, calls, name, _END, call_id=call_id)
    return True


_CALLS = CallTexts(
    opener="<|tool_calls|>",
    begin="<|tool_calls|>",
    before_name=_CALL + AN_ID + _NAME,
    before_arguments=_ARGUMENTS,
    after_call=_END,
    end="<|calls|>",
    json_name=False,
    after_thought="<|begin|>assistant",
)

DIALECT = Dialect(
    "solar",
    detected_by=((_CALL,),),
    openers=(_CALL,),
    read_call=_read_call,
    closers=(_NAME, _ARGUMENTS, _END),
    sections=("<|begin|>assistant", "<|content|>", "<|tool_calls|>"),
    dropped=("<|end|>", "<|calls|>"),
    call_texts=(_CALLS, _CALLS.bare(_CALL)),
    text_start=("<|content|>", "<|begin|>assistant<|content|>"),
    think=ReasoningTags("<|think|>", "<|end|>"),
)
