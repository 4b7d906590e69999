"""Images and audio as parts of a message: from a file, bytes or a URL. No I/O but the reading of files.

Files and bytes become data: URIs; their first bytes decide the type. A str is always a URL, never a path, so that text
from an untrusted source cannot make the client read a file. The client fetches no URL: that of an image is sent to the
server unchanged. Local servers, such as Ollama, often refuse to fetch it.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Union
from urllib.parse import unquote, unquote_to_bytes

from ..texts import excerpt
from .prompts import Prompt, as_messages

Source = Union[str, bytes, bytearray, memoryview, "os.PathLike[str]", Mapping[str, Any]]
_BINARY = (bytes, bytearray, memoryview)

# The signature of each format: bytes at offsets, all of which must match.
_IMAGES = {
    "image/png": ((0, b"\x89PNG\r\n\x1a\n"),),
    "image/jpeg": ((0, b"\xff\xd8\xff"),),
    "image/gif": ((0, b"GIF8"),),
    "image/webp": ((0, b"RIFF"), (8, b"WEBP")),
    "image/bmp": ((0, b"BM"), (6, b"\0\0\0\0")),
}
_AUDIO = {"wav": ((0, b"RIFF"), (8, b"WAVE")), "mp3": ((0, b"ID3"),), "flac": ((0, b"fLaC"),)}


def image_part(source: Source) -> dict[str, Any]:
    """An image (a Path, bytes, a URL or a part itself) as a part of a message. Raises ValueError for another format."""
    if isinstance(source, Mapping):
        return dict(source)
    if isinstance(source, str) and is_url(source):
        url = source
    else:
        data = _read(source)
        url = f"data:{_format_of(data, _IMAGES, 'image', source)};base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def audio_part(source: Source) -> dict[str, Any]:
    """Audio, wav, mp3 or flac (a Path, bytes, a data: URL or a part itself), as a part of a message; see `image_part`.

    ValueError is raised for another URL too: the protocol has no field for the URL of audio.
    """
    if isinstance(source, Mapping):
        return dict(source)
    if isinstance(source, str) and is_url(source):
        if not source.lower().startswith("data:"):
            raise ValueError(f"audio cannot be sent by URL: fetch {excerpt(source)} and pass its bytes")
        source = _data_of(source)
    data = _read(source)
    # An mp3 without an ID3 tag begins with a frame header: eleven set bits, then a version and the layer 3.
    is_frame = len(data) > 1 and data[0] == 0xFF and data[1] & 0xE6 == 0xE2
    name = "mp3" if is_frame else _format_of(data, _AUDIO, "audio", source)
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": name}}


def attach(prompt: Prompt, images: Iterable[Source] = (), audio: Iterable[Source] = ()) -> list[dict[str, Any]]:
    """The prompt as messages, with media before the text of the last message: models are trained with this order."""
    messages = as_messages(prompt)
    parts = [image_part(image) for image in _listed(images)] + [audio_part(sound) for sound in _listed(audio)]
    if not parts:
        return messages
    if not messages or messages[-1].get("role") != "user":
        messages.append({"role": "user", "content": ""})
    content = messages[-1].get("content") or []
    messages[-1]["content"] = [*parts, *([{"type": "text", "text": content}] if isinstance(content, str) else content)]
    return messages


def _listed(sources: Any) -> Iterable[Source]:
    """The sources as a list: a single source is accepted too. A str is not iterated by characters."""
    return [sources] if isinstance(sources, (str, *_BINARY, os.PathLike, Mapping)) else sources


def is_url(source: str) -> bool:
    return source.lower().startswith(("http://", "https://", "data:"))


def _data_of(url: str) -> bytes:
    """The bytes of a data: URL. Raises ValueError if they are not base64."""
    head, _, data = url.partition(",")
    if not head.lower().endswith(";base64"):
        return unquote_to_bytes(data)
    return decode_base64(unquote(data))


def decode_base64(data: Any) -> bytes:
    """The bytes of base64, which may have line ends. Raises TypeError or ValueError for anything else."""
    return base64.b64decode("".join(data.split()) if isinstance(data, str) else data, validate=True)


def _read(source: Any) -> bytes:
    if isinstance(source, _BINARY):
        return bytes(source)
    if not isinstance(source, os.PathLike):
        shown = excerpt(str(source), 100)
        raise ValueError(f"{shown!r} is no URL; to read a file, pass pathlib.Path({shown!r})")
    with open(source, "rb") as file:
        return file.read()


def _format_of(data: bytes, formats: Mapping[str, Sequence[tuple[int, bytes]]], what: str, source: Any) -> str:
    """The name of the format whose signature the data has. `what` and `source` are for the error."""
    for name, signature in formats.items():
        if all(data[at : at + len(part)] == part for at, part in signature):
            return name
    known = ", ".join(name.rpartition("/")[2] for name in formats)
    shown = os.fspath(source) if isinstance(source, os.PathLike) else "this"
    raise ValueError(f"{shown} is no {what} of a known format ({known}); it begins with {data[:12]!r}")
