"""Keeps texts of the assistant from being cut at tags of reasoning in them.

Templates cut a text of the assistant at the end tag of reasoning, wherever it is. So every tag that is a part of a text
is hidden (see control_tokens.py); those around reasoning stay, so that the template can leave the reasoning out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..dialects.dialect import Dialect
from .control_tokens import with_hidden, without_markers
from .messages import Messages

_TEXTS = ("content", "reasoning_content")


class AssistantTags:
    """The tags of a dialect in texts of the assistant: those around reasoning, and those that begin text."""

    def __init__(self, dialect: Dialect) -> None:
        self._start, self._end = dialect.reasoning.start, dialect.reasoning.end
        self._tags = (self._start, self._end, *dialect.opening_markers)

    def are_in(self, messages: Messages) -> bool:
        """Whether a text of the assistant has a tag."""
        return any(map(self._are_in_message, messages))

    def hidden_in(self, messages: Messages, *, is_open: bool) -> Messages:
        """The messages, where a template finds no tags in the texts of the assistant but those around reasoning.

        `is_open` is whether prompts open the reasoning. These texts of the assistant have reasoning:

            <think>hm</think>Hi     a raw output
            hm</think>Hi            one of a template whose prompt opens the reasoning, in a message without reasoning
        """
        return [
            self._hidden_in_message(message, is_open) if self._are_in_message(message) else message
            for message in messages
        ]

    def end_hidden_in(self, text: str) -> str:
        """A text in which a template that cuts reasoning off finds no end tag."""
        return with_hidden(self._end, text)

    def without_reasoning(self, text: str) -> str:
        """A text of the assistant, as `hidden_in` returns it, without its reasoning."""
        return without_markers(text.rpartition(self._end)[2])

    def _are_in_message(self, message: Mapping[str, Any]) -> bool:
        texts = [message.get(key, "") for key in _TEXTS] if message["role"] == "assistant" else []
        return any(tag in text for tag in self._tags for text in texts)

    def _hidden_in_message(self, message: Mapping[str, Any], is_open: bool) -> Mapping[str, Any]:
        texts = {key: message[key] for key in _TEXTS if key in message}
        before, found_end, after = texts.get("content", "").partition(self._end)
        continues = is_open and self._start not in before and "reasoning_content" not in message
        raw_reasoning = ""
        if found_end and (before.lstrip().startswith(self._start) or continues):
            raw_reasoning, texts["content"] = before + self._end, after
        for tag in self._tags:
            texts = {key: with_hidden(tag, text) for key, text in texts.items()}
        if raw_reasoning:
            texts["content"] = raw_reasoning + texts["content"]
        return {**message, **texts}
