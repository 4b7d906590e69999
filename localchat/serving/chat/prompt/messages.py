"""Converts chat messages and tools to what a chat template supports.

For example, the arguments of tool calls become objects or JSON text, as the template requires. The messages are those
of a ChatRequest, so they are valid: `content` is text or absent, and no field is null.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from .capabilities import Capabilities


def prepare_messages(messages: Sequence[Mapping[str, Any]], capabilities: Capabilities) -> list[dict[str, Any]]:
    """Convert messages for a template with these capabilities."""
    return [_prepare_message(message, capabilities) for message in messages]


def prepare_tools(tools: Sequence[Mapping[str, Any]], capabilities: Capabilities) -> list[Mapping[str, Any]]:
    """Convert tools for a template: add fields that are optional in the API and required by the template."""
    return [_whole_tool(tool) for tool in tools] if capabilities.whole_tools else list(tools)


def _whole_tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = _fill(tool["function"], _WHOLE_FUNCTION)
    return {**tool, "function": {**function, "parameters": _fill(function["parameters"], _NO_PARAMETERS)}}


_NO_PARAMETERS = {"type": "object", "properties": {}}
_WHOLE_FUNCTION = {"description": "", "parameters": _NO_PARAMETERS}


def _fill(value: Mapping[str, Any], missing: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `value` in their order, then those of `missing` that it lacks."""
    return {**value, **{key: item for key, item in missing.items() if key not in value}}


def _prepare_message(message: Mapping[str, Any], capabilities: Capabilities) -> dict[str, Any]:
    result = {**message, "content": message.get("content", "")}
    if result["role"] == "developer" and not capabilities.has_developer_role:
        result["role"] = "system"
    if "tool_calls" in result:
        result["tool_calls"] = [_tool_call(call, capabilities) for call in result["tool_calls"]]
    if capabilities.short_ids and "tool_call_id" in result:
        result["tool_call_id"] = _short_id(result["tool_call_id"])
    has_both = result["content"] and "tool_calls" in result
    if "reasoning_content" in result and not (capabilities.lone_reasoning and has_both):
        result.setdefault(capabilities.reasoning_key, result["reasoning_content"])
    return result


def _tool_call(call: Mapping[str, Any], capabilities: Capabilities) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"] or {}
    if capabilities.only_objects and not isinstance(_arguments_object(arguments), dict):
        # The model generated invalid arguments. Pass their text to the template as an argument.
        arguments = {"arguments": arguments}
    convert = _arguments_text if capabilities.text_arguments else _arguments_object
    result = {**call, "function": {**function, "arguments": convert(arguments)}}
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
