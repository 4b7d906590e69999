"""Dialogues, which every generator returns, and their training text.

`render` must give the same text as `chat_template.jinja`; a test compares them. It also marks the parts that the model
learns to generate.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]
Tool = dict[str, Any]

TOOLS_INTRO = "You can call these tools:\n<tools>"
TOOLS_OUTRO = (
    '\n</tools>\nTo call a tool, write\n<tool_call>\n{"name": the tool, "arguments": {its arguments}}\n</tool_call>'
)


@dataclass(frozen=True)
class Dialogue:
    """A conversation that ends with an assistant message."""

    messages: list[Message]
    tools: list[Tool] | None = None
    # The template variable `enable_thinking`; None if it is not set.
    thinking: bool | None = None
    skill: str = ""


@dataclass(frozen=True)
class Segment:
    """A piece of rendered text."""

    text: str
    # Whether the model learns to generate this piece.
    learned: bool


def user(text: str) -> Message:
    """A user message."""
    return {"role": "user", "content": text}


def assistant(text: str, reasoning: str = "") -> Message:
    """An assistant message, with reasoning if it is not empty."""
    message: Message = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning_content"] = reasoning
    return message


def calling(calls: list[tuple[str, dict[str, Any]]], reasoning: str = "") -> Message:
    """An assistant message that calls tools."""
    message = assistant("", reasoning)
    message["tool_calls"] = [
        {"type": "function", "function": {"name": name, "arguments": arguments}} for name, arguments in calls
    ]
    return message


def tool_result(text: str) -> Message:
    """A tool message."""
    return {"role": "tool", "content": text}


def _output_text(message: Message) -> str:
    parts = [message["content"]] if message["content"] else []
    for call in message.get("tool_calls", ()):
        function = call["function"]
        arguments = json.dumps(function["arguments"], ensure_ascii=False)
        name = function["name"]
        parts.append(f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>')
    return "\n".join(parts)


def _signature(tool: Tool) -> str:
    """The line that describes a tool in the prompt.

    The name of the tool is repeated after its description, and the name of a parameter after each of its options: a
    small model quickly learns to find the text that follows a match, and hardly learns to find the text before it.
    """
    function = tool.get("function", tool)
    schema = function["parameters"]
    params = []
    for name, about in schema["properties"].items():
        kind = "|".join(f"{option}={name}" for option in about["enum"]) if "enum" in about else about["type"]
        params.append(f"{name}{'' if name in schema.get('required', ()) else '?'}: {kind}")
    description = function["description"] + " " if "description" in function else ""
    return f"{function['name']}: {description}{function['name']}({', '.join(params)})"


def _system_text(dialogue: Dialogue) -> str | None:
    first = dialogue.messages[0]
    text = first["content"] if first["role"] == "system" else None
    if not dialogue.tools:
        return text
    lines = ["\n" + _signature(tool) for tool in dialogue.tools]
    head = text + "\n\n" if text else ""
    return head + TOOLS_INTRO + "".join(lines) + TOOLS_OUTRO


def render(dialogue: Dialogue) -> list[Segment]:
    """The training text in pieces.

    Reasoning before the last user message is left out, as in the template. If the system or user text requests
    reasoning, only the assistant messages after the last user message are learned, since the earlier ones are then
    without the reasoning that the text requests. If the template variable requests it, all are learned: the variable
    changes only the last message.
    """
    messages = dialogue.messages
    last_user = max(i for i, message in enumerate(messages) if message["role"] == "user")
    segments = []
    system = _system_text(dialogue)
    if system is not None:
        segments.append(Segment(f"<|im_start|>system\n{system}<|im_end|>\n", False))
    learn_earlier = dialogue.thinking is not None or not any("reasoning_content" in m for m in messages)
    for i, message in enumerate(messages):
        role = message["role"]
        if role == "user":
            segments.append(Segment(f"<|im_start|>user\n{message['content']}<|im_end|>\n", False))
        elif role == "tool":
            opening = "<|im_start|>user" if messages[i - 1]["role"] != "tool" else ""
            more = i + 1 < len(messages) and messages[i + 1]["role"] == "tool"
            closing = "" if more else "<|im_end|>\n"
            text = f"\n<tool_response>\n{message['content']}\n</tool_response>"
            segments.append(Segment(opening + text + closing, False))
        elif role == "assistant":
            segments += _render_output(message, dialogue.thinking, i > last_user, learn_earlier)
    return segments


def _render_output(message: Message, thinking: bool | None, current: bool, learn_earlier: bool) -> list[Segment]:
    opening, reasoning = "<|im_start|>assistant\n", ""
    if current and thinking is False:
        opening += "<think>\n\n</think>\n\n"
    elif current and "reasoning_content" in message:
        reasoning = message["reasoning_content"] + "\n</think>\n\n"
        if thinking:
            opening += "<think>\n"
        else:
            reasoning = "<think>\n" + reasoning
    learned = current or learn_earlier
    return [
        Segment(opening, False),
        Segment(reasoning + _output_text(message) + "<|im_end|>", learned),
        Segment("\n", False),
    ]
