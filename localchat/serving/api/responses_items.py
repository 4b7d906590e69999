"""Converts the items of the Responses API to chat messages.

A response consists of several items: reasoning, text, and an item for each tool call. Chat templates expect one
assistant message, so consecutive items of the assistant are joined.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..core.errors import BadRequest
from ..core.fields import Fields, show, texts_in
from ..core.media import AUDIO, FILE, IMAGE, note_of, refuse_media
from .chat import without_nulls

_ROLES = ("user", "assistant", "system", "developer")
_TEXT_PARTS = ("input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text")
_MEDIA_PARTS = {"input_image": IMAGE, "input_file": FILE, "input_audio": AUDIO}

# Items of tools and features that only OpenAI's servers have. They are ignored.
IGNORED_ITEMS = (
    "web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "computer_call",
    "computer_call_output", "local_shell_call", "local_shell_call_output", "shell_call", "shell_call_output",
    "apply_patch_call", "apply_patch_call_output", "mcp_call", "mcp_list_tools", "mcp_approval_request",
    "mcp_approval_response", "tool_search_call", "tool_search_output", "compaction", "compaction_trigger",
    "program", "program_output",
)  # fmt: skip

# Items of other servers that this server passes on to the model, as far as they have text.
_REPLAYED_ITEMS = ("agent_message", "additional_tools", "context_compaction", "compaction_summary",
                   "configuration_update")  # fmt: skip
ADDED_TOOLS = "additional_tools"

# The argument of the function that represents a custom tool.
CUSTOM_INPUT = "input"

# Prefix of the `encrypted_content` of this server, to distinguish it from content that other servers have encrypted.
_REASONING_MARK = "localchat:"


def input_items(body: Fields, name: str = "input") -> list[dict[str, Any]]:
    """The items in a field, each with its type. A text becomes a user message.

    Raises:
        BadRequest: The field is neither a text nor a list of objects.
    """
    value = body.get(name)
    if value is None:
        return []
    if isinstance(value, str):
        return [_with_parts({"type": "message", "role": "user", "content": value})]
    if not isinstance(value, list):
        body.refuse(name, "a string or a list of items")
    return [_with_parts({"type": _kind(item), **without_nulls(item.raw)}) for item in body.objects(name)]


def _kind(item: Fields) -> str:
    given = item.text("type")
    if given is None and "role" not in item.raw and "id" in item.raw:
        return "item_reference"
    return given or "message"


def _with_parts(item: dict[str, Any]) -> dict[str, Any]:
    """The item with the text of a message as a list of parts, as the API lists items."""
    text = item.get("content")
    if item["type"] != "message" or not isinstance(text, str):
        return item
    if item.get("role") == "assistant":
        return {"status": "completed", **item, "content": [{"type": "output_text", "text": text, "annotations": []}]}
    return {**item, "content": [{"type": "input_text", "text": text}]}


def read_messages(instructions: str | None, items: Iterable[Fields]) -> tuple[dict[str, Any], ...]:
    """The chat messages for `instructions` and the items, in order.

    Raises:
        BadRequest: An item is invalid, or this server does not support its type.
    """
    conversation = _Conversation()
    if instructions:
        conversation.message("developer", instructions)
    for item in items:
        kind = item.raw["type"]
        if kind in IGNORED_ITEMS:
            continue
        reader = _READERS.get(kind)
        (reader or _other)(conversation, item)
    return tuple(conversation.messages)


class _Conversation:
    """The chat messages of the items so far."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        # The assistant message to which the next item of the assistant is added; None: it begins a new message.
        self._open: dict[str, Any] | None = None

    def message(self, role: str, text: str) -> None:
        if role == "assistant":
            message = self._assistant(without="content")
            message["content"] = _join_texts(message.get("content"), text)
            return
        self._open = None
        # Many templates accept only one system message, at the start.
        if role in ("system", "developer") and len(self.messages) == 1 and self.messages[0]["role"] in _ROLES[2:]:
            self.messages[0]["content"] = _join_texts(self.messages[0]["content"], text)
            return
        self.messages.append({"role": role, "content": text})

    def reasoning(self, text: str) -> None:
        message = self._assistant(without="content")
        message["reasoning_content"] = _join_texts(message.get("reasoning_content"), text)

    def call(self, id: str, name: str, arguments: Any) -> None:
        call = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._assistant().setdefault("tool_calls", []).append(call)

    def result(self, id: str, text: str) -> None:
        self._open = None
        self.messages.append({"role": "tool", "tool_call_id": id, "content": text})

    def _assistant(self, *, without: str | None = None) -> dict[str, Any]:
        """The open assistant message, or a new one if it has the field `without`.

        A message with tool calls stays open until the results of the calls follow, even if it has this field.
        """
        message = self._open
        if message is None or (without in message and "tool_calls" not in message):
            message = self._open = {"role": "assistant"}
            self.messages.append(message)
        return message


