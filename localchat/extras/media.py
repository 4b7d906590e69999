"""Images and audio as parts of a message: from a file, bytes or a URL.

Files and bytes become data: URIs; their first bytes decide the type. A str is always a URL, never a path, so that text
from an untrusted source cannot make the client read a file. A URL is sent to the server unchanged; local servers, such
as Ollama, often refuse to fetch it. The client fetches a URL only with `embed=True` or `fetch`.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union
from urllib.parse import urlsplit

from ..transport.addresses import is_loopback

if TYPE_CHECKING:
    from ..reply.payloads import Prompt

Source = Union[str, bytes, bytearray, memoryview, "os.PathLike[str]", Mapping[str, Any]]
_BINARY = (bytes, bytearray, memoryview)

# The largest image or audio. Servers decode a whole request in memory, and most refuse much smaller bodies.
DEFAULT_MAX_BYTES = 64 * 1024 * 1024
_FETCH_TIMEOUT_S = 30.0

# The signature of each format: bytes at offsets, all of which must match.
_IMAGES = {
    "image/png": ((0, b"\x89PNG\r\n\x1a\n"),),
    "image/jpeg": ((0, b"\xff\xd8\xff"),),
    "image/gif": ((0, b"GIF8"),),
    "image/webp": ((0, b"RIFF"), (8, b"WEBP")),
    "image/bmp": ((0, b"BM"), (6, b"\0\0\0\0")),
}
_AUDIO = {"wav": ((0, b"RIFF"), (8, b"WAVE")), "mp3": ((0, b"ID3"),)}


def image_part(source: Source, *, detail: str | None = None, embed: bool = False) -> dict[str, Any]:
    """An image as a part of a message's content.

    Args:
        source: A Path, bytes, a URL (http, https or data), or a part of a message, which is returned unchanged.
        detail: OpenAI's hint: "low", "high" or "auto".
        embed: Fetch a URL and send its content.

    Raises:
        ValueError: The format is unknown, or the image is too large.
        OSError: The source cannot be read.
    """
    if isinstance(source, Mapping):
        return dict(source)
    is_sent_as_url = _is_data(source) or (is_url(source) and not embed)
    url = source if is_sent_as_url else _data_uri(_read(source))
    return {"type": "image_url", "image_url": {"url": url, **({"detail": detail} if detail else {})}}


def audio_part(source: Source) -> dict[str, Any]:
    """Audio, wav or mp3, as a part of a message's content.

    Args:
        source: A Path, bytes, a data: URL, or a part of a message, which is returned unchanged. Other URLs are refused:
            the protocol has no field for the URL of audio.

    Raises:
        ValueError: The format is unknown, the audio is too large, or the source is a URL.
        OSError: The source cannot be read.
    """
    if isinstance(source, Mapping):
        return dict(source)
    if is_url(source) and not _is_data(source):
        raise ValueError(f"audio cannot be sent by URL: fetch it, with audio=media.fetch({_shown(source)!r})")
    data = _read(source)
    # An mp3 without an ID3 tag begins with a frame header: eleven set bits, then a version and the layer 3.
    is_frame = len(data) > 1 and data[0] == 0xFF and data[1] & 0xE6 == 0xE2
    kind = "mp3" if is_frame else _kind(data, _AUDIO, "audio")
    return {"type": "input_audio", "input_audio": {"data": _base64(data), "format": kind}}


def attach(prompt: Prompt, images: Iterable[Source] = (), audio: Iterable[Source] = ()) -> list[dict[str, Any]]:
    """The prompt as messages, with media before the text of the last message: models are trained with this order."""
    messages = _messages(prompt)
    parts = [image_part(image) for image in _listed(images)] + [audio_part(sound) for sound in _listed(audio)]
    if not parts:
        return messages
    if not messages or messages[-1].get("role") != "user":
        messages.append({"role": "user", "content": ""})
    messages[-1]["content"] = [*parts, *_parts(messages[-1].get("content"))]
    return messages


def _messages(prompt: Prompt) -> list[dict[str, Any]]:
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return [dict(message) for message in prompt]


def _parts(content: Any) -> Sequence[Any]:
    """Content as a list of parts. Empty text is omitted."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return content or ()


def _listed(sources: Any) -> Iterable[Source]:
    """The sources as a list: a single source is accepted too. A str is not iterated by characters."""
    return [sources] if isinstance(sources, (str, *_BINARY, os.PathLike, Mapping)) else sources


def is_url(source: Any) -> bool:
    """Whether the source is an http, https or data URL."""
    return isinstance(source, str) and source.lower().startswith(("http://", "https://", "data:"))


def _is_data(source: Any) -> bool:
    return isinstance(source, str) and source.lower().startswith("data:")


def _read(source: Any) -> bytes:
    if isinstance(source, _BINARY):
        data = bytes(source)
    elif is_url(source):
        data = fetch(source)
    elif not isinstance(source, os.PathLike):
        raise ValueError(f"{_shown(source)!r} is no URL; to read a file, pass pathlib.Path({_shown(source)!r})")
    else:
        with open(source, "rb") as file:
            data = file.read(DEFAULT_MAX_BYTES + 1)
    if len(data) > DEFAULT_MAX_BYTES:
        raise ValueError(f"{_shown(source)} has more than {DEFAULT_MAX_BYTES} bytes")
    return data


def fetch(url: str) -> bytes:
    """The content of an http, https or data URL, for `images` or `audio`. It blocks: in an event loop, use a thread.

    Raises:
        ValueError: The URL has another scheme.
        OSError: The URL cannot be fetched.
    """
    if not is_url(url):
        raise ValueError(f"{_shown(url)!r} is no http, https or data URL")
    import http.client  # Imported here: these imports take as long as that of the whole client.
    import urllib.request

    is_local = is_loopback(urlsplit(url).hostname or "")  # A proxy cannot reach this machine.
    opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if is_local else []))
    try:
        with opener.open(url, timeout=_FETCH_TIMEOUT_S) as response:
            data: bytes = response.read(DEFAULT_MAX_BYTES + 1)
            n_missing = getattr(response, "length", None)  # read() with a limit does not raise IncompleteRead.
    except http.client.HTTPException as error:
        raise OSError(f"{_shown(url)} cannot be fetched: {error!r}") from error
    if n_missing and len(data) <= DEFAULT_MAX_BYTES:
        raise OSError(f"{_shown(url)} was cut: {n_missing} bytes are missing")
    return data


def _data_uri(data: bytes) -> str:
    return f"data:{_kind(data, _IMAGES, 'image')};base64,{_base64(data)}"


def _kind(data: bytes, formats: Mapping[str, Sequence[tuple[int, bytes]]], what: str) -> str:
    for kind, signature in formats.items():
        if all(data[at : at + len(part)] == part for at, part in signature):
            return kind
    known = ", ".join(kind.rpartition("/")[2] for kind in formats)
    raise ValueError(f"this is no {what} of a known format ({known}); it begins with {data[:12]!r}")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _shown(source: Any) -> str:
    return f"{len(source)} bytes" if isinstance(source, _BINARY) else str(source)[:100]
