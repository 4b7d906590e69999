"""Constraints for tests: requests, the texts that match them, and the calls that the parser reads in a text."""

import copy
import functools
import json
import random
from typing import Any

import pytest

from localchat.serving.chat.constraints.constraint import constraint_for
from localchat.serving.chat.constraints.gbnf import gbnf_rule
from localchat.serving.chat.dialects import Dialect
from localchat.serving.chat.prompt.template import ChatTemplate
from localchat.serving.core.events import ToolCallArguments, ToolCallStart
from localchat.serving.core.request import ChatRequest, ResponseFormat
from localchat.serving.engine.values import Constraint
from tests.support.dialect_outputs import parse
from tests.support.json_validator import is_valid, load

llguidance = pytest.importorskip("llguidance", reason="llguidance needs Python 3.10")

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
MESSAGES = ({"role": "user", "content": "hello"},)
PLAIN = "{{ messages[-1].content }}{{ tools }}<tool_call></tool_call>"
PROMPT = "<|im_start|>assistant\n"

# A token for each byte, and an end-of-generation token.
_TOKENIZER = llguidance.LLTokenizer("byte")
_END = _TOKENIZER.eos_token


template_of = functools.lru_cache(ChatTemplate)


def constraint_of(template: str = PLAIN, prompt: str = PROMPT, dialect: Dialect | None = None, **fields: Any) -> Any:
    """The constraint of a request with these fields. `dialect` replaces that of the template."""
    made = copy.copy(template_of(template))
    made.dialect = dialect or made.dialect
    reasoning = made.dialect.prompt_end(prompt).reasoning
    return constraint_for(ChatRequest(**{"messages": MESSAGES, **fields}), made, reasoning)


def fits(constraint: Constraint | None, text: str) -> bool:
    """Whether the constraint allows a text as a whole."""
    matcher, data = matcher_of(constraint), list(text.encode())
    return bool(matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting())


def check_fits(constraint: Constraint | None, right: list[str], wrong: list[str]) -> None:
    assert [text for text in right if not fits(constraint, text)] == []
    assert [text for text in wrong if fits(constraint, text)] == []


def matcher_of(constraint: Constraint | None) -> Any:
    """A matcher for the tokens of bytes."""
    assert constraint is not None
    matcher = llguidance.LLMatcher(_TOKENIZER, constraint.grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error() + constraint.grammar
    return matcher


def generated(constraint: Constraint | None, chance: random.Random, n_most: int = 2000) -> str | None:
    """A random text that the constraint allows; None if it does not end within `n_most` bytes."""
    matcher, data = matcher_of(constraint), bytearray()
    while len(data) < n_most:
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        plain = [i for i in (*range(32, 127), _END) if mask >> i & 1]
        allowed = plain or [i for i in range(256) if mask >> i & 1]
        token = _END if _END in allowed and chance.random() < 0.3 else chance.choice(allowed)
        if token == _END:
            return data.decode()
        matcher.consume_token(token)
        data.append(token)
    return None


def gbnf(grammar: str) -> Constraint:
    """The constraint of a grammar in GBNF."""
    return Constraint("start: " + gbnf_rule(grammar))


def required(**fields: Any) -> dict[str, Any]:
    return {"tools": TOOLS, "tool_choice": "required", **fields}


def formatted(kind: str, value: Any = None) -> dict[str, Any]:
    return {"response_format": ResponseFormat(kind, value, kind)}


def calls_in(dialect: Dialect, tools: Any, text: str, prompt: str = PROMPT) -> list[Any]:
    """The calls of a text that has nothing else."""
    if text.startswith("<atem"):  # Calls of Muse follow a header with the name of the function.
        prompt = f"<|start|>assistant to={tools[0]['function']['name']}<|message|>"
    events = parse([text], dialect, tools=tools, prompt=prompt)
    assert {type(event) for event in events} == {ToolCallStart, ToolCallArguments}, (text, events)
    arguments = [load(event.text) for event in events if isinstance(event, ToolCallArguments)]
    return list(zip((event.name for event in events if isinstance(event, ToolCallStart)), arguments))


def check_calls(dialect: Dialect, tools: Any, text: str, prompt: str = PROMPT) -> None:
    """Check that a text has only calls, and that their arguments match the schemas."""
    schemas = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in tools}
    for name, arguments in calls_in(dialect, tools, text, prompt):
        assert is_valid(json.dumps(arguments), schemas[name]), text
