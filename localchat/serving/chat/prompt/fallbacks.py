"""Fallbacks for chat templates that do not support tools, tool calls, results, or the system role.

Unsupported content moves to messages that the template supports: a system message describes the tools, the text of an
assistant message has the calls, and a user message has the result. Calls are written in the format of the model family
if it has its own tool prompt, else in that of Hermes (<tool_call> with a JSON object).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from .capabilities import Capabilities

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


def adapt_messages(
    messages: list[Message],
    tools: Sequence[Mapping[str, Any]] | None,
    capabilities: Capabilities,
    write_calls: CallsWriter,
) -> list[Message]:
    """Rewrite a conversation so that the template accepts and prints all of it."""
    if tools and not capabilities.shows_tools:
        messages = [{"role": "system", "content": _describe_tools(tools, write_calls)}, *messages]
    if capabilities.one_call:
        messages = _one_call_each(messages)
    if not capabilities.shows_calls:
        messages = [_with_calls_as_text(message, write_calls) for message in messages]
    if not capabilities.shows_results:
        messages = [_with_result_as_text(message) for message in messages]
    if not capabilities.has_system_role:
        messages = [{**message, "role": "user"} if message["role"] == "system" else message for message in messages]
    # Templates that lack a role often require alternating roles, too.
    if not (capabilities.shows_tools and capabilities.shows_results and capabilities.has_system_role):
        messages = _join_adjacent(messages)
    return [_with_content(message, capabilities) for message in messages]


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
