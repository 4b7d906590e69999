"""GLM 4.5 to 4.7, Ling 3, Spark 2.5, Laguna; Hy3 with a suffix to each tag.

<tool_call>f
<arg_key>a</arg_key>
<arg_value>text</arg_value>
</tool_call>
"""

from __future__ import annotations

from .dialect import Dialect
from .reasoning import ReasoningTags
from .tagged import Tags
from .tool_call import FUNCTION_TAGS, KEY_VALUE_TAGS, read_tool_call

DIALECT = Dialect(
    "glm",
    detected_by=(("<tool_call>", "<arg_key>"),),
    openers=(KEY_VALUE_TAGS.call, FUNCTION_TAGS.call),
    read_call=read_tool_call,
    closers=KEY_VALUE_TAGS.closers,
    # In other tags, as models that know both write them now and then.
    call_texts=(*KEY_VALUE_TAGS.call_texts, FUNCTION_TAGS.bare_texts),
)


# Hy3's template gives every tag this suffix.
_HY_SUFFIX = ":opensource"

_HY_TAGS = Tags(
    call=f"<tool_call{_HY_SUFFIX}>",
    name_end=f"<tool_sep{_HY_SUFFIX}>",
    key=f"<arg_key{_HY_SUFFIX}>",
    key_end=f"</arg_key{_HY_SUFFIX}>",
    value=f"<arg_value{_HY_SUFFIX}>",
    value_ends=(f"</arg_value{_HY_SUFFIX}>",),
    call_end=f"</tool_call{_HY_SUFFIX}>",
    sections=((f"<tool_calls{_HY_SUFFIX}>", f"</tool_calls{_HY_SUFFIX}>"),),
)

HY = Dialect(
    "hy",
    detected_by=(("<arg_key{}>", _HY_SUFFIX),),
    openers=_HY_TAGS.openers,
    read_call=_HY_TAGS.read_calls,
    closers=_HY_TAGS.closers,
    call_texts=_HY_TAGS.call_texts,
    think=ReasoningTags(f"<think{_HY_SUFFIX}>", f"</think{_HY_SUFFIX}>"),
)
