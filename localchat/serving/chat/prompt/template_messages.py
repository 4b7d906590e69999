"""Converts chat messages and tools to what a chat template supports (see capabilities.py).

For example, the arguments of tool calls become objects or JSON text, as the template requires. What the template cannot
print moves to messages that it can: a system message describes the tools, the text of an assistant message has the
calls, and a user message has the result. Calls are written in the format of the model family if it has its own tool
prompt, else in that of Hermes (<tool_call> with a JSON object).

The messages are those of a ChatRequest, so they are valid: `content` is text or absent, and no field is null.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

from ...core.request import NO_PARAMETERS
from ...core.tool_results import results_of_calls
from .capabilities import Capabilities
from .messages import Message, Messages, are_texts_of_one_role, joined

CallsWriter = Callable[[Sequence[Mapping[str, Any]]], str]
"""Writes tool calls, each with `name` and `arguments`, in the format of a model family."""

_INSTRUCTIONS = """You can call functions. These are on offer, each with a JSON schema of its arguments:
<tools>
{tools}
</tools>
To call one, write its name and its arguments like this, once for each call:
{example}"""
_EXAMPLE = {"name": "the_name", "arguments": {"an_argument": "its value"}}


def adapt_messages(
    messages: Messages, tools: Messages | None, capabilities: Capabilities, write_calls: CallsWriter
) -> Messages:
    """Rewrite a conversation so that a template with these capabilities accepts and prints all of it.

    The messages of the request stay as they are. `tools` are described in a message if the template does not show them.
    """
    adapted = [_converted(message, capabilities) for message in messages]
    if tools and not capabilities.shows_tools:
        lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        text = _INSTRUCTIONS.format(tools=lines, example=write_calls([_EXAMPLE]))
        adapted.insert(0, {"role": "system", "content": text})
    if capabilities.one_call:
        adapted = _one_call_each(adapted)
    texts: Messages = [_as_text(message, capabilities, write_calls) for message in adapted]
    # Templates that lack a role often require alternating roles, too.
    if not (capabilities.shows_tools and capabilities.shows_results and capabilities.has_system_role):
        texts = joined(texts, are_texts_of_one_role)
    return [_with_content(message, capabilities) for message in texts]


def whole_tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool with the fields that are optional in the API, and without which many templates fail, after the others."""
    function = {**tool["function"]}
    function.setdefault("description", "")
    schema = function.get("parameters", {})
    function["parameters"] = {**schema, **{key: value for key, value in NO_PARAMETERS.items() if key not in schema}}
    return {**tool, "function": function}


def _converted(message: Mapping[str, Any], capabilities: Capabilities) -> Message:
    """A message with the roles, ids, arguments and reasoning that the template reads."""
    converted = {**message, "content": message.get("content", "")}
    if converted["role"] == "developer" and not capabilities.has_developer_role:
        converted["role"] = "system"
    if "tool_calls" in converted:
        converted["tool_calls"] = [_tool_call(call, capabilities) for call in converted["tool_calls"]]
    if capabilities.short_ids and "tool_call_id" in converted:
        converted["tool_call_id"] = _short_id(converted["tool_call_id"])
    if "reasoning_content" in converted:
        has_text_and_calls = converted["content"] and "tool_calls" in converted and capabilities.shows_calls
        if capabilities.lone_reasoning and has_text_and_calls:
            converted["content"] = f"{converted['reasoning_content']}\n\n{converted['content']}"
        else:
            converted.setdefault(capabilities.reasoning_key, converted["reasoning_content"])
    return converted


def _tool_call(call: Mapping[str, Any], capabilities: Capabilities) -> Message:
    """A tool call with the id and the arguments that the template reads."""
    function = call["function"]
    arguments = function["arguments"] or {}
    if capabilities.only_objects and not isinstance(_arguments_object(arguments), dict):
        # The model generated invalid arguments. Pass their text to the template as an argument.
        arguments = {"arguments": arguments}
    # `_as_text` writes calls that the template does not show, and encodes the arguments itself.
    if not (capabilities.text_arguments and capabilities.shows_calls):
        arguments = _arguments_object(arguments)
    elif not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    converted = {**call, "function": {**function, "arguments": arguments}}
    if capabilities.short_ids and "id" in converted:
        converted["id"] = _short_id(converted["id"])
    return converted


def _arguments_object(arguments: Any) -> Any:
    """Decode arguments. Text that is not a JSON object stays text; templates can print it."""
    with contextlib.suppress(ValueError):
        if isinstance(arguments, str) and isinstance(decoded := json.loads(arguments), dict):
            return decoded
    return arguments


def _short_id(call_id: object) -> str:
    """Convert an id to nine letters or digits. Equal ids stay equal, so results still match their calls."""
    text = str(call_id)
    return text if len(text) == 9 and text.isalnum() else hashlib.sha256(text.encode()).hexdigest()[:9]


def _one_call_each(messages: list[Message]) -> list[Message]:
    """Split messages with several calls, so that each message has one call and directly precedes its result."""
    split: list[Message] = []
    left = deque(messages)
    while left:
        message = left.popleft()
        if len(message.get("tool_calls", ())) < 2:
            split.append(message)
            continue
        results: list[Message] = []
        while left and left[0]["role"] == "tool":
            results.append(left.popleft())
        split += _with_results(message, results)
    return split


def _with_results(message: Message, results: Sequence[Message]) -> Iterator[Message]:
    """A message for each call, followed by its result; then the results of no call."""
    left = dict(enumerate(results))
    for call, index in zip(message["tool_calls"], results_of_calls(message["tool_calls"], results)):
        yield {**message, "tool_calls": [call]}
        message = {"role": "assistant", "content": ""}
        if index is not None:
            yield left.pop(index)
    yield from left.values()


def _as_text(message: Message, capabilities: Capabilities, write_calls: CallsWriter) -> Message:
    """A message whose calls, result or system role are user or assistant text, if the template does not print them."""
    role, calls = message["role"], [call["function"] for call in message.get("tool_calls", ())]
    if calls and not capabilities.shows_calls:
        content = "\n".join(filter(None, (message["content"], write_calls(calls))))
        return {**{key: value for key, value in message.items() if key != "tool_calls"}, "content": content}
    if role == "tool" and not capabilities.shows_results:
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    return {**message, "role": "user"} if role == "system" and not capabilities.has_system_role else message


def _with_content(message: Mapping[str, Any], capabilities: Capabilities) -> Mapping[str, Any]:
    """A message whose content has the type that the template reads: text, a list of parts, or null."""
    text = {"type": "text", "text": message["content"]}
    if capabilities.reasoning_part and "reasoning_content" in message:
        reasoning = {"type": "thinking", "thinking": message["reasoning_content"]}
        return {**message, "content": [reasoning, *([text] if text["text"] else [])]}
    if capabilities.typed_content:
        return {**message, "content": [text]}
    if capabilities.null_content and "tool_calls" in message:
        return {**message, "content": None}
    return message
