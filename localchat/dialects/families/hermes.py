"""Hermes 2 and 3, Qwen 2.5 and 3, QwQ, Granite 4, Reka, and localchat's built-in model.

<tool_call>
{"name": "f", "arguments": {"a": 1}}
</tool_call>
Most templates are of this kind, so a template that belongs to no other family is taken for one of Hermes.
"""

from __future__ import annotations

from dataclasses import replace

from ..dialect import Dialect
from ..tool_call import FUNCTION_TAGS, JSON_OBJECT, KEY_VALUE_TAGS

DIALECT = Dialect(
    "hermes",
    # Without the outer tag: models that were trained on both formats write this now and then.
    calls=(JSON_OBJECT, replace(FUNCTION_TAGS, around=(), is_json=True)),
    also_read=(FUNCTION_TAGS, KEY_VALUE_TAGS),
)
