"""Bare text between tags, which has no quotes, as JSON."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

from ...schema.types import STRING, types_of

_WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None, "none": None}
# The tokens of Python's literals. Of other texts, Python's compiler may write warnings to the log.
_NUMBER = r"(?:0[xX][0-9a-fA-F]+|0[oO][0-7]+|0[bB][01]+|\d[\d_]*(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)(?![\w.])"
_STRING = r"""'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*\""""
_LITERAL = re.compile(rf"(?:{_STRING}|{_NUMBER}|(?:True|False|None)\b|[-+\[\](){{}},:\s])*", re.DOTALL)
# An escape, and the group of those that Python knows. It warns of others, and keeps their backslash.
_ESCAPE = re.compile(r"\\(?:([\\'\"abfnrtv0\n]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})|.)", re.DOTALL)


def text_json(text: str) -> str:
    """Escape a text for a JSON string, without the quotes. A text may be converted in pieces."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def value_json(raw: str, types: frozenset[str], *, json_text: str = "") -> str:
    """Convert bare text to JSON: `raw` itself if it is JSON of an allowed type, else a JSON string.

    `json_text` is `raw` with the errors of its JSON corrected; "": there are none. An empty text is an empty object or
    list if no other type is allowed. Python literals such as True and None are accepted, too. But a number that JSON
    writes in another way, such as 0x10, stays text if text is allowed.
    """
    text, is_json = (json_text or raw).strip(), True
    if not text and types in ({"object"}, {"array"}):
        return "{}" if types == {"object"} else "[]"
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        value, is_json = _python_value(raw.strip()), False
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
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if not _LITERAL.fullmatch(text):
        return text
    try:
        value = ast.literal_eval(_ESCAPE.sub(lambda match: match[0] if match[1] else "\\" + match[0], text))
        json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return text
    return value if types_of(value) else text
