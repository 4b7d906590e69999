"""Sound in a response: base64 in pieces becomes bytes. No I/O."""

from __future__ import annotations

import binascii


class Base64Decoder:
    """Decodes base64 that comes in pieces, which are cut anywhere or are encoded one by one, each with its padding."""

    def __init__(self) -> None:
        self._held = ""  # Less than four characters, which encode no whole bytes.

    def feed(self, text: str) -> bytes:
        """The bytes that a piece completes. Raises ValueError if it is not base64, and is then as before."""
        text = self._held + "".join(text.split())
        n_whole = len(text) // 4 * 4
        data = b"".join(map(_decoded, _padded_parts(text[:n_whole])))
        self._held = text[n_whole:]
        return data

    def end(self) -> bytes:
        """The last bytes, if the padding is missing."""
        held, self._held = self._held, ""
        return _decoded(held + "=" * (-len(held) % 4)) if len(held) > 1 else b""


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
    data = binascii.a2b_base64(text)
    # a2b_base64 skips characters that are not of the alphabet.
    if len(data) != len(text) // 4 * 3 - text.count("="):
        raise ValueError("the sound is not base64")
    return data
