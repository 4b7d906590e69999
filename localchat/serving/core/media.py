"""Images and sounds in requests: the attachments of a body, the files in them, and the markers that stand for them.

This module reads the source of an attachment, which is a data URL or base64. It does not look into the file: the engine
process decodes it (`engine/media/decoding.py`), and has the limits of its size.
"""

from __future__ import annotations

import base64
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from .errors import field_error

IMAGE, AUDIO = "an image", "audio"

# The limit of images and sounds in a request. The size of the body limits their bytes.
MAX_MEDIA = 20

# The marker of each attachment has a number that no client knows, so that no text can have a marker.
_SECRET = secrets.token_hex(8)
MARKER = re.compile(f"media{_SECRET}n([0-9]+)n")
"""Matches the markers in texts; the group is the index of the attachment."""


@dataclass(frozen=True)
class Attachment:
    """An image or a sound as a request has it. It is read and decoded when the model is known."""

    kind: str  # IMAGE or AUDIO.
    path: str  # The path of the part, for errors.
    source: str  # A data URL, or base64. The media type of the URL is not used: a file is read by its bytes.
    is_replayed: bool = False  # Whether earlier requests of the conversation had it, too.


@dataclass(frozen=True)
class MediaFile:
    """The file of an image or a sound."""

    kind: str  # IMAGE or AUDIO.
    data: bytes  # The content of the file.
    path: str = ""  # The path of the part, for errors.


def marker(index: int) -> str:
    """The text that stands for an attachment of a request."""
    return f"media{_SECRET}n{index}n"


def read_attachment(attachment: Attachment) -> MediaFile:
    """The file of an attachment.

    Raises:
        BadRequest: The source has no file in base64. The error has the path of the attachment.
    """
    try:
        return MediaFile(attachment.kind, _decoded(attachment.source), attachment.path)
    except ValueError as error:
        raise field_error(attachment.path, f"cannot be read: {error}") from error


def _decoded(source: str) -> bytes:
    if not source:
        raise ValueError("it has no data, and this server fetches nothing: send the file itself, as a data URL")
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", source[:20])
    if scheme is not None:
        if scheme[1].lower() != "data":
            raise ValueError("this server fetches nothing: send the file itself, as a data URL with base64")
        head, comma, source = source.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise ValueError("a data URL must have the form data:image/png;base64,...")
    try:
        return base64.b64decode(re.sub(r"\s+", "", source) if "\n" in source else source, validate=True)
    except ValueError as error:
        raise ValueError(f"it is not valid base64 ({error})") from error


def refuse_media(path: str, kind: str, modalities: Sequence[str] = ()) -> NoReturn:
    """Refuse the image, audio or file (`kind`) at `path` of the request. `modalities` are those of the model."""
    raise field_error(path, f"is {kind}; {supported(modalities)}: leave it out, or send text about it")


def supported(modalities: Sequence[str]) -> str:
    """What a model with these `modalities` supports, as the reason why it gets no other images and sounds."""
    return f"this model supports {' and '.join(('text', *modalities)) if modalities else 'only text'}"


def note_of(kind: str, reason: str = supported(())) -> str:
    """The note that replaces an image, audio or file (`kind`) in a replayed message."""
    return f"[{kind}, left out: {reason}]"
