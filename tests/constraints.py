"""Constraints for tests: requests, the texts that match them, and the calls that the parser reads in a text."""

from __future__ import annotations

import json
from typing import Any

from localchat.serving.api.chat import ChatRequest
from localchat.serving.chat.constraints import constraint_for
from localchat.serving.chat.dialects import Dialect
from localchat.serving.chat.dialects.parser import OutputParser, merged
from localchat.serving.chat.prompt.template import ChatTemplate
from localchat.serving.core.events import ContentDelta, ReasoningDelta, ToolCallArguments, ToolCallStart
from localchat.serving.core.response_format import ResponseFormat
from localchat.serving.engine import Constraint

from .gbnf import matches
from .grammar_validator import is_valid

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 5}, "days": {"type": "integer", "minimum": 0}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = (
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
)
OPEN_SCHEMA = {**SCHEMA, "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
MESSAGES = ({"role": "user", "content": "hello"},)
PLAIN = "{{ messages[-1].content }}{{ tools }}<tool_call></tool_call>"
THINKS = PLAIN + "{# <think> </think> #}"
PROMPT = "<|im_start|>assistant\n"
OPEN_PROMPT = PROMPT + "<think>\n"
CLOSED_PROMPT = PROMPT + "<think>\n\n</think>\n\n"

WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
WRONG = '<tool_call>\n{"name": "weather", "arguments": {"city": 1}}\n</tool_call>'
REASONING = "<think>\nI wonder: <tool?\n</think>\n\n"


def constraint_of(template: str = PLAIN, prompt: str = PROMPT, **fields: Any) -> Constraint | None:
    request = ChatRequest(messages=MESSAGES, **fields)
    return constraint_for(request, ChatTemplate(template), prompt)


def fits(constraint: Constraint | None, text: str) -> bool:
    assert constraint is not None
    return matches(constraint.grammar, text, constraint.root)


def required(**fields: Any) -> dict[str, Any]:
    return {"tools": TOOLS, "tool_choice": "required", **fields}


def auto(**fields: Any) -> dict[str, Any]:
    return {"tools": TOOLS, "tool_choice": "auto", **fields}


def formatted(kind: str, value: Any = None) -> dict[str, Any]:
    return {"response_format": ResponseFormat(kind, value, kind)}


CITY = formatted("json_schema", SCHEMA)


def _parser(dialect: Dialect, tools: Any, text: str, prompt: str = PROMPT) -> OutputParser:
    """A parser for a text of calls. Calls of Muse follow a header with the name of the function."""
    header = f"<|start|>assistant to={tools[0]['function']['name']}<|message|>"
    return OutputParser(dialect, tools=tools, prompt=header if text.startswith("<atem") else prompt)


def read_calls(dialect: Dialect, tools: Any, text: str) -> list[Any]:
    """The calls of a text that has nothing else."""
    parser = _parser(dialect, tools, text)
    events = merged([*parser.feed(text), *parser.finish()])
    assert {type(event) for event in events} == {ToolCallStart, ToolCallArguments}
    arguments = [json.loads(event.text) for event in events if isinstance(event, ToolCallArguments)]
    return list(zip((event.name for event in events if isinstance(event, ToolCallStart)), arguments))


def check_calls(dialect: Dialect, tools: Any, text: str, prompt: str = PROMPT) -> None:
    """Check that a text has only calls, and that their arguments match the schemas."""
    parser = _parser(dialect, tools, text, prompt)
    events = [*parser.feed(text), *parser.finish()]
    heads = [event for event in events if isinstance(event, ToolCallStart)]
    assert heads, (text, events)
    assert not [event for event in events if isinstance(event, (ContentDelta, ReasoningDelta)) and event.text], (
        text,
        events,
    )
    schemas = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in tools}
    for head in heads:
        pieces = [e.text for e in events if isinstance(e, ToolCallArguments) and e.index == head.index]
        assert is_valid("".join(pieces), schemas[head.name]), (text, events)
