"""Bare text between tags, which has no quotes, as JSON."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

from ...schema.types import STRING, types_of

_WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None, "none": None}
# A number before a word of Python, such as 10in. It is no literal, and Python's compiler writes a warning to the log.
_NUMBER_AND_WORD = re.compile(r"[+-]?\d[\d_.]*(?:and|else|for|if|in|is|not|or)")


def text_json(text: str) -> str:
    """Escape a text for a JSON string, without the quotes. A text may be converted in pieces."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def value_json(raw: str, types: frozenset[str]) -> str:
    """Convert bare text to JSON: `raw` itself if it is JSON of an allowed type, else a JSON string.

    An empty text is an empty object or list if no other type is allowed. Python literals such as True and None are
    accepted, too. But a number that JSON writes in another way, such as 0x10, stays text if text is allowed.
    """
    text, is_json = raw.strip(), True
    if not text and types in ({"object"}, {"array"}):
        return "{}" if types == {"object"} else "[]"
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        value, is_json = _python_value(text), False
    # Strings are written without quotes, so quotes are part of the string.
    is_allowed = bool(types_of(value) & (types - STRING))
    may_be_text = not is_json and "number" in types_of(value) and "string" in types
    if not is_allowed or may_be_text:
        return json.dumps(raw, ensure_ascii=False)
    return text if is_json else json.dumps(value, ensure_ascii=False)


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _python_value(text: str) -> Any:
    """The value of a Python literal, if JSON can represent it; otherwise the text."""
    if _NUMBER_AND_WORD.match(text):
        return text
    try:
        value = _WORDS[text.lower()] if text.lower() in _WORDS else ast.literal_eval(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return text
    return value if types_of(value) else text
