"""Hermes 2 and 3, Qwen 2.5 and 3, QwQ, Granite 4, Reka, and localchat's built-in model.

<tool_call>
{"name": "f", "arguments": {"a": 1}}
</tool_call>
"""

from __future__ import annotations

from .base import Format
from .tool_call import END, FUNCTION_TAGS, START, read_tool_call

FORMAT = Format(
    "hermes",
    detected_by=((START, END),),
    openers=(START, FUNCTION_TAGS.call),
    read_call=read_tool_call,
    closers=(END, *FUNCTION_TAGS.closers),
)
