"""Reads the content of requests: prompts and inputs, and the text of messages and of their parts.

A model reads only text. New messages with an image, audio or a file are refused. In replayed messages (those of the
assistant, and results of tools) a note replaces it, and parts of unknown types are skipped, except their text: agents
send their whole history with each request, so an error would end the conversation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from ..core.errors import BadRequest
from ..core.fields import Fields, show
from ..core.params import is_token
from ..core.request import Input

IMAGE, AUDIO, FILE = "an image", "audio", "a file"

# The types of parts with text, of all interfaces, and the field that has it.
_TEXTS = {
    **dict.fromkeys(("text", "input_text", "output_text", "reasoning_text", "summary_text"), "text"),
    "refusal": "refusal",
}
_MEDIA = {
    **dict.fromkeys(("image_url", "input_image", "image"), IMAGE),
    "input_audio": AUDIO,
    **dict.fromkeys(("file", "input_file", "document"), FILE),
}
# The fields of other parts and items that hold text for the model.
_TEXT_FIELDS = ("title", "url", "source", "tool_name", "text", "stdout", "stderr", "summary", "content",
                "tool_references")  # fmt: skip


def read_text(holder: Fields, name: str, *, is_replayed: bool = False) -> str:
    """The text of a field that is a string or a list of parts. Parts are joined without a separator.

    Raises:
        BadRequest: The field is absent or invalid, or a new message has a part without text.
    """
    value = holder.get(name)
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        holder.refuse(name, "a string or a list of parts")
    return "".join(part_text(part, is_replayed=is_replayed) for part in holder.objects(name))


def part_text(part: Fields, *, is_replayed: bool = False) -> str:
    """The text of a part; see `read_text`."""
    kind = part.text("type")
    if kind is None:
        part.refuse("type", '"text"')
    if kind in _TEXTS:
        text = part.text(_TEXTS[kind])
        if text is None:
            part.refuse(_TEXTS[kind], "a string")
        return text
    source = part.raw.get("source")
    if kind == "document" and isinstance(source, dict) and source.get("type") == "text":
        return "\n".join(texts_in([part.raw.get("title"), source.get("data")]))
    if kind in _MEDIA:
        return note_of(_MEDIA[kind]) if is_replayed else refuse_media(part.path, _MEDIA[kind])
    if kind != "search_result":
        if not is_replayed:
            raise BadRequest(f"'{part.path}' is of type {show(kind)}; this server supports only text", part.path)
        part.skip()
    return "\n".join(texts_in(part.raw))


def refuse_media(path: str, kind: str) -> NoReturn:
    """Refuse the image, audio or file (`kind`) at `path` of the request.

    Raises:
        BadRequest: Always.
    """
    raise BadRequest(f"'{path}' is {kind}; this model supports only text: leave it out, or send text about it", path)


def note_of(kind: str) -> str:
    """The note that replaces an image, audio or file (`kind`) in a replayed message."""
    return f"[{kind}, left out: this model supports only text]"


def texts_in(value: Any) -> Iterator[str]:
    """The texts in a part or item of another type, in order."""
    if isinstance(value, str):
        yield from filter(None, [value])
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item)
    elif isinstance(value, dict):
        for name in _TEXT_FIELDS:
            yield from texts_in(value.get(name))


def without_nulls(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in raw.items() if value is not None}


def read_inputs(body: Fields, name: str, most: int) -> tuple[Input, ...]:
    """The prompts or inputs in a field, at least one. A text may be empty; a list of token ids may not.

    Raises:
        BadRequest: The field is missing, has another type, or has more than `most` inputs.
    """
    value = body.get(name)
    inputs = [value] if _is_input(value) else value
    if not isinstance(inputs, list) or not inputs:
        body.refuse(name, "a string, a list of token ids, or a list of these")
    if len(inputs) > most:
        raise BadRequest(f"'{name}' has {len(inputs)} items, and the limit is {most}", name)
    for i, item in enumerate(inputs):
        if not _is_input(item):
            path = f"{body.at(name)}[{i}]"
            raise BadRequest(f"'{path}' must be a string or a list of token ids, got {show(item)}", path)
    return tuple(item if isinstance(item, str) else tuple(item) for item in inputs)


def _is_input(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and bool(value) and all(map(is_token, value)))
