"""The items of POST /v1/responses, and the chat messages that they become.

    {"type": "reasoning", ...}, {"type": "message", "role": "assistant", ...}, {"type": "function_call", ...}

These three items, one after the other, are one message of the assistant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..core.fields import Fields, without_nulls
from ..core.request import SYSTEM_ROLES
from .content import MessageAt, Origin, origins, part_text, read_text, texts_in
from .response_store import ResponseStore
from .tools import CUSTOM_INPUT, qualified, tool_call

REASONING_MARK = "localchat:"
"""Precedes the reasoning in an `encrypted_content` of this server, to distinguish it from that of other servers.

Clients send the field back unchanged; some keep only this one. The text is not encrypted: the item also has it as plain
text.
"""


def input_items(body: Fields, store: ResponseStore) -> Iterator[Fields]:
    """The items of `input`, each with its type. A text becomes a user message; references become their items."""
    value = body.get("input")
    if isinstance(value, str):
        yield body.child({"type": "message", "role": "user", "content": value}, "input")
        return
    if value is not None and not isinstance(value, list):
        body.refuse("input", "a string or a list of items")
    for item in body.objects("input"):
        given = without_nulls(item.raw)
        is_reference = "id" in given and given.keys().isdisjoint(("type", "role"))
        if item.text("type") == "item_reference" or is_reference:
            yield body.child(store.item(str(item.raw.get("id")), item.at("id")), item.path)
        else:
            yield body.child({"type": "message", **given}, item.path)


def messages_of_items(body: Fields, items: Iterable[Fields]) -> list[MessageAt]:
    """The chat messages of `instructions` and the items.

    Consecutive items of the assistant, such as reasoning and calls, are joined, since chat templates expect one
    assistant message.
    """
    instructions = body.text("instructions")
    developer = {"role": "developer", "content": instructions}
    joined = [_JoinedMessage(developer, "instructions")] if instructions else []
    items = [*items]
    for item, origin in zip(items, origins(map(_role_of, items))):
        for message in _read_item(item, origin):
            if joined and joined[-1].is_continued_by(message):
                joined[-1].add(message, item.path)
            else:
                joined.append(_JoinedMessage(message, item.path))
    messages = [(message.fields(), message.path) for message in joined]
    is_new = body.raw.get("input") or any(message["role"] not in SYSTEM_ROLES for message, _ in messages)
    if not messages or not is_new:
        body.refuse("input", "a string or a list with at least one item")
    return messages


class _JoinedMessage:
    """A chat message that consists of several: their texts and calls are joined once, when all are there."""

    def __init__(self, message: dict[str, Any], path: str) -> None:
        self.path = path  # Of the first item that has a text or a call, or of the first item.
        self._role: str = message["role"]
        self._values: dict[str, list[Any]] = {}  # Of each field, those of all messages.
        self.add(message, path)

    def add(self, message: dict[str, Any], path: str) -> None:
        if self._values.keys() <= {"role", "reasoning_content"}:
            self.path = path
        for name, value in message.items():
            self._values.setdefault(name, []).append(value)

    def is_continued_by(self, message: dict[str, Any]) -> bool:
        if self._role != "assistant" or message["role"] != "assistant":
            return False
        # Text after text begins another message. A message with calls is open until the results of the calls follow.
        return "content" not in self._values or "tool_calls" in self._values or "tool_calls" in message

    def fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name, values in self._values.items():
            if len(values) == 1 or name == "role":
                fields[name] = values[0]
            elif name == "tool_calls":
                fields[name] = [call for calls in values for call in calls]
            else:
                fields[name] = "\n\n".join(filter(None, values))
        return fields


# The roles of the messages that items of other types than "message" become.
_ROLES = {
    **dict.fromkeys(("function_call", "custom_tool_call", "reasoning"), "assistant"),
    **dict.fromkeys(("function_call_output", "custom_tool_call_output"), "tool"),
}  # fmt: skip


def _role_of(item: Fields) -> Any:
    return _ROLES.get(str(item.raw["type"]), item.raw.get("role"))


def _read_item(item: Fields, origin: Origin) -> Iterator[dict[str, Any]]:
    """The chat message of an item, if it has one."""
    kind = item.raw["type"]
    if kind == "message":
        role = item.required_choice("role", ("user", "assistant", *SYSTEM_ROLES))
        yield {"role": role, "content": read_text(item, "content", origin)}
    elif kind in ("function_call", "custom_tool_call"):
        name = qualified(item.text("namespace"), item.nonempty_text("name"))
        is_custom = kind == "custom_tool_call"
        arguments = {CUSTOM_INPUT: item.text("input") or ""} if is_custom else item.text("arguments") or "{}"
        yield {"role": "assistant", "tool_calls": [tool_call(item.nonempty_text("call_id"), name, arguments)]}
    elif kind in ("function_call_output", "custom_tool_call_output"):
        tool = item.text("name")
        result = {
            "role": "tool",
            "tool_call_id": item.text("call_id"),
            "name": qualified(item.text("namespace"), tool) if tool else None,
            "content": read_text(item, "output", origin),
        }
        yield without_nulls(result)
    elif kind == "reasoning":
        text = "".join(part_text(part, Origin.OUTPUT) for part in item.objects("content"))
        text = text or (item.text("encrypted_content") or "").partition(REASONING_MARK)[2]
        text = text or "\n\n".join(part_text(part, Origin.OUTPUT) for part in item.objects("summary"))
        if text:
            yield {"role": "assistant", "reasoning_content": text}
    elif kind != "additional_tools":  # `parse_response` has read these tools.
        item.skip()
        text = "\n".join(texts_in({**item.raw, "title": None, "url": None}))
        role = item.get("role")
        if text:  # In the words of the user, unless the item names another role.
            yield {"role": role if role in ("assistant", *SYSTEM_ROLES) else "user", "content": text}
