"""Converts chat messages and tools to what a chat template supports, and finds out what that is.

For example, the arguments of tool calls become objects or JSON text, as the template requires. What the template cannot
print moves to messages that it can: a system message describes the tools, the text of an assistant message has the
calls, and a user message has the result. Calls are written in the format of the model family if it has its own tool
prompt, else in that of Hermes (<tool_call> with a JSON object).

The messages are those of a ChatRequest, so they are valid: `content` is text or absent, and no field is null.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import re
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple

from .jinja import TemplateError

Message = dict[str, Any]
Messages = Sequence[Mapping[str, Any]]
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


class Capabilities(NamedTuple):
    """What a chat template supports, and what it requires."""

    typed_content: bool = False  # reads `content` only as a list of parts
    text_arguments: bool = False  # prints arguments without encoding them, so they must be JSON text
    only_objects: bool = False  # fails on arguments that are not a JSON object
    one_call: bool = False  # prints at most one tool call of a message
    null_content: bool = False  # prints tool calls only in a message without content
    short_ids: bool = False  # refuses tool call ids other than nine letters or digits
    reasoning_key: str = "reasoning_content"  # the field of a message from which it reads reasoning
    reasoning_part: bool = False  # reads reasoning from a part of the content
    lone_reasoning: bool = False  # refuses reasoning in a message that has both text and tool calls
    has_developer_role: bool = False  # if not, a message of this role gets the role "system"
    has_system_role: bool = True  # if not, the first user message begins with the text
    shows_tools: bool = True  # if not, a system message describes the tools
    shows_calls: bool = True  # if not, calls are written into the text of the message
    shows_results: bool = True  # supports the role "tool"; if not, a user message has the result
    no_tools: tuple[()] | None = None  # `tools` of a request without tools: some templates iterate over it


def adapt_messages(
    messages: Messages, tools: Messages | None, capabilities: Capabilities, write_calls: CallsWriter
) -> list[Message]:
    """Rewrite a conversation so that a template with these capabilities accepts and prints all of it."""
    adapted = [_converted(message, capabilities) for message in messages]
    if tools and not capabilities.shows_tools:
        lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        text = _INSTRUCTIONS.format(tools=lines, example=write_calls([_EXAMPLE]))
        adapted.insert(0, {"role": "system", "content": text})
    if capabilities.one_call:
        adapted = _one_call_each(adapted)
    adapted = [_as_text(message, capabilities, write_calls) for message in adapted]
    # Templates that lack a role often require alternating roles, too.
    if not (capabilities.shows_tools and capabilities.shows_results and capabilities.has_system_role):
        adapted = _join_adjacent(adapted)
    return [_with_content(message, capabilities) for message in adapted]


def whole_tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool with the fields that are optional in the API, and without which many templates fail, after the others."""
    function = {**tool["function"]}
    function.setdefault("description", "")
    given = function.get("parameters", {})
    function["parameters"] = {**given, **{key: value for key, value in _NO_PARAMETERS.items() if key not in given}}
    return {**tool, "function": function}


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
    if not capabilities.text_arguments:
        arguments = _arguments_object(arguments)
    elif not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    result = {**call, "function": {**function, "arguments": arguments}}
    if capabilities.short_ids and "id" in result:
        result["id"] = _short_id(result["id"])
    return result


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
    """A message for each call, followed by its result; then the results of no call.

    A result without an id belongs to the first call without a result, and a call without an id has the first result
    that is left.
    """
    left = OrderedDict(enumerate(results))
    by_id: dict[object, deque[int]] = {}
    for index, result in left.items():
        by_id.setdefault(result.get("tool_call_id"), deque()).append(index)

    def first_with(call_id: object) -> list[int]:
        indexes = by_id.get(call_id, deque())
        while indexes and indexes[0] not in left:
            indexes.popleft()
        return [indexes[0]] if indexes else []

    for call in message["tool_calls"]:
        yield {**message, "tool_calls": [call]}
        message = {"role": "assistant", "content": ""}
        call_id = call.get("id")
        candidates = [next(iter(left))] if call_id is None and left else first_with(call_id) + first_with(None)
        if candidates:
            yield left.pop(min(candidates))
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


def _join_adjacent(messages: list[Message]) -> list[Message]:
    """Join adjacent messages of the same role that have only text."""

    def role_of_text(message: Message) -> object:
        """The role of a message that has only text; another value for each other message."""
        return message["role"] if message.keys() == {"role", "content"} else id(message)

    joined: list[Message] = []
    for _, group in itertools.groupby(messages, key=role_of_text):
        first, *others = group
        text = "\n\n".join([first["content"], *(message["content"] for message in others)])
        joined.append({**first, "content": text} if others else first)
    return joined


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


