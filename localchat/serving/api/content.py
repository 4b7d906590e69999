"""Reads what several interfaces have in their bodies: the content of messages, and the inputs of models.

An image or audio becomes an attachment of the body, and a marker in the text of the message. No model reads files, so
new messages with one are refused. In replayed messages (those before the last output of the model, and results of
tools) a note replaces it unless the model takes it (chat/runs/attachments.py), and parts of unknown types are skipped,
except their text: programs send the whole conversation with each request, so an error would end the conversation.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypedDict

from ..core.errors import field_error
from ..core.fields import Fields, show
from ..core.media import AUDIO, IMAGE, Attachment, note_of
from ..core.params import is_token
from ..core.request import Input
from ..core.text import to_json

Message = dict[str, Any]
MessageAt = tuple[Message, str]  # A chat message, and the path in the body of what it is made of.

# The fields of other parts and items that hold text for the model.
_TEXT_FIELDS = ("title", "url", "source", "tool_name", "text", "stdout", "stderr", "summary", "content",
                "tool_references")  # fmt: skip
# The limit in characters of an unknown part that the model gets as JSON. A longer one is most likely a file.
_MAX_UNKNOWN_PART = 4000


class Origin(enum.Enum):
    """Where a text of a request comes from. Only the text of a new message is refused if it has unsupported parts."""

    NEW = "written for this turn"
    EARLIER = "written for an earlier turn, which has a response: the model sees at least that each part was there"
    OUTPUT = "generated earlier, so nobody can correct it now"
    RESULT = "a result of a tool: the same, and the model sees every part of it"

    @property
    def is_replayed(self) -> bool:
        """Whether earlier requests of the conversation had the text, as programs send all of it each time."""
        return self is not Origin.NEW


_ORIGINS = {"assistant": Origin.OUTPUT, "tool": Origin.RESULT, "function": Origin.RESULT}


def origins(roles: Iterable[Any]) -> list[Origin]:
    """The origin of each message of a conversation, by their roles.

    What comes before an output of the model has a response. The last message does not count as such an output, since it
    may be an assistant prefill: the beginning of the response to the messages before it.
    """
    names = [role if isinstance(role, str) else "" for role in roles]
    n_earlier = max((i for i, name in enumerate(names[:-1]) if name == "assistant"), default=0)
    return [_ORIGINS.get(name) or (Origin.EARLIER if i < n_earlier else Origin.NEW) for i, name in enumerate(names)]


def read_text(holder: Fields, name: str, origin: Origin = Origin.NEW) -> str:
    """The text of a field that is a string or a list of parts. Parts are joined without a separator."""
    value = holder.get(name)
    if value is None and origin is Origin.RESULT:  # Some programs send null for a tool that returned nothing.
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        holder.refuse(name, "a string or a list of parts")
    return "".join(part_text(part, origin) for part in holder.objects(name))


def part_text(part: Fields, origin: Origin = Origin.NEW) -> str:
    """The text of a part, or the marker of its image or sound."""
    kind = part.required_text("type", '"text"')
    return _PART_READERS.get(kind, _unsupported_part)(part, origin)


def _text_part(part: Fields, origin: Origin) -> str:
    return part.required_text("text")


def _refusal(part: Fields, origin: Origin) -> str:
    return part.required_text("refusal")


def _image_url(part: Fields, origin: Origin) -> str:
    return _attached(part, IMAGE, "image_url", origin)


def _image(part: Fields, origin: Origin) -> str:
    """An image in Anthropic's format."""
    return _attached(part, IMAGE, "source", origin)


def _audio(part: Fields, origin: Origin) -> str:
    return _attached(part, AUDIO, "input_audio", origin)


def _attached(part: Fields, medium: str, field: str, origin: Origin) -> str:
    """Attach an image or audio, whose source, a URL or base64, is in a field. Returns its marker.

    The format beside it is not read, since the bytes of the file show it. A part without a source, such as the id of an
    uploaded file, is no error here, since its model may read only text.
    """
    value = part.raw.get(field)
    fields = value if isinstance(value, dict) else {"url": value}
    source = fields.get("data") or fields.get("url")
    source = source if isinstance(source, str) else ""
    return part.attach(Attachment(medium, part.path, source, origin.is_replayed))


