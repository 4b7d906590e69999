"""The value that every generator returns, and how it becomes training text.

`render` must give the same text as `chat_template.jinja` (a test compares them); it also marks
which parts the model has to learn to write.
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
    """A conversation that ends with an assistant message.

    `thinking` is the template variable `enable_thinking`: None where the caller leaves it unset.
    """

    messages: list[Message]
    tools: list[Tool] | None = None
    thinking: bool | None = None
    skill: str = ""


@dataclass(frozen=True)
class Segment:
    """A piece of rendered text; `learned` means that the model writes it."""

    text: str
    learned: bool


def user(text: str) -> Message:
    """A user's message."""
    return {"role": "user", "content": text}


def assistant(text: str, thought: str = "") -> Message:
    """The model's message, with the reasoning that precedes it if any."""
    message: Message = {"role": "assistant", "content": text}
    if thought:
        message["reasoning_content"] = thought
    return message


def calling(calls: list[tuple[str, dict[str, Any]]], thought: str = "") -> Message:
    """An assistant's message that calls tools."""
    message = assistant("", thought)
    message["tool_calls"] = [
        {"type": "function", "function": {"name": name, "arguments": arguments}} for name, arguments in calls
    ]
    return message


def tool_result(text: str) -> Message:
    """What a tool answered."""
    return {"role": "tool", "content": text}


def _answer_text(message: Message) -> str:
    parts = [message["content"]] if message["content"] else []
    for call in message.get("tool_calls", ()):
        function = call["function"]
        arguments = json.dumps(function["arguments"], ensure_ascii=False)
        name = function["name"]
        parts.append(f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>')
    return "\n".join(parts)


def _signature(tool: Tool) -> str:
    """The tool in one line, from which a model can read forwards alone.

    The name comes a second time after what tells what it is for, and a parameter's name after each of its options:
    a small model learns within minutes what follows what it looks for, and hardly what precedes it.
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

    Before the last user message reasoning is left out, as the template does. Where thinking is asked for in words,
    only the answers after that message are learned: earlier ones lack the form that is asked for. The template's
    switch shows in the last answer alone, so that the earlier ones are as good as any.
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
            segments += _render_answer(message, dialogue.thinking, i > last_user, learn_earlier)
    return segments


def _render_answer(message: Message, thinking: bool | None, current: bool, learn_earlier: bool) -> list[Segment]:
    opening, thought = "<|im_start|>assistant\n", ""
    if current and thinking is False:
        opening += "<think>\n\n</think>\n\n"
    elif current and "reasoning_content" in message:
        thought = message["reasoning_content"] + "\n</think>\n\n"
        if thinking:
            opening += "<think>\n"
        else:
            thought = "<think>\n" + thought
    learned = current or learn_earlier
    return [
        Segment(opening, False),
        Segment(thought + _answer_text(message) + "<|im_end|>", learned),
        Segment("\n", False),
    ]
