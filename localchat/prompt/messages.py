"""Messages as a template wants them: from the wire's forms to the one form it reads.

Content lists become text, arguments in JSON text become objects, null members go. What a
template cannot be given is a TemplateError that names the member.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .errors import TemplateError


class Capabilities(NamedTuple):
    """What one template expects where templates differ."""

    typed_content: bool = False  # reads content as a list of parts only
    text_arguments: bool = False  # prints arguments as they are, so they must be JSON text
    only_objects: bool = False  # fails on arguments that are no JSON object
    one_call: bool = False  # shows no more than one call of a message
    null_content: bool = False  # shows calls only in a message without content
    short_ids: bool = False  # refuses tool call ids that are not nine letters or digits
    thought_key: str = "reasoning_content"  # where it looks for thinking
    thought_part: bool = False  # looks for it in a part of the content
    lone_thought: bool = False  # refuses thinking in a message that has both text and calls
    knows_developer: bool = False  # has a role "developer"; else it is "system"
    knows_system: bool = True  # has a role "system"; else its text opens the first user message
    shows_tools: bool = True  # prints the tools; else they are described in a system message
    whole_tools: bool = False  # fails on tools without a description or parameters
    shows_calls: bool = True  # prints calls; else they are text of the message
    shows_results: bool = True  # has a role "tool"; else the user tells the result
    no_tools: tuple[()] | None = None  # what stands for no tools: most test for none, some iterate


def prepared(messages: Sequence[Mapping[str, Any]], dialect: Capabilities, *, at: int = 0) -> list[dict[str, Any]]:
    """Messages for a template, of which the first is number `at` of the request.

    Null members are removed, text parts joined, arguments decoded.

    Raises:
        TemplateError: something in `messages[i]` is not of the chat format.
    """
    return [_prepared(message, f"messages[{at + i}]", dialect) for i, message in enumerate(messages)]


def prepared_tools(tools: Sequence[Mapping[str, Any]], dialect: Capabilities) -> list[Mapping[str, Any]]:
    """Tools for a template, with what it expects of each and the API lets out."""
    return [_whole_tool(tool) for tool in tools] if dialect.whole_tools else list(tools)


def _whole_tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = _filled(tool.get("function", tool), _WHOLE_FUNCTION)
    return {**tool, "function": {**function, "parameters": _filled(function["parameters"], _NO_PARAMETERS)}}


_NO_PARAMETERS = {"type": "object", "properties": {}}
_WHOLE_FUNCTION = {"description": "", "parameters": _NO_PARAMETERS}


def _filled(value: Mapping[str, Any], missing: Mapping[str, Any]) -> dict[str, Any]:
    """The same members in the same order, then those that are missing."""
    return {**value, **{key: item for key, item in missing.items() if key not in value}}


def _prepared(message: Mapping[str, Any], where: str, dialect: Capabilities) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise TemplateError(f"{where} must be an object", param=where)
    result = {key: value for key, value in message.items() if value is not None}
    if not isinstance(result.get("role"), str):
        raise TemplateError(f"{where}.role must be text", param=f"{where}.role")
    if result["role"] == "developer" and not dialect.knows_developer:
        result["role"] = "system"
    result["content"] = _content_text(result.get("content", ""), f"{where}.content")
    if "tool_calls" in result:
        result["tool_calls"] = _tool_calls(result["tool_calls"], f"{where}.tool_calls", dialect)
        if not result["tool_calls"]:
            # Templates ask whether the member is there, not whether it holds any.
            del result["tool_calls"]
    if dialect.short_ids and "tool_call_id" in result:
        result["tool_call_id"] = _short_id(result["tool_call_id"])
    has_both = result["content"] and "tool_calls" in result
    if "reasoning_content" in result and not (dialect.lone_thought and has_both):
        result.setdefault(dialect.thought_key, result["reasoning_content"])
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
        raise TemplateError(f"{where} is a part of type {kind!r}, and only 'text' is understood", param=where)
    text = part.get("text")
    if not isinstance(text, str):
        raise TemplateError(f"{where}.text must be text", param=f"{where}.text")
    return text


def _tool_calls(calls: Any, where: str, dialect: Capabilities) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise TemplateError(f"{where} must be a list", param=where)
    return [_tool_call(call, f"{where}[{j}]", dialect) for j, call in enumerate(calls)]


def _tool_call(call: Any, where: str, dialect: Capabilities) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise TemplateError(f"{where}.function.name is missing", param=f"{where}.function.name")
    arguments = function.get("arguments") or {}
    if dialect.only_objects and not isinstance(_arguments_object(arguments), dict):
        # What a model wrote wrongly is part of the conversation, which goes on.
        arguments = {"arguments": arguments}
    as_wanted = _arguments_text(arguments) if dialect.text_arguments else _arguments_object(arguments)
    result = {**call, "function": {**function, "arguments": as_wanted}}
    if dialect.short_ids and "id" in result:
        result["id"] = _short_id(result["id"])
    return result


def _arguments_object(arguments: Any) -> Any:
    """Arguments decoded; text that is no JSON object stays text, which templates can still print."""
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
    """Nine letters or digits, the same for the same id, so that calls and results still match."""
    text = str(call_id)
    if len(text) == 9 and text.isalnum():
        return text
    return hashlib.sha256(text.encode()).hexdigest()[:9]
