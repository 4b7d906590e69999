r"""Texts with control characters, which JSON can only write as \uXXXX.

No text may have such an escape if objects may have names of any text (`compiler.forbids_escapes`), so a schema that
needs a control character is refused then.
"""

from __future__ import annotations

import json
import re

from .compiler import WITHOUT_ESCAPES, is_empty
from .walk import Schema

NOT_SUPPORTED = "a control character is not supported with objects that may have names of any text"
"""The reason of a refusal."""

# A control character in JSON.
_ESCAPED = re.compile(r"(?<!\\)(?:\\\\)*\\u00[01]|\x7f")
# What a pattern has that matches only texts with control characters: such a character, or an escape.
_IN_PATTERN = re.compile(r"[\x00-\x1f\x7f]|\\[A-Za-z0-9]")


def needs_control_characters(schema: Schema) -> bool:
    """Whether all texts that match one of the keywords have control characters."""
    if _ESCAPED.search(json.dumps([schema.get("const"), schema.get("enum")])):
        return True
    pattern = schema.get("pattern")
    if pattern is None or not _IN_PATTERN.search(pattern):
        return False
    return is_empty(f"start: %json {json.dumps({'type': 'string', 'pattern': pattern, 'x-guidance': WITHOUT_ESCAPES})}")
