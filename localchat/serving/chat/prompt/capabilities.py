"""What a chat template supports and requires, found by rendering small test conversations.

Each test conversation has a test word in one field. The template supports the field if the rendered text contains the
word.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, NamedTuple

from .control_tokens import without_markers
from .jinja import TemplateError
from .missing_text import missing_text

Message = dict[str, Any]
Messages = Sequence[Mapping[str, Any]]
NO_PARAMETERS = {"type": "object", "properties": {}}
"""The schema of the arguments of a tool that declares none."""


class Capabilities(NamedTuple):
    """What a chat template supports, and what it requires."""

    typed_content: bool = False  # It reads `content` only as a list of parts.
    text_arguments: bool = False  # It prints arguments without encoding them, so they must be JSON text.
    only_objects: bool = False  # It fails on arguments that are not a JSON object.
    one_call: bool = False  # It prints at most one tool call of a message.
    null_content: bool = False  # It prints tool calls only in a message without content.
    short_ids: bool = False  # It refuses tool call ids other than nine letters or digits.
    reasoning_key: str = "reasoning_content"  # The field of a message from which it reads reasoning.
    reasoning_part: bool = False  # It reads reasoning from a part of the content.
    lone_reasoning: bool = False  # It refuses reasoning in a message that has both text and tool calls.
    has_developer_role: bool = False  # If not, a message of this role gets the role "system".
    has_system_role: bool = True  # If not, the first user message begins with the text.
    shows_tools: bool = True  # If not, a system message describes the tools.
    shows_calls: bool = True  # If not, calls are written into the text of the message.
    shows_results: bool = True  # It supports the role "tool". If not, a user message has the result.
    prints_texts: bool = True  # It prints texts as they are, so that a missing one can be noticed.
    no_tools: tuple[()] | None = None  # `tools` of a request without tools: some templates iterate over it.


Render = Callable[[Messages, "Messages | None", Capabilities], str]
"""Renders messages and tools, prepared for these capabilities. Raises TemplateError."""


def find_capabilities(source: str, render: Render) -> Capabilities:
    """Find the capabilities of the template with this Jinja source.

    Capabilities that change how a message is prepared are found by trying each preparation. The first one with which
    the template prints the test word is chosen.
    """

    def shows(messages: Messages, capabilities: Capabilities, tools: Messages | None = None) -> bool:
        try:
            text = render(messages, tools, capabilities)
        except TemplateError:
            return False
        # Single quotes show that the template prints a dict in Python's notation, so it needs arguments as JSON text.
        return _TEST_WORD in text and "'" + _TEST_WORD not in text

    def first_that_shows(messages: Messages, variants: Iterable[Capabilities]) -> Capabilities | None:
        return next((variant for variant in variants if shows(messages, variant)), None)

    variants = (
        Capabilities(typed_content=typed, no_tools=no_tools) for typed in (False, True) for no_tools in (None, ())
    )
    capabilities = first_that_shows(_USER, variants) or Capabilities()
    reasoning_keys = [key for key in REASONING_KEYS if re.search(rf"[.'\"]{key}\b", source)]
    with_developer = capabilities._replace(has_developer_role=True)
    capabilities = capabilities._replace(
        # Both tests are needed: some templates print any role, and some contain the word for another purpose.
        has_developer_role="developer" in source and shows(_DEVELOPER, with_developer),
        has_system_role=shows(_SYSTEM, capabilities),
        # A template that supports tools may fail on the tools of this test, so the name of the variable counts.
        shows_tools="tools" in source or shows(_OTHER_USER, capabilities, tools=_TOOLS),
        reasoning_key=reasoning_keys[0] if reasoning_keys else REASONING_KEYS[0],
    )
    variants = (
        capabilities._replace(null_content=null_content, short_ids=short_ids, text_arguments=text_arguments)
        for null_content, short_ids, text_arguments in itertools.product((False, True), repeat=3)
    )
    capabilities = first_that_shows(_CALL, variants) or capabilities._replace(shows_calls=False)
    may_read_parts = re.search("""['"]thinking['"]""", source)
    with_part = [capabilities._replace(reasoning_part=True)] if may_read_parts else []
    capabilities = first_that_shows(_REASONING, [capabilities, *with_part]) or capabilities
    return capabilities._replace(
        prints_texts=_prints_texts(render, capabilities),
        lone_reasoning=capabilities.shows_calls and not shows(_REASONING_AND_CALL, capabilities),
        shows_results=shows(_RESULT, capabilities),
        one_call=capabilities.shows_calls and not shows(_TWO_CALLS, capabilities),
        only_objects=capabilities.shows_calls and not shows(_CALL_WITH_TEXT, capabilities),
    )


def _prints_texts(render: Render, capabilities: Capabilities) -> bool:
    try:
        prompt = render([{"role": "user", "content": _ANY_TEXT}], None, capabilities)
    except TemplateError:
        return False
    return missing_text(without_markers(prompt), [{"role": "user", "content": _ANY_TEXT}], lambda text: text) is None


# A text in which templates could change something.
_ANY_TEXT = 'A "text"\n\n  of <b>three</b> lines,\nsuch as `x = {1: 2}` & more'

# The fields of a message from which templates read reasoning.
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning", "thought")

# The test conversations. Fields that are not tested have another word.
_TEST_WORD = "needle"
_OTHER_USER: Messages = ({"role": "user", "content": "hay"},)
_USER: Messages = ({"role": "user", "content": _TEST_WORD},)
_SYSTEM: Messages = ({"role": "system", "content": _TEST_WORD}, *_OTHER_USER)
_DEVELOPER = ({"role": "developer", "content": _TEST_WORD}, *_OTHER_USER)
_TOOL = {"name": _TEST_WORD, "description": "hay", "parameters": {**NO_PARAMETERS, "required": []}}
_TOOLS: Messages = ({"type": "function", "function": _TOOL},)


def _call_and_result(arguments: str | Mapping[str, str], result: str) -> Messages:
    function = {"name": "hay", "arguments": arguments}
    call = {"id": "call_" + 24 * "0", "type": "function", "function": function}
    return (
        *_OTHER_USER,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "name": "hay", "content": result},
    )


_CALL = _call_and_result({_TEST_WORD: "hay"}, "hay")
_CALL_WITH_TEXT = _call_and_result(_TEST_WORD, "hay")
_RESULT = _call_and_result({"hay": "hay"}, _TEST_WORD)
_SECOND_CALL = {**_CALL[1]["tool_calls"][0], "id": "call_" + 24 * "1"}
_TWO_CALLS: Messages = (
    *_OTHER_USER,
    {**_CALL[1], "tool_calls": [_RESULT[1]["tool_calls"][0], _SECOND_CALL]},
    _CALL[2],
    {**_CALL[2], "tool_call_id": _SECOND_CALL["id"]},
)
_REASONING: Messages = (*_OTHER_USER, {"role": "assistant", "content": "hay", "reasoning_content": _TEST_WORD})
_REASONING_AND_CALL: Messages = (_CALL[0], {**_CALL[1], "content": "hay", "reasoning_content": "hay"}, _CALL[2])
