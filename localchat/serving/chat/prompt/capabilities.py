"""What a chat template supports and requires, found by rendering small test conversations.

Each test conversation has a test word in one field. The template supports the field if the rendered text contains the
word.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from typing import Callable, NamedTuple

from ...core.request import NO_PARAMETERS
from .control_tokens import without_markers
from .jinja import TemplateError
from .messages import REASONING_KEYS, Messages
from .missing_text import missing_text


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
    reasons_in_texts: bool = True  # It prints the reasoning of a message without calls.
    lone_reasoning: bool = False  # It refuses reasoning beside both text and tool calls, and takes the text for it.
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
    """Find the capabilities of the template with this Jinja source."""
    tests = _Tests(source, render)
    # Each step prepares its test conversations for the capabilities that the steps before it have found.
    capabilities = tests.content()
    capabilities = tests.roles_and_tools(capabilities)
    capabilities = tests.calls(capabilities)
    capabilities = tests.reasoning(capabilities)
    return tests.combinations(capabilities)


class _Tests:
    """Tests of a template.

    Capabilities that change how a message is prepared are found by trying each preparation. The first one with which
    the template prints the test word is chosen.
    """

    def __init__(self, source: str, render: Render) -> None:
        self._source = source
        self._render = render

    def content(self) -> Capabilities:
        variants = [
            Capabilities(typed_content=typed, no_tools=no_tools) for typed in (False, True) for no_tools in (None, ())
        ]
        return self._first_with_word(_USER, variants) or Capabilities()

    def roles_and_tools(self, capabilities: Capabilities) -> Capabilities:
        with_developer = capabilities._replace(has_developer_role=True)
        return capabilities._replace(
            # Both tests are needed: some templates print any role, and some contain the word for another purpose.
            has_developer_role="developer" in self._source and self._prints_word(_DEVELOPER, with_developer),
            has_system_role=self._prints_word(_SYSTEM, capabilities),
            # A template that supports tools may fail on the tools of this test, so the name of the variable counts.
            shows_tools="tools" in self._source or self._prints_word(_OTHER_USER, capabilities, tools=_TOOLS),
        )

    def calls(self, capabilities: Capabilities) -> Capabilities:
        variants = [
            capabilities._replace(null_content=null_content, short_ids=short_ids, text_arguments=text_arguments)
            for null_content, short_ids, text_arguments in itertools.product((False, True), repeat=3)
        ]
        return self._first_with_word(_CALL, variants) or capabilities._replace(shows_calls=False)

    def reasoning(self, capabilities: Capabilities) -> Capabilities:
        keys = [key for key in REASONING_KEYS if re.search(rf"[.'\"]{key}\b", self._source)]
        capabilities = capabilities._replace(reasoning_key=keys[0] if keys else REASONING_KEYS[0])
        variants = [capabilities]
        if re.search("""['"]thinking['"]""", self._source):
            variants.append(capabilities._replace(reasoning_part=True))
        return self._first_with_word(_REASONING, variants) or capabilities._replace(reasons_in_texts=False)

    def combinations(self, capabilities: Capabilities) -> Capabilities:
        """Find what the template refuses or leaves out of messages with several parts."""
        shows_calls = capabilities.shows_calls
        return capabilities._replace(
            prints_texts=self._prints_texts(capabilities),
            lone_reasoning=self._prints_word(_TEXT_AND_CALL, capabilities)
            and not self._prints_word(_REASONING_AND_CALL, capabilities),
            shows_results=self._prints_word(_RESULT, capabilities),
            one_call=shows_calls and not self._prints_word(_TWO_CALLS, capabilities),
            only_objects=shows_calls and not self._prints_word(_CALL_WITH_TEXT, capabilities),
        )

    def _first_with_word(self, messages: Messages, variants: Iterable[Capabilities]) -> Capabilities | None:
        return next((variant for variant in variants if self._prints_word(messages, variant)), None)

    def _prints_word(self, messages: Messages, capabilities: Capabilities, tools: Messages | None = None) -> bool:
        """Whether the template prints the test word."""
        try:
            text = self._render(messages, tools, capabilities)
        except TemplateError:
            return False
        # Single quotes show that the template prints a dict in Python's notation, so it needs arguments as JSON text.
        return _TEST_WORD in text and "'" + _TEST_WORD not in text

    def _prints_texts(self, capabilities: Capabilities) -> bool:
        messages = [{"role": "user", "content": _ANY_TEXT}]
        try:
            prompt = self._render(messages, None, capabilities)
        except TemplateError:
            return False
        return missing_text(without_markers(prompt), messages, lambda text: text) is None


# A text in which templates could change something.
_ANY_TEXT = 'A "text"\n\n  of <b>three</b> lines,\nsuch as `x = {1: 2}` & more'

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
_TEXT_AND_CALL: Messages = (_CALL[0], {**_CALL[1], "content": "hay"}, _CALL[2])
_REASONING_AND_CALL: Messages = (_CALL[0], {**_TEXT_AND_CALL[1], "reasoning_content": "hay"}, _CALL[2])