def _document(part: Fields, origin: Origin) -> str:
    """A document of Anthropic's format, whose source is a text, a list of parts, or a file."""
    source = part.raw.get("source")
    field = {"text": "data", "content": "content"}.get(str(source.get("type"))) if isinstance(source, dict) else None
    if field is None:
        return _file(part, origin)
    text = read_text(part.required_object("source"), field, origin)
    return "\n".join(texts_in([part.raw.get("title"), part.raw.get("context"), text]))


def _file(part: Fields, origin: Origin) -> str:
    if not origin.is_replayed:
        raise field_error(part.path, "is a file; this server reads no files: leave it out, or send text about it")
    return note_of("a file", "this server reads no files")


def _unsupported_part(part: Fields, origin: Origin) -> str:
    kind = show(part.raw["type"])
    if not origin.is_replayed:
        raise field_error(part.path, f"is of type {kind}, which this server does not support: leave it out")
    part.skip()
    return _texts_of_part(part, origin)


def _texts_of_part(part: Fields, origin: Origin) -> str:
    """The texts in a part of another type, or what shows the model that it was there."""
    text = "\n".join(texts_in(part.raw))
    if text or origin not in (Origin.EARLIER, Origin.RESULT):
        return text
    fields = {name: value for name, value in part.raw.items() if name != "type" and value is not None}
    text = to_json(fields)
    if fields and len(text) <= _MAX_UNKNOWN_PART:
        return text
    return note_of(f"a part of type {show(part.raw['type'])}", "this server does not support it")


# The types of parts, of all interfaces, and the functions that read them.
_PART_READERS: Mapping[str, Callable[[Fields, Origin], str]] = {
    **dict.fromkeys(("text", "input_text", "output_text", "reasoning_text", "summary_text"), _text_part),
    "refusal": _refusal,
    **dict.fromkeys(("image_url", "input_image"), _image_url),
    "image": _image,
    "input_audio": _audio,
    "document": _document,
    **dict.fromkeys(("file", "input_file"), _file),
    "search_result": _texts_of_part,
}


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


def read_messages(body: Fields, convert: Callable[[Fields, Origin], Iterable[Message]]) -> list[MessageAt]:
    """The chat messages of the field `messages`, at least one; `convert` returns those of one object."""
    objects = [*body.objects("messages")]
    listed = zip(objects, origins(message.raw.get("role") for message in objects))
    messages = [(converted, message.path) for message, origin in listed for converted in convert(message, origin)]
    if not messages:
        body.refuse("messages", "a list with at least one message")
    return messages


class MessageFields(TypedDict):
    """The fields of a ChatRequest for its messages."""

    messages: tuple[Message, ...]
    message_paths: tuple[str, ...]


def messages_with_paths(messages: Iterable[MessageAt]) -> MessageFields:
    messages = tuple(messages)
    return {"messages": tuple(message for message, _ in messages), "message_paths": tuple(path for _, path in messages)}


def read_inputs(body: Fields, name: str, most: int) -> tuple[Input, ...]:
    """The prompts or inputs in a field, at least one. A text may be empty; a list of token ids may not."""
    value = body.get(name)
    inputs = [value] if _is_input(value) else value
    if not isinstance(inputs, list) or not inputs:
        body.refuse(name, "a string, a list of token ids, or a list of these")
    if len(inputs) > most:
        raise field_error(name, f"has {len(inputs)} items, and the limit is {most}")
    for i, item in enumerate(inputs):
        if not _is_input(item):
            raise field_error(f"{name}[{i}]", f"must be a string or a list of token ids, got {show(item)}")
    return tuple(item if isinstance(item, str) else tuple(item) for item in inputs)


def _is_input(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and bool(value) and all(map(is_token, value)))
