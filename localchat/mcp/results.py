"""The results of tools: the content of MCP becomes text, images and sound for the model. No I/O."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ..agent.tools import ToolOutput
from ..request import media
from .messages import Json

# The kinds of media, each with the function that makes a part of a message of bytes.
_MEDIA: dict[str, Callable[[bytes], Json]] = {"image": media.image_part, "audio": media.audio_part}


@dataclass(frozen=True)
class MCPResult(ToolOutput):
    """The result of a call. `text` is what the model gets, `is_error` whether the tool reports a failure."""

    structured: Any = None  # The structured content; None if there is none.
    raw: Mapping[str, Any] | None = None  # The result as the server sent it.


def read_result(result: Json, accepted_media: Collection[str]) -> MCPResult:
    """The result of a call. `accepted_media` are the media that the model takes: "image", "audio".

    Raises ValueError if it is not a result of the specification.
    """
    content = result.get("content", [])
    if not isinstance(content, list) or not all(isinstance(item, dict) for item in content):
        raise ValueError("its content is no list of objects")
    parts = [_part(item, accepted_media) for item in content]
    structured = result.get("structuredContent")
    if structured is not None and not any(item.get("type") == "text" and item.get("text") for item in content):
        parts.append(_text(json.dumps(structured, ensure_ascii=False)))
    return MCPResult(tuple(parts), result.get("isError") is True, structured, result)


def _part(item: Json, accepted_media: Collection[str]) -> Json:
    """An item of the content as a part of a message; a note in place of what the model cannot get."""
    kind = item.get("type")
    if kind == "text":
        text = item.get("text")
        return _text(text if isinstance(text, str) else "")
    if kind in ("image", "audio"):
        return _media_part(str(kind), item.get("data"), item.get("mimeType"), accepted_media)
    if kind == "resource_link":
        names = [str(item[name]) for name in ("title", "name", "description", "mimeType") if item.get(name)]
        return _text(f"[resource {item.get('uri')}: {', '.join(names)}]")
    resource = item.get("resource")
    if kind == "resource" and isinstance(resource, dict):
        return _resource_part(resource, accepted_media)
    return _text(f"[content of the type {kind!r}, which is left out]")


def _resource_part(resource: Json, accepted_media: Collection[str]) -> Json:
    uri, mime_type = resource.get("uri"), str(resource.get("mimeType") or "")
    if "text" in resource:
        return _text(f"[resource {uri}]\n{resource['text']}")
    kind = mime_type.partition("/")[0]
    if kind in _MEDIA:
        return _media_part(kind, resource.get("blob"), mime_type, accepted_media)
    return _text(f"[resource {uri} of the type {mime_type or 'unknown'}, which is no text and is left out]")


def _media_part(kind: str, data: Any, mime_type: Any, accepted_media: Collection[str]) -> Json:
    type_shown = f" ({mime_type})" if isinstance(mime_type, str) else ""
    what = f"{'an image' if kind == 'image' else 'a sound'}{type_shown}"
    if kind not in accepted_media:
        return _text(f"[{what}, which is left out: the model takes none]")
    try:
        return _MEDIA[kind](media.decode_base64(data))
    except (TypeError, ValueError) as error:
        return _text(f"[{what}, which is left out: {error}]")


def _text(text: str) -> Json:
    return {"type": "text", "text": text}
