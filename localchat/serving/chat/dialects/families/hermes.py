"""Hermes 2 and 3, Qwen 2.5 and 3, QwQ, Granite 4, Reka, and localchat's built-in model.

<tool_call>
{"name": "f", "arguments": {"a": 1}}
</tool_call>
This is the most common format, and the default for templates of unknown families.
"""

from __future__ import annotations

from dataclasses import replace

from ..dialect import Dialect
from ..shared_formats import FUNCTION_TAGS, JSON_OBJECT, KEY_VALUE_TAGS

DIALECT = Dialect(
    "hermes",
    # Models trained on both formats sometimes generate function tags without the outer tag.
    calls=(JSON_OBJECT, replace(FUNCTION_TAGS, around=(), is_json=True)),
    also_read=(FUNCTION_TAGS, KEY_VALUE_TAGS),
)
