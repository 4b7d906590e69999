"""Images, audio and files in requests: a model of text cannot read them.

A message of a user with one of these is an error. In the result of a tool, a note replaces it: an agent sends its
whole history with each request, so an error would end the conversation.
"""

from __future__ import annotations

from typing import NoReturn

from .errors import BadRequest

IMAGE, AUDIO, FILE = "an image", "audio", "a file"


def refuse_media(path: str, kind: str) -> NoReturn:
    """Refuse what is at `path`, of this kind.

    Raises:
        BadRequest: Always.
    """
    raise BadRequest(f"'{path}' is {kind}; this model supports only text: leave it out, or send text about it", path)


def note_of(kind: str) -> str:
    """The text that the model gets in place of what a tool returned."""
    return f"[{kind}, left out: this model supports only text]"
