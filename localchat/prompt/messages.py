"""Normalizes chat messages and tools for a chat template.

Lists of text parts become text, null fields are removed, and the arguments of tool calls become objects or JSON text,
as the template requires. An invalid message raises TemplateError with the path of the field.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from .capabilities import Capabilities
from .errors import TemplateError


def prepared(messages: Sequence[Mapping[str, Any]], capabilities: Capabilities, *, at: int = 0) -> list[dict[str, Any]]:
    """Normalize messages for a template. `at` is the index of the first one in the request, for error messages.

    Raises:
        TemplateError: A message is invalid; `param` is the path of the field.
    """
    return [_prepared(message, f"messages[{at + i}]", capabilities) for i, message in enumerate(messages)]


def prepared_tools(tools: Sequence[Mapping[str, Any]], capabilities: Capabilities) -> list[Mapping[str, Any]]:
    """Normalize tools for a template: add fields that are optional in the API and required by the template."""
    return [_whole_tool(tool) for tool in tools] if capabilities.whole_tools else list(tools)


def _whole_tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = _filled(tool.get("function", tool), _WHOLE_FUNCTION)
    return {**tool, "function": {**function, "parameters": _filled(function["parameters"], _NO_PARAMETERS)}}


_NO_PARAMETERS = {"type": "object", "properties": {}}
_WHOLE_FUNCTION = {"description": "", "parameters": _NO_PARAMETERS}


def _filled(value: Mapping[str, Any], missing: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `value` in their order, then those of `missing` that it lacks."""
    return {**value, **{key: item for key, item in missing.items() if key not in value}}


def _prepared(message: Mapping[str, Any], where: str, capabilities: Capabilities) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise TemplateError(f"{where} must be an object", param=where)
    result = {key: value for key, value in message.items() if value is not None}
    if not isinstance(result.get("role"), str):
        raise TemplateError(f"{where}.role must be text", param=f"{where}.role")
    if result["role"] == "developer" and not capabilities.has_developer_role:
        result["role"] = "system"
    result["content"] = _content_text(result.get("content", ""), f"{where}.content")
    if "tool_calls" in result:
        result["tool_calls"] = _tool_calls(result["tool_calls"], f"{where}.tool_calls", capabilities)
        if not result["tool_calls"]:
            # Templates test whether the field exists, not whether it is empty.
            del result["tool_calls"]
    if capabilities.short_ids and "tool_call_id" in result:
        result["tool_call_id"] = _short_id(result["tool_call_id"])
    has_both = result["content"] and "tool_calls" in result
    if "reasoning_content" in result and not (capabilities.lone_reasoning and has_both):
        result.setdefault(capabilities.reasoning_key, result["reasoning_content"])
    return result


def _content_text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise TemplateError(f"{where} must be text or a list of parts", param=where)
    return "".join(_part_text(part, f"{where}[{j}]") for j, part in enumerate(content))


def _part_text(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    if kind != "text":
        raise TemplateError(f"{where} is a part of type {kind!r}; only 'text' is supported", param=where)
    text = part.get("text")
    if not isinstance(text, str):
        raise TemplateError(f"{where}.text must be text", param=f"{where}.text")
    return text


def _tool_calls(calls: Any, where: str, capabilities: Capabilities) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise TemplateError(f"{where} must be a list", param=where)
    return [_tool_call(call, f"{where}[{j}]", capabilities) for j, call in enumerate(calls)]


def _tool_call(call: Any, where: str, capabilities: Capabilities) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise TemplateError(f"{where}.function.name is missing", param=f"{where}.function.name")
    arguments = function.get("arguments") or {}
    if capabilities.only_objects and not isinstance(_arguments_object(arguments), dict):
        # The model generated invalid arguments. Pass their text to the template as an argument.
        arguments = {"arguments": arguments}
    as_wanted = _arguments_text(arguments) if capabilities.text_arguments else _arguments_object(arguments)
    result = {**call, "function": {**function, "arguments": as_wanted}}
    if capabilities.short_ids and "id" in result:
        result["id"] = _short_id(result["id"])
    return result


def _arguments_object(arguments: Any) -> Any:
    """Decode arguments. Text that is not a JSON object stays text; templates can print it."""
    if not isinstance(arguments, str):
        return arguments
    try:
        decoded = json.loads(arguments)
    except ValueError:
        return arguments
    return decoded if isinstance(decoded, dict) else arguments


def _arguments_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _short_id(call_id: object) -> str:
    """Convert an id to nine letters or digits. Equal ids stay equal, so results still match their calls."""
    text = str(call_id)
    if len(text) == 9 and text.isalnum():
        return text
    return hashlib.sha256(text.encode()).hexdigest()[:9]
