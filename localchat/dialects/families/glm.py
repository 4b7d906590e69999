"""GLM 4.5 to 4.7, Ling 3, Spark 2.5, Laguna; Hy3 with a suffix to each tag.

<tool_call>f
<arg_key>a</arg_key>
<arg_value>text</arg_value>
</tool_call>
"""

from __future__ import annotations

from dataclasses import replace

from ..dialect import Dialect
from ..reasoning import ReasoningTags
from ..shared_formats import FUNCTION_TAGS, JSON_OBJECT, KEY_VALUE_TAGS
from ..tagged import TaggedCalls

DIALECT = Dialect(
    "glm",
    detected_by=(("<tool_call>", "<arg_key>"),),
    # Models trained on both formats sometimes generate function tags.
    calls=(KEY_VALUE_TAGS, replace(FUNCTION_TAGS, around=())),
    also_read=(JSON_OBJECT, FUNCTION_TAGS),
)


# The suffix of every tag in Hy3's template.
_HY_SUFFIX = ":opensource"

_HY_TAGS = TaggedCalls(
    call=f"<tool_call{_HY_SUFFIX}>",
    name_end=f"<tool_sep{_HY_SUFFIX}>",
    key=f"<arg_key{_HY_SUFFIX}>",
    key_end=f"</arg_key{_HY_SUFFIX}>",
    value=f"<arg_value{_HY_SUFFIX}>",
    value_ends=(f"</arg_value{_HY_SUFFIX}>",),
    call_end=f"</tool_call{_HY_SUFFIX}>",
    around=((f"<tool_calls{_HY_SUFFIX}>", f"</tool_calls{_HY_SUFFIX}>"),),
)

HY = Dialect(
    "hy",
    detected_by=(("<arg_key{}>", _HY_SUFFIX),),
    calls=(_HY_TAGS,),
    reasoning=ReasoningTags(f"<think{_HY_SUFFIX}>", f"</think{_HY_SUFFIX}>"),
)
