"""The prompt of a command line: join files, piped input and text, add images, and read the schema."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..extras import media
from .ask import read_prompt


def prompt_text(words: Sequence[str], files: Sequence[str]) -> str:
    """The text of the prompt: the files, the piped input and the words, each only if it is not empty.

    Raises:
        ValueError: The input is not UTF-8.
        OSError: A file cannot be read.
    """
    return "\n\n".join(part for part in (*map(_file_text, files), read_prompt(words)) if part.strip())


def user_message(text: str, images: Sequence[str]) -> dict[str, Any]:
    """A user message with the text and the images, each the path of a file or a URL.

    Raises:
        ValueError: An image has an unknown format.
        OSError: An image cannot be read.
    """
    sources = [image if media.is_url(image) else Path(image) for image in images]
    (message,) = media.attach(text, sources)
    return message


def read_schema(path: str) -> dict[str, Any]:
    """Read a JSON Schema from a file.

    Raises:
        ValueError: The file does not hold a JSON object.
        OSError: The file cannot be read.
    """
    try:
        schema = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise ValueError(f"{path} is not a JSON Schema: it must be an object")
    return schema


def _file_text(path: str) -> str:
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text; for an image use --image: {error}") from error
    return f"{path}:\n\n{text.rstrip()}"
