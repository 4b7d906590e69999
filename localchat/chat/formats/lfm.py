"""LFM2 and LFM2.5: <|tool_call_start|>[f(a=1, b="x"), g()]<|tool_call_end|>, calls as Python writes them.

Where they are told to they write JSON instead: [{"name": "f", "arguments": {"a": 1}}]
"""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..calls import Calls
from ..scan import Cursor, Markers, Reader, until
from .base import Format, call_objects

_START, _END = "<|tool_call_start|>", "<|tool_call_end|>"
# JSON's words are printed by some templates within Python's syntax.
_WORDS: Dict[str, Optional[bool]] = {"true": True, "false": False, "null": None}


def _read_calls(cursor: Cursor, calls: Calls, opener: str) -> Reader[bool]:
    # Only Python's own parser knows where a Python literal ends, so the calls are read as a whole.
    text, _ = yield from until(cursor, Markers(_END))
    found = json_calls(text) or parsed_calls(text)
    if not found or not all(calls.may_call(name) for name, _ in found):
        return False
    for name, arguments in found:
        yield calls.head(name)
        yield calls.arguments(arguments)
        calls.close()
    return True


def json_calls(text: str) -> List[Tuple[str, str]]:
    """The names of calls in a JSON list, and their arguments; none if the text is anything else."""
    try:
        return [(str(call["name"]), _json(call["arguments"])) for call in json.loads(text)]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


def parsed_calls(text: str) -> List[Tuple[str, str]]:
    """The names of Python calls, alone or in a list, and their arguments as JSON.

    None if the text is anything else.
    """
    try:
        # A line break can only stand within a string, where templates print it as it is.
        body = ast.parse(text.strip().replace("\n", "\\n"), mode="eval").body
        items = body.elts if isinstance(body, ast.List) else [body]
        return [_call(item) for item in items]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return []


def _call(node: ast.expr) -> Tuple[str, str]:
    if not isinstance(node, ast.Call) or node.args or any(word.arg is None for word in node.keywords):
        raise ValueError("not a call with named arguments")
    arguments = {str(word.arg): _value(word.value) for word in node.keywords}
    return ast.unparse(node.func), _json(arguments)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, ast.List):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {str(_value(key)): _value(item) for key, item in zip(node.keys, node.values) if key}
    return ast.literal_eval(node)


def _calls_text(calls: Sequence[Mapping[str, Any]]) -> str:
    texts = [f"{call['name']}({_keywords(call['arguments'])})" for call in calls]
    return f"{_START}[{', '.join(texts)}]{_END}"


def _keywords(arguments: Any) -> str:
    items = arguments.items() if isinstance(arguments, dict) else ()
    return ", ".join(f"{key}={value!r}" for key, value in items)


FORMAT = Format(
    "lfm2",
    detected_by=((_START,), ("<|tool_list_start|>",), ("List of tools: [", "<|im_start|>")),
    openers=(_START,),
    read_call=_read_calls,
    closers=(_END,),
    write_calls=_calls_text,
    call_texts=(replace(call_objects(_START, _END), is_native=False),),
)
