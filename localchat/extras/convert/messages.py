"""Convert messages of llama-stack to OpenAI's, and back."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .. import media
from .calls import stack_calls
from .values import Json, fields_of, tool_name


def to_openai(message: Any) -> Json:
    """Convert a llama-stack message to OpenAI's. The role `developer` becomes `system`.

    Raises:
        ValueError: The role or the type of the content is missing or unknown.
    """
    message = fields_of(message)
    role = _role(message)
    converted: Json = {"role": role, "content": _openai_content(message.get("content"))}
    if role == "assistant" and message.get("tool_calls"):
        converted["tool_calls"] = [_openai_call(fields_of(call)) for call in message["tool_calls"]]
    if role == "tool":
        converted["tool_call_id"] = message.get("call_id", "")
    return converted


def from_openai(message: Mapping[str, Any]) -> Json:
    """Convert a message of OpenAI's API to llama-stack's. The role `developer` becomes `system`.

    Raises:
        ValueError: The role or the type of the content is missing or unknown.
    """
    role = _role(message)
    converted: Json = {"role": role, "content": _stack_content(message.get("content"))}
    if role == "assistant":
        calls = stack_calls(message.get("tool_calls"))
        converted.update(tool_calls=[dict(vars(call)) for call in calls])
        converted["stop_reason"] = "end_of_message" if calls else "end_of_turn"
    if role == "tool":
        converted["call_id"] = message.get("tool_call_id", "")
    return converted


def with_parts(message: Mapping[str, Any]) -> Json:
    """A message whose content is a list of parts, also if it was text. The other fields are unchanged."""
    content = _openai_content(message.get("content"))
    return {**message, "content": [{"type": "text", "text": content}] if isinstance(content, str) else content}


_ROLES = {"user": "user", "assistant": "assistant", "tool": "tool", "system": "system", "developer": "system"}


def _role(message: Mapping[str, Any]) -> str:
    role = message.get("role")
    if role not in _ROLES:
        raise ValueError(f"the role must be one of {', '.join(_ROLES)}, not {role!r}")
    return _ROLES[role]


def _openai_call(call: Mapping[str, Any]) -> Json:
    """Convert a call. The text of the arguments is kept if it is known, for the prefix cache of the server."""
    arguments = call.get("arguments_json") or call.get("arguments") or {}
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    function = {"name": tool_name(call.get("tool_name")), "arguments": text}
    return {"id": call.get("call_id", ""), "type": "function", "function": function}


def _openai_content(content: Any) -> Any:
    if content is None or isinstance(content, str):
        return content or ""
    items = content if isinstance(content, Sequence) else [content]
    return [_openai_part(item) for item in items]


def _openai_part(item: Any) -> Json:
    if isinstance(item, str):
        return {"type": "text", "text": item}
    item = fields_of(item)
    kind = item.get("type")
    if kind == "text":
        return {"type": "text", "text": item["text"]}
    if kind == "image":
        return _openai_image(fields_of(item.get("image") or item))
    if kind == "image_url":  # A part of OpenAI's API.
        return dict(item)
    raise ValueError(f"there is no counterpart of content of type {kind!r}")


def _openai_image(image: Mapping[str, Any]) -> Json:
    url, data = image.get("url"), image.get("data")
    if url is not None:
        return media.image_part(url if isinstance(url, str) else fields_of(url)["uri"])
    if data is None:
        raise ValueError("an image needs a url or data")
    try:
        return media.image_part(base64.b64decode(data, validate=True) if isinstance(data, str) else bytes(data))
    except binascii.Error as error:
        raise ValueError(f"the data of an image is not base64: {error}") from error


def _stack_content(content: Any) -> Any:
    if content is None or isinstance(content, str):
        return content or ""
    return [_stack_item(part) for part in content]


def _stack_item(part: Mapping[str, Any]) -> Json:
    if part.get("type") == "text":
        return {"type": "text", "text": part["text"]}
    if part.get("type") != "image_url":
        raise ValueError(f"there is no counterpart of a part of type {part.get('type')!r}")
    url = part["image_url"]["url"]
    embedded = re.match(r"data:[^,]*;base64,", url)
    return {"type": "image", "image": {"data": url[embedded.end() :]} if embedded else {"url": {"uri": url}}}