def _join_texts(before: str | None, text: str) -> str:
    return f"{before}\n\n{text}" if before and text else before or text


def _message(conversation: _Conversation, item: Fields) -> None:
    conversation.message(item.required_choice("role", _ROLES), _text(item, "content"))


def _text(item: Fields, name: str, *, is_result: bool = False) -> str:
    """The text of a field that is a string or a list of parts."""
    value = item.get(name)
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        item.refuse(name, "a string or a list of parts")
    return "".join(_part_text(part, is_result=is_result) for part in item.objects(name))


def _part_text(part: Fields, *, is_result: bool = False) -> str:
    kind = part.text("type")
    if kind in _MEDIA_PARTS:
        if not is_result:
            refuse_media(part.path, _MEDIA_PARTS[kind])
        return note_of(_MEDIA_PARTS[kind])
    if kind not in _TEXT_PARTS:
        if is_result and kind is not None:
            return "\n".join(texts_in(part.raw))
        part.refuse("type", '"input_text" or "output_text"')
    field = "refusal" if kind == "refusal" else "text"
    text = part.text(field)
    if text is None:
        part.refuse(field, "a string")
    return text


def _call(conversation: _Conversation, item: Fields) -> None:
    arguments = item.text("arguments")
    conversation.call(item.required_text("call_id"), _model_name(item), arguments or "{}")


def _custom_call(conversation: _Conversation, item: Fields) -> None:
    conversation.call(item.required_text("call_id"), _model_name(item), {CUSTOM_INPUT: item.text("input") or ""})


def _result(conversation: _Conversation, item: Fields) -> None:
    conversation.result(item.required_text("call_id"), _text(item, "output", is_result=True))


def _reasoning(conversation: _Conversation, item: Fields) -> None:
    text = "".join(map(_part_text, item.objects("content")))
    text = text or decode_reasoning(item.text("encrypted_content") or "")
    text = text or "\n\n".join(map(_part_text, item.objects("summary")))
    if text:
        conversation.reasoning(text)


_READERS: Mapping[str, Callable[[_Conversation, Fields], None]] = {
    "message": _message,
    "function_call": _call,
    "function_call_output": _result,
    "custom_tool_call": _custom_call,
    "custom_tool_call_output": _result,
    "reasoning": _reasoning,
}


def _other(conversation: _Conversation, item: Fields) -> None:
    """An item of another type: its text, in the words of the user unless it names another role."""
    own = decode_reasoning(str(item.get("encrypted_content") or ""))
    text = "\n".join([*filter(None, [own]), *texts_in({**item.raw, "title": None, "url": None})])
    role = item.get("role")
    if text:
        conversation.message(role if role in _ROLES else "user", text)


def unknown_kinds(items: Iterable[Mapping[str, Any]], strict: bool) -> list[str]:
    """The types of items that nobody knows.

    Raises:
        BadRequest: There is one, and `strict` is set.
    """
    known = (*_READERS, *IGNORED_ITEMS, *_REPLAYED_ITEMS)
    for i, item in enumerate(items):
        if strict and item["type"] not in known:
            path = f"input[{i}].type"
            raise BadRequest(f"'{path}' is {show(item['type'])}, which --strict refuses", path)
    return [kind for kind in dict.fromkeys(item["type"] for item in items) if kind not in (*_READERS, *_REPLAYED_ITEMS)]


def _model_name(call: Fields) -> str:
    name = call.required_text("name")
    return qualified(call.text("namespace"), name)


def qualified(namespace: str | None, name: str) -> str:
    """The name of a tool for the model, which includes the namespace."""
    if not namespace:
        return name
    return namespace + name if namespace.endswith("_") else f"{namespace}__{name}"


def encode_reasoning(text: str) -> str:
    """Encode reasoning as the `encrypted_content` of an item, which clients send back unchanged.

    The text is not encrypted, since the item also has it as plain text. Some clients keep only this field.
    """
    return _REASONING_MARK + base64.b64encode(text.encode("utf-8", "replace")).decode("ascii")


def decode_reasoning(content: str) -> str:
    """The text in an `encrypted_content`; empty if another server made it."""
    if not content.startswith(_REASONING_MARK):
        return ""
    try:
        return base64.b64decode(content[len(_REASONING_MARK) :], validate=True).decode()
    except (binascii.Error, ValueError):
        return ""
