"""LFM2 and LFM2.5: <|tool_call_start|>[f(a=1, b="x"), g()]<|tool_call_end|>, calls in Python's syntax.

If the prompt asks for it, they write JSON instead: [{"name": "f", "arguments": {"a": 1}}]
"""

from __future__ import annotations

import ast
import json
import keyword
import math
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ..call_layout import ALL_TYPES, ArgumentsLayout, CallLayout, ValueLayout
from ..call_style import CallStyle
from ..calls import Calls
from ..dialect import Dialect
from ..json_calls import JsonCalls
from ..scan import Cursor, Markers, Reader, read_until

_START, _END = "<|tool_call_start|>", "<|tool_call_end|>"
# The pattern of argument names that are valid in Python.
_NAMES = rf"(?!(?:{'|'.join(keyword.kwlist)})\Z)[^\W\d]\w*"
_STRING = r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
# Some templates print these JSON literals in Python's syntax.
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None}


def parsed_calls(text: str, offered: Sequence[str] = ()) -> list[tuple[str, str]]:
    """Parse a Python call or a list of calls. Returns the names, and the arguments as JSON.

    The result is empty if the text is anything else. Names in `offered` need not be valid in Python.
    """
    aliases = {name: f"_function_{i}" for i, name in enumerate(offered) if not _is_plain(name)}
    text = _renamed(text, aliases)
    try:
        # A line break can only be inside a string, in which templates print it unescaped.
        body = ast.parse(text.strip().replace("\n", "\\n"), mode="eval").body
        items = body.elts if isinstance(body, ast.List) else [body]
        found = [_call(item) for item in items]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return []
    names = {alias: name for name, alias in aliases.items()}
    return [(names.get(name, name), arguments) for name, arguments in found]


def _is_plain(name: str) -> bool:
    """Whether a Python function may have this name."""
    return name.isidentifier() and not keyword.iskeyword(name)


def _renamed(text: str, aliases: Mapping[str, str]) -> str:
    """Replace the names of called functions by their aliases, except inside strings and longer names."""
    if not aliases:
        return text
    longest_first = "|".join(map(re.escape, sorted(aliases, key=len, reverse=True)))
    # Strings match first, so that names inside them are not replaced.
    pattern = re.compile(rf"({_STRING})|(?<![\w.-])({longest_first})(?=\()", re.DOTALL)
    return pattern.sub(lambda match: match[1] or aliases[match[2]], text)


def _call(node: ast.expr) -> tuple[str, str]:
    if not isinstance(node, ast.Call) or any(word.arg is None for word in node.keywords):
        raise ValueError("not a call with named arguments")
    if not node.args:
        arguments = {str(word.arg): _value(word.value) for word in node.keywords}
    elif len(node.args) == 1 and isinstance(node.args[0], ast.Dict) and not node.keywords:
        arguments = _value(node.args[0])
    else:
        raise ValueError("not a call with named arguments")
    return ast.unparse(node.func), _json(arguments)


def _json(value: Any) -> str:
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    """Replace infinities by the largest double. The model wrote a number that is valid JSON but exceeds a double."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return math.copysign(sys.float_info.max, value)
    return value


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, ast.List):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {str(_value(key)): _value(item) for key, item in zip(node.keys, node.values) if key}
    return ast.literal_eval(node)


class _PythonCalls(CallStyle):
    @property
    def layouts(self) -> tuple[CallLayout, ...]:
        arguments = ArgumentsLayout(
            before_key="",
            after_key="=",
            values=(ValueLayout(ALL_TYPES, "", ""),),
            separator=", ",
            names=_NAMES,
        )
        layout = CallLayout(
            opener=_START,
            begin=_START + "[",
            before_name="",
            before_arguments="(",
            after_call=")",
            separator=", ",
            end="]" + _END,
            json_name=False,
            arguments=arguments,
            notation="python",
            end_marker=_END,
        )
        return (layout,)

    def read(self, cursor: Cursor, calls: Calls, opener: str) -> Reader[bool]:
        # Python's parser needs the complete text, so these calls are not streamed.
        text, _ = yield from read_until(cursor, Markers(_END))
        found = parsed_calls(text, calls.offered)
        if not found or not all(calls.may_call(name) for name, _ in found):
            return False
        for name, arguments in found:
            yield calls.start(name)
            yield calls.arguments(arguments)
            calls.close()
        return True


DIALECT = Dialect(
    "lfm2",
    detected_by=((_START,), ("<|tool_list_start|>",), ("List of tools: [", "<|im_start|>")),
    # JSON is generated only if the prompt asks for it.
    calls=(_PythonCalls(), JsonCalls(opener=_START, end=_END, is_list=True)),
    has_own_tool_prompt=True,
)
