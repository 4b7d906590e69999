"""Detects what a chat template supports (roles, tools, calls, reasoning) by rendering small test conversations.

Templates differ in the roles, fields and types that they read. Each test conversation has a test word in one field;
the template supports the field if the rendered text contains the word.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, NamedTuple

from .sandbox import TemplateError

Messages = Sequence[Mapping[str, Any]]


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
    whole_tools: bool = False  # fails on tools without a description or parameters
    shows_calls: bool = True  # if not, calls are written into the text of the message
    shows_results: bool = True  # supports the role "tool"; if not, a user message has the result
    no_tools: tuple[()] | None = None  # `tools` without tools: most templates test for None, some iterate over it


# Renders messages and tools, prepared for these capabilities. Raises TemplateError.
Render = Callable[[Messages, "Messages | None", Capabilities], str]


def find_capabilities(source: str, render: Render) -> Capabilities:
    """Find the capabilities of the template with this Jinja source."""

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
    shows_tools = shows(_HAY, found, tools=_TOOLS)
    keys = [key for key in _REASONING_KEYS if re.search(rf"[.'\"]{key}\b", source)]
    found = found._replace(
        # Both tests are needed: some templates print any role, and some contain the word for another purpose.
        has_developer_role="developer" in source and shows(_DEVELOPER, found._replace(has_developer_role=True)),
        has_system_role=shows(_SYSTEM, found),
        # A template that supports tools may fail on the tools of this test, so the name of the variable counts.
        shows_tools="tools" in source or shows_tools,
        whole_tools=shows_tools and not shows(_HAY, found, tools=_BARE_TOOLS),
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

# The test word.
_NEEDLE = "needle"
_HAY: Messages = ({"role": "user", "content": "hay"},)
_USER: Messages = ({"role": "user", "content": _NEEDLE},)
_SYSTEM: Messages = ({"role": "system", "content": _NEEDLE}, *_HAY)
_DEVELOPER = ({"role": "developer", "content": _NEEDLE}, *_HAY)
_BARE_TOOLS: Messages = ({"type": "function", "function": {"name": _NEEDLE}},)
_TOOLS: Messages = (
    {
        "type": "function",
        "function": {
            "name": _NEEDLE,
            "description": "hay",
            "parameters": {"type": "object", "properties": {}, "required": []},
        },
    },
)


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