def find_capabilities(source: str, render: Callable[[Messages, Messages | None, Capabilities], str]) -> Capabilities:
    """Find the capabilities of the template with this Jinja source, by rendering small test conversations. Each has a
    test word in one field; the template supports the field if the rendered text contains the word. `render` renders
    messages and tools, prepared for these capabilities, and raises TemplateError."""

    def shows(messages: Messages, capabilities: Capabilities, tools: Messages | None = None) -> bool:
        try:
            text = render(messages, tools, capabilities)
        except TemplateError:
            return False
        # Single quotes show that the template prints a dict in Python's notation, so it needs arguments as JSON text.
        return _NEEDLE in text and "'" + _NEEDLE not in text

    def first_that_shows(messages: Messages, variants: Iterable[Capabilities]) -> Capabilities | None:
        return next((variant for variant in variants if shows(messages, variant)), None)

    plain = (Capabilities(typed_content=typed, no_tools=no) for typed in (False, True) for no in (None, ()))
    found = first_that_shows(_USER, plain) or Capabilities()
    keys = [key for key in _REASONING_KEYS if re.search(rf"[.'\"]{key}\b", source)]
    found = found._replace(
        # Both tests are needed: some templates print any role, and some contain the word for another purpose.
        has_developer_role="developer" in source and shows(_DEVELOPER, found._replace(has_developer_role=True)),
        has_system_role=shows(_SYSTEM, found),
        # A template that supports tools may fail on the tools of this test, so the name of the variable counts.
        shows_tools="tools" in source or shows(_HAY, found, tools=_TOOLS),
        reasoning_key=keys[0] if keys else _REASONING_KEYS[0],
    )
    options = itertools.product((False, True), repeat=3)
    with_calls = (found._replace(null_content=a, short_ids=b, text_arguments=c) for a, b, c in options)
    found = first_that_shows(_CALL, with_calls) or found._replace(shows_calls=False)
    may_read_parts = re.search("""['"]thinking['"]""", source)
    with_parts = [found._replace(reasoning_part=True)] if may_read_parts else []
    found = first_that_shows(_REASONING, [found, *with_parts]) or found
    return found._replace(
        lone_reasoning=found.shows_calls and not shows(_REASONING_AND_CALL, found),
        shows_results=shows(_RESULT, found),
        one_call=found.shows_calls and not shows(_TWO_CALLS, found),
        only_objects=found.shows_calls and not shows(_CALL_WITH_TEXT, found),
    )


_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning", "thought")

_NEEDLE = "needle"  # The test word.
_HAY: Messages = ({"role": "user", "content": "hay"},)
_USER: Messages = ({"role": "user", "content": _NEEDLE},)
_SYSTEM: Messages = ({"role": "system", "content": _NEEDLE}, *_HAY)
_DEVELOPER = ({"role": "developer", "content": _NEEDLE}, *_HAY)
_TOOL = {"name": _NEEDLE, "description": "hay", "parameters": {**_NO_PARAMETERS, "required": []}}
_TOOLS: Messages = ({"type": "function", "function": _TOOL},)


def _call_and_result(arguments: str | Mapping[str, str], result: str) -> Messages:
    function = {"name": "hay", "arguments": arguments}
    call = {"id": "call_" + 24 * "0", "type": "function", "function": function}
    return (
        *_HAY,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "name": "hay", "content": result},
    )


_CALL = _call_and_result({_NEEDLE: "hay"}, "hay")
_CALL_WITH_TEXT = _call_and_result(_NEEDLE, "hay")
_RESULT = _call_and_result({"hay": "hay"}, _NEEDLE)
_SECOND = {**_CALL[1]["tool_calls"][0], "id": "call_" + 24 * "1"}
_TWO_CALLS: Messages = (
    *_HAY,
    {**_CALL[1], "tool_calls": [_RESULT[1]["tool_calls"][0], _SECOND]},
    _CALL[2],
    {**_CALL[2], "tool_call_id": _SECOND["id"]},
)
_REASONING: Messages = (*_HAY, {"role": "assistant", "content": "hay", "reasoning_content": _NEEDLE})
_REASONING_AND_CALL: Messages = (_CALL[0], {**_CALL[1], "content": "hay", "reasoning_content": "hay"}, _CALL[2])
