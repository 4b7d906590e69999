"""Converts chat messages and tools to what a chat template supports.

For example, the arguments of tool calls become objects or JSON text, as the template requires. What the template cannot
print moves to messages that it can: a system message describes the tools, the text of an assistant message has the
calls, and a user message has the result. Calls are written in the format of the model family if it has its own tool
prompt, else in that of Hermes (<tool_call> with a JSON object).

The messages are those of a ChatRequest, so they are valid: `content` is text or absent, and no field is null.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from .capabilities import Capabilities, Messages

Message = dict[str, Any]
# Writes tool calls (`name` and `arguments`) in the format of a model family.
CallsWriter = Callable[[Sequence[Mapping[str, Any]]], str]

_INSTRUCTIONS = """You can call functions. These are on offer, each with a JSON schema of its arguments:
<tools>
{tools}
</tools>
To call one, write its name and its arguments like this, once for each call:
{example}"""
_EXAMPLE = {"name": "the_name", "arguments": {"an_argument": "its value"}}
_NO_PARAMETERS = {"type": "object", "properties": {}}
_WHOLE_FUNCTION = {"description": "", "parameters": _NO_PARAMETERS}


def adapt_messages(
    messages: Messages, tools: Messages | None, capabilities: Capabilities, write_calls: CallsWriter
) -> list[Message]:
    """Rewrite a conversation so that a template with these capabilities accepts and prints all of it."""
    adapted = [_converted(message, capabilities) for message in messages]
    if tools and not capabilities.shows_tools:
        adapted.insert(0, {"role": "system", "content": _describe_tools(tools, write_calls)})
    if capabilities.one_call:
        adapted = _one_call_each(adapted)
    if not capabilities.shows_calls:
        adapted = [_with_calls_as_text(message, write_calls) for message in adapted]
    if not capabilities.shows_results:
        adapted = [_with_result_as_text(message) for message in adapted]
    if not capabilities.has_system_role:
        adapted = [{**message, "role": "user"} if message["role"] == "system" else message for message in adapted]
    # Templates that lack a role often require alternating roles, too.
    if not (capabilities.shows_tools and capabilities.shows_results and capabilities.has_system_role):
        adapted = _join_adjacent(adapted)
    return [_with_content(message, capabilities) for message in adapted]


def adapt_tools(tools: Messages, capabilities: Capabilities) -> list[Mapping[str, Any]]:
    """Convert tools for a template: add fields that are optional in the API and required by the template."""
    return [_whole_tool(tool) for tool in tools] if capabilities.whole_tools else list(tools)


def _whole_tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = _fill(tool["function"], _WHOLE_FUNCTION)
    return {**tool, "function": {**function, "parameters": _fill(function["parameters"], _NO_PARAMETERS)}}


def _fill(value: Mapping[str, Any], missing: Mapping[str, Any]) -> Message:
    """The fields of `value` in their order, then those of `missing` that it lacks."""
    return {**value, **{key: item for key, item in missing.items() if key not in value}}


def _converted(message: Mapping[str, Any], capabilities: Capabilities) -> Message:
    """A message with the roles, ids, arguments and reasoning that the template reads."""
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


def _tool_call(call: Mapping[str, Any], capabilities: Capabilities) -> Message:
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


def _describe_tools(tools: Sequence[Mapping[str, Any]], write_calls: CallsWriter) -> str:
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return _INSTRUCTIONS.format(tools=lines, example=write_calls([_EXAMPLE]))


def _one_call_each(messages: list[Message]) -> list[Message]:
    """Split messages with several calls, so that each message has one call and directly precedes its result."""
    result: list[Message] = []
    waiting: list[Message] = []
    for message in messages:
        if message["role"] == "tool":
            result += [*_pop_call_of(message, waiting), message]
            continue
        first, *more = message.get("tool_calls") or [None]
        result += waiting
        waiting = [{"role": "assistant", "content": "", "tool_calls": [call]} for call in more]
        if more:
            waiting.insert(0, {**message, "tool_calls": [first]})
        else:
            result.append(message)
    return result + waiting


def _pop_call_of(result: Message, waiting: list[Message]) -> list[Message]:
    """Remove and return the message whose call has the id of this result, or the first one if an id is missing."""
    call_id = result.get("tool_call_id")
    for i, message in enumerate(waiting):
        if call_id is None or message["tool_calls"][0].get("id") in (call_id, None):
            return [waiting.pop(i)]
    return []


def _with_calls_as_text(message: Message, write_calls: CallsWriter) -> Message:
    calls = [call["function"] for call in message.get("tool_calls", ())]
    if not calls:
        return message
    content = "\n".join(filter(None, (message["content"], write_calls(calls))))
    return {**{key: value for key, value in message.items() if key != "tool_calls"}, "content": content}


def _with_result_as_text(message: Message) -> Message:
    if message["role"] != "tool":
        return message
    return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}


def _join_adjacent(messages: list[Message]) -> list[Message]:
    """Join adjacent messages of the same role that have only text."""
    result: list[Message] = []
    for message in messages:
        last = result[-1] if result else None
        if last and last.keys() == message.keys() == {"role", "content"} and last["role"] == message["role"]:
            result[-1] = {**last, "content": f"{last['content']}\n\n{message['content']}"}
        else:
            result.append(message)
    return result


def _with_content(message: Message, capabilities: Capabilities) -> Message:
    text = {"type": "text", "text": message["content"]}
    if capabilities.reasoning_part and "reasoning_content" in message:
        reasoning = {"type": "thinking", "thinking": message["reasoning_content"]}
        return {**message, "content": [reasoning, *([text] if text["text"] else [])]}
    if capabilities.typed_content:
        return {**message, "content": [text]}
    if capabilities.null_content and "tool_calls" in message:
        return {**message, "content": None}
    return message
