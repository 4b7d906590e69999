"""Conversations for templates that lack a role: what they cannot show is told in what they can.

The generic form of tools, for models whose template knows none, is that of Hermes: the system
message describes the tools, calls are <tool_call> objects within the text, the user tells results.
A family with a form of its own is told of that and shown calls in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from .messages import Capabilities

Message = dict[str, Any]
# Writes calls, of which name and arguments are read, as a model of some family would.
CallsWriter = Callable[[Sequence[Mapping[str, Any]]], str]

_INSTRUCTIONS = """You can call functions. These are on offer, each with a JSON schema of its arguments:
<tools>
{tools}
</tools>
To call one, write its name and its arguments like this, once for each call:
{example}"""
_EXAMPLE = {"name": "the_name", "arguments": {"an_argument": "its value"}}


def calls_text(calls: Sequence[Mapping[str, Any]]) -> str:
    """Calls in the generic form."""
    objects = [{"name": call["name"], "arguments": call["arguments"]} for call in calls]
    return "\n".join(f"<tool_call>\n{json.dumps(item, ensure_ascii=False)}\n</tool_call>" for item in objects)


def adapted(
    messages: list[Message],
    tools: Sequence[Mapping[str, Any]] | None,
    dialect: Capabilities,
    write_calls: CallsWriter = calls_text,
) -> list[Message]:
    """The same conversation without what the template would not show or would refuse."""
    if tools and not dialect.shows_tools:
        messages = [_system(_described(tools, write_calls)), *messages]
    if dialect.one_call:
        messages = _one_call_each(messages)
    if not dialect.shows_calls:
        messages = [_with_calls_as_text(message, write_calls) for message in messages]
    if not dialect.shows_results:
        messages = [_with_result_told(message) for message in messages]
    if not dialect.knows_system:
        messages = [{**message, "role": "user"} if _is_system(message) else message for message in messages]
    # Templates that lack a role tend to insist on turns that alternate as well.
    if not (dialect.shows_tools and dialect.shows_results and dialect.knows_system):
        messages = _joined(messages)
    return [_with_content(message, dialect) for message in messages]


def _system(text: str) -> Message:
    return {"role": "system", "content": text}


def _is_system(message: Message) -> bool:
    return message.get("role") == "system"


def _described(tools: Sequence[Mapping[str, Any]], write_calls: CallsWriter) -> str:
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return _INSTRUCTIONS.format(tools=lines, example=write_calls([_EXAMPLE]))


def _one_call_each(messages: list[Message]) -> list[Message]:
    """Each call as a message of its own, before its result."""
    result: list[Message] = []
    waiting: list[Message] = []
    for message in messages:
        if message.get("role") == "tool":
            result += [*_called_for(message, waiting), message]
            continue
        first, *more = message.get("tool_calls") or [None]
        result += waiting
        waiting = [{"role": "assistant", "content": "", "tool_calls": [call]} for call in more]
        if more:
            waiting.insert(0, {**message, "tool_calls": [first]})
        else:
            result.append(message)
    return result + waiting


def _called_for(answer: Message, waiting: list[Message]) -> list[Message]:
    """Take the message with the call of this result: by its id or, where either has none, in their order."""
    call_id = answer.get("tool_call_id")
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


def _with_result_told(message: Message) -> Message:
    if message.get("role") != "tool":
        return message
    return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}


def _joined(messages: list[Message]) -> list[Message]:
    """Neighbours of one role as one message, unless either says more than text."""
    result: list[Message] = []
    for message in messages:
        last = result[-1] if result else None
        if last and last.keys() == message.keys() == {"role", "content"} and last["role"] == message["role"]:
            result[-1] = {**last, "content": f"{last['content']}\n\n{message['content']}"}
        else:
            result.append(message)
    return result


def _with_content(message: Message, dialect: Capabilities) -> Message:
    text = {"type": "text", "text": message["content"]}
    if dialect.thought_part and "reasoning_content" in message:
        thought = {"type": "thinking", "thinking": message["reasoning_content"]}
        return {**message, "content": [thought, *([text] if text["text"] else [])]}
    if dialect.typed_content:
        return {**message, "content": [text]}
    if dialect.null_content and "tool_calls" in message:
        return {**message, "content": None}
    return message
