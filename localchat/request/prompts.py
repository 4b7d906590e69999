"""Prompts: text or a list of messages. No I/O."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Union

Prompt = Union[str, Sequence[Mapping[str, Any]]]
# Several texts, also as lists of tokens; and the prompt of `complete`, which may be one or several.
Texts = Union[Sequence[str], Sequence[Sequence[int]]]
TextPrompt = Union[str, Sequence[int], Texts]


def as_messages(prompt: Prompt, system: str | None = None) -> list[dict[str, Any]]:
    """The messages of a prompt, text or a list, after a system message. Raises ValueError if there would be two."""
    if not isinstance(prompt, Sequence) or isinstance(prompt, (bytes, bytearray)):
        raise TypeError(f"a prompt is text or a list of messages, not {type(prompt).__name__}")
    messages = []
    for message in [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt:
        if not isinstance(message, Mapping):
            hint = ": client.map(texts) gives a reply to each" if isinstance(message, str) else ""
            raise TypeError(f"a message is a dict with role and content, not {type(message).__name__}{hint}")
        messages.append(dict(message))
    if system is None:
        return messages
    check_one_system(messages, "system=")
    return [{"role": "system", "content": system}, *messages]


def check_one_system(messages: Sequence[Mapping[str, Any]], other: str) -> None:
    """Raise ValueError if messages have a system message. `other` names what has one too."""
    if any(message.get("role") == "system" for message in messages):
        raise ValueError(f"the prompt has a system message, and {other} has another one: leave one out")


def split_system(messages: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The system message with which a conversation begins, as a list that may be empty, and the other messages."""
    n_system = 1 if messages and messages[0].get("role") == "system" else 0
    return list(messages[:n_system]), list(messages[n_system:])


def set_system(messages: list[dict[str, Any]], text: str) -> None:
    """Replace or add the system message of a conversation."""
    messages[:] = [{"role": "system", "content": text}, *split_system(messages)[1]]


def take_media(options: dict[str, Any]) -> dict[str, Any]:
    """Remove images and sounds from the options and return those that are not empty. Raises TypeError for no list.

    `audio` that is a mapping stays: it is OpenAI's field for spoken output.
    """
    media = {"images": options.pop("images", None)}
    if not isinstance(options.get("audio"), Mapping):
        media["audio"] = options.pop("audio", None)
    media = {name: sources for name, sources in media.items() if sources is not None and sources not in ([], ())}
    for name, sources in media.items():
        if not isinstance(sources, (Iterable, os.PathLike)):
            raise TypeError(f"{name} is a list of files, bytes or URLs, not {sources!r:.100}")
    return media
