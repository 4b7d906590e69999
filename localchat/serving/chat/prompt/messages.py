"""Chat messages, and how several become one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable

Message = dict[str, Any]
Messages = Sequence[Mapping[str, Any]]
"""Messages or tools, as values of JSON."""

REASONING_KEYS = ("reasoning_content", "thinking", "reasoning", "thought")
"""The fields of a message from which templates read reasoning."""


def joined(
    messages: Iterable[Mapping[str, Any]], can_join: Callable[[Mapping[str, Any], Mapping[str, Any]], bool]
) -> Messages:
    """The messages, where one that `can_join` the first one of those directly before it is joined to them."""
    groups: list[list[Mapping[str, Any]]] = []
    for message in messages:
        if groups and can_join(groups[-1][0], message):
            groups[-1].append(message)
        else:
            groups.append([message])
    return list(map(_joined_group, groups))


def are_texts_of_one_role(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Whether two messages can be joined. Calls and results stay apart, since each result belongs to a call."""
    has_calls = "tool_calls" in first or "tool_calls" in second
    return first["role"] == second["role"] != "tool" and not has_calls


def _joined_group(messages: Messages) -> Mapping[str, Any]:
    """The first message, with the texts and the reasoning of the others after its own, separated by blank lines."""
    if len(messages) == 1:
        return messages[0]
    whole = dict(messages[0])
    for key in ("content", *REASONING_KEYS):
        texts = [text for message in messages if isinstance(text := message.get(key), str) and text]
        if texts:
            whole[key] = "\n\n".join(texts)
    return whole
