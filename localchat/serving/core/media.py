"""Images, audio and files in requests, which a text model cannot process.

A message that contains one of them is refused. In the result of a tool, a note replaces it: an agent sends its whole
history with each request, so an error would end the conversation.
"""

from __future__ import annotations

from typing import NoReturn

from .errors import BadRequest

IMAGE, AUDIO, FILE = "an image", "audio", "a file"


def refuse_media(path: str, kind: str) -> NoReturn:
    """Refuse the image, audio or file (`kind`) at `path` of the request.

    Raises:
        BadRequest: Always.
    """
    raise BadRequest(f"'{path}' is {kind}; this model supports only text: leave it out, or send text about it", path)


def note_of(kind: str) -> str:
    """The note that replaces an image, audio or file (`kind`) in the result of a tool."""
    return f"[{kind}, left out: this model supports only text]"
