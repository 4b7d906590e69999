"""The sound of one choice: base64 in pieces becomes bytes. No I/O."""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable

from ..events import Audio
from .payloads import Json

# Base64 with padding at its end, in groups of four characters, which encode three bytes.
_BASE64 = re.compile("(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")


class ChoiceAudio:
    """Collects the sound of a choice and its fields, except the transcript, which is text.

    `warn` is called with the text of each warning.
    """

    def __init__(self, warn: Callable[[str], object]) -> None:
        self._warn = warn
        self._decoder = Base64Decoder()
        self._data: list[bytes] = []
        self._id: str | None = None
        self._expires_at: int | None = None

    def take(self, fields: Json, is_message: bool) -> tuple[bytes, Json]:
        """Add the fields of an object `audio`, and return the new bytes and the fields that are not read.

        `is_message`: it is that of a complete message, which repeats the sound of the deltas.
        """
        new, unread = b"", {}
        for name, value in fields.items():
            if name == "id" and isinstance(value, str):
                self._id = value
            elif name == "expires_at" and type(value) is int:
                self._expires_at = value
            elif name == "data" and isinstance(value, str):
                try:
                    new = b"" if is_message and self._data else self._decoder.feed(value)
                except ValueError as error:
                    self._warn(str(error))
                    unread[name] = value
            else:
                unread[name] = value
        self._data += [new] if new else []
        return new, unread

    def end(self) -> bytes:
        """The last bytes, if the padding is missing."""
        data = b""
        try:
            data = self._decoder.end()
        except ValueError as error:
            self._warn(str(error))
        self._data += [data] if data else []
        return data

    def value(self, transcript: str) -> Audio | None:
        if not (self._data or transcript or self._id):
            return None
        data = b"".join(self._data)
        self._data = [data] if data else []
        return Audio(self._id, data, transcript, self._expires_at)


class Base64Decoder:
    """Decodes base64 that comes in pieces, which are cut anywhere or are encoded one by one, each with its padding."""

    def __init__(self) -> None:
        self._pending = ""  # Less than four characters, which encode no whole bytes.

    def feed(self, text: str) -> bytes:
        """The bytes that a piece completes. Raises ValueError if it is not base64, and is then as before."""
        text = self._pending + "".join(text.split())
        n_whole = len(text) // 4 * 4
        data = b"".join(map(_decoded, _padded_parts(text[:n_whole])))
        self._pending = text[n_whole:]
        return data

    def end(self) -> bytes:
        """The last bytes, if the padding is missing. Raises ValueError if they are not base64."""
        pending, self._pending = self._pending, ""
        return _decoded(pending + "=" * (-len(pending) % 4)) if len(pending) > 1 else b""


def _padded_parts(text: str) -> list[str]:
    """The text, cut after each padding."""
    parts, start = [], 0
    while start < len(text):
        pad = text.find("=", start)
        end = len(text) if pad < 0 else pad // 4 * 4 + 4
        parts.append(text[start:end])
        start = end
    return parts


def _decoded(text: str) -> bytes:
    if not _BASE64.fullmatch(text):  # a2b_base64 skips characters that are not of the alphabet.
        raise ValueError("the sound is not base64 and was left out")
    return binascii.a2b_base64(text)
