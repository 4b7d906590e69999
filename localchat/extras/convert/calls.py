"""Tool calls of events and messages, and the native calls that models of the Llama family generate as text."""

from __future__ import annotations

import ast
import json
import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from ...events import ToolCall
from .values import StopReason

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StackCall:
    """A call with its arguments decoded, and as the text that the model generated."""

    call_id: str
    tool_name: str
    arguments: dict[str, Any]
    arguments_json: str


@dataclass(frozen=True)
class UnparseableToolCall:
    """A call whose arguments, kept as text, are not a JSON object."""

    call_id: str = ""
    tool_name: str = ""
    arguments: str = ""


AnyCall = Union[StackCall, UnparseableToolCall]


def stack_call(call: ToolCall | Mapping[str, Any]) -> AnyCall:
    """Convert one call of an event or of the `tool_calls` of a message. Never raises."""
    if isinstance(call, ToolCall):
        return _stack_call(call.id, call.name, call.arguments_json)
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return _stack_call(call.get("id"), function.get("name"), text)


def stack_calls(calls: Iterable[ToolCall | Mapping[str, Any]] | None) -> list[AnyCall]:
    """Convert the calls of a message; None is no calls. One unparseable call does not affect the others."""
    return [stack_call(call) for call in calls or ()]


def _stack_call(id: Any, name: Any, text: str) -> AnyCall:
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict) or not name:
        return UnparseableToolCall(id or "", name or "", text)
    return StackCall(id or "", name, arguments, text)


# Native calls

PYTHON_TAG = "<|python_tag|>"
# The control tokens that may be in the text, and the stop reason of those that end it.
MARKERS: dict[str, StopReason | None] = {
    "<|eot_id|>": "end_of_turn",
    "<|eom_id|>": "end_of_message",
    PYTHON_TAG: None,
}
_TAGGED_CALL = re.compile(r"\s*<function=([\w.-]+)>(.*?)</function>\s*", re.DOTALL)
_DOTTED_CALL = re.compile(r"\s*(\w+)\.call\((.*)\)\s*", re.DOTALL)


def native_calls(text: str) -> list[StackCall]:
    """The calls of a text that consists of calls only; otherwise none.

    The notations are JSON objects separated by `;`, `<function=name>{...}</function>`, and `name.call(key="value")`.
    """
    text = text.replace(PYTHON_TAG, "").strip()
    return _tagged_calls(text) or _dotted_call(text) or _json_calls(text)


def _tagged_calls(text: str) -> list[StackCall]:
    found = list(_TAGGED_CALL.finditer(text))
    calls = [_stack_call("", match[1], match[2].strip()) for match in found]
    return _all_typed(calls) if _TAGGED_CALL.sub("", text) == "" else []


def _dotted_call(text: str) -> list[StackCall]:
    match = _DOTTED_CALL.fullmatch(text)
    if match is None:
        return []
    try:
        call = ast.parse(f"f({match[2]})", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            return []  # Several calls, or other text beside the call.
        if call.args or any(word.arg is None for word in call.keywords):
            return []  # Positional arguments and **arguments have no parameter names.
        named = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
        return _all_typed([_stack_call("", match[1], json.dumps(named))])
    except (ValueError, SyntaxError, TypeError, RecursionError):
        return []


def _json_calls(text: str) -> list[StackCall]:
    calls: list[AnyCall] = []
    while text:
        try:
            value, end = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError):
            return []
        text = text[end:].lstrip("; \r\n\t")
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return []
        arguments = value.get("parameters", value.get("arguments", {}))
        calls.append(_stack_call("", value["name"], json.dumps(arguments, ensure_ascii=False)))
    return _all_typed(calls)


def _all_typed(calls: Sequence[AnyCall]) -> list[StackCall]:
    typed = [call for call in calls if isinstance(call, StackCall)]
    return typed if len(typed) == len(calls) else []


def is_offered(call: StackCall, offered: Collection[str] | None) -> bool:
    """Whether the request had the tool of this call. None stands for any tool. Log a call of another tool."""
    known = offered is None or call.tool_name in offered
    if not known:
        log.warning("the model calls %r, which was not offered", call.tool_name)
    return known
