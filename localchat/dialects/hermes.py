"""Hermes 2 and 3, Qwen 2.5 and 3, QwQ, Granite 4, Reka, and localchat's built-in model.

<tool_call>
{"name": "f", "arguments": {"a": 1}}
</tool_call>
"""

from __future__ import annotations

from .call_layout import A_BREAK
from .dialect import CallTexts, Dialect
from .tool_call import END, FUNCTION_TAGS, START, read_tool_call

_OBJECT = CallTexts(
    opener=START,
    before_name=START + '\n{"name": "',
    before_arguments='", "arguments": ',
    after_call="}\n" + END,
    separator=A_BREAK,
)
# Without the tag around it, as models that know both forms write it now and then.
_FUNCTION = CallTexts(
    opener=FUNCTION_TAGS.call,
    before_name=FUNCTION_TAGS.call,
    before_arguments=">",
    after_call="</function>",
    separator=A_BREAK,
    json_name=False,
)

DIALECT = Dialect(
    "hermes",
    detected_by=((START, END),),
    openers=(START, FUNCTION_TAGS.call),
    read_call=read_tool_call,
    closers=(END, *FUNCTION_TAGS.closers),
    call_texts=(_OBJECT, _FUNCTION),
)
