"""The i-th item of the lists that a request may have: a tool, a call, or the result of a call, by interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Item = dict[str, Any]


def user(content: Any = "a", **fields: Any) -> Item:
    return {"role": "user", "content": content, **fields}


def function(i: int, parameters: Any = None) -> Item:
    return {"type": "function", "function": {"name": f"f{i}", "parameters": {} if parameters is None else parameters}}


def call(i: int, arguments: Any = "{}") -> Item:
    return {"id": f"c{i}", "type": "function", "function": {"name": "f", "arguments": arguments}}


def result(i: int, content: Any = "r") -> Item:
    return {"role": "tool", "tool_call_id": f"c{i}", "content": content}


def tool_use(i: int) -> Item:
    """A call in Anthropic's Messages."""
    return {"type": "tool_use", "id": f"c{i}", "name": "f", "input": {}}


def tool_result(i: int) -> Item:
    return {"type": "tool_result", "tool_use_id": f"c{i}", "content": "r"}


def function_call(i: int) -> Item:
    """A call in OpenAI's Responses."""
    return {"type": "function_call", "call_id": f"c{i}", "name": "f", "arguments": "{}"}


def function_output(i: int) -> Item:
    return {"type": "function_call_output", "call_id": f"c{i}", "output": "r"}


def alternating(n: int, *makers: Callable[[int], Item]) -> list[Item]:
    return [make(i) for i in range(n) for make in makers]
