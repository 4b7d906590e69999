"""Hy3: the calls of GLM, with the suffix `:opensource` to each tag and a tag after the name.

<tool_calls:opensource>
<tool_call:opensource>f<tool_sep:opensource>
<arg_key:opensource>a</arg_key:opensource>
<arg_value:opensource>text</arg_value:opensource>
</tool_call:opensource>
</tool_calls:opensource>
"""

from __future__ import annotations

from ..dialect import Dialect
from ..reasoning import ReasoningTags
from ..tagged import TaggedCalls

_SUFFIX = ":opensource"

_TAGS = TaggedCalls(
    call=f"<tool_call{_SUFFIX}>",
    name_end=f"<tool_sep{_SUFFIX}>",
    key=f"<arg_key{_SUFFIX}>",
    key_end=f"</arg_key{_SUFFIX}>",
    value=f"<arg_value{_SUFFIX}>",
    value_ends=(f"</arg_value{_SUFFIX}>",),
    call_end=f"</tool_call{_SUFFIX}>",
    around=((f"<tool_calls{_SUFFIX}>", f"</tool_calls{_SUFFIX}>"),),
)

DIALECT = Dialect(
    "hy",
    detected_by=(("<arg_key{}>", _SUFFIX),),
    calls=(_TAGS,),
    reasoning=ReasoningTags(f"<think{_SUFFIX}>", f"</think{_SUFFIX}>"),
)
