"""The framing of server-sent events (SSE): events and comments as bytes. The client's decoder is localchat/sse.py."""

from __future__ import annotations


def encode(data: str, event: str | None = None, id: str | None = None, retry: int | None = None) -> bytes:
    """One event as bytes, with the empty line that ends it. `retry` is in milliseconds.

    Each line of `data` becomes a data line. The format cannot represent a CR, which arrives as LF, and UTF-8 cannot
    represent an unpaired surrogate, which is sent as "?".

    Raises:
        ValueError: `event` or `id` has a line end (or NUL in `id`), or `retry` is negative.
    """
    fields = [_field("event", event, "\r\n"), _field("id", id, "\r\n\0")]
    if retry is not None:
        if retry < 0:
            raise ValueError(f"retry must not be negative: {retry}")
        fields.append(f"retry: {retry}\n")
    fields += [f"data: {line}\n" for line in _split_lines(data)]
    return ("".join(fields) + "\n").encode("utf-8", "replace")


def comment(text: str = "") -> bytes:
    """A comment as bytes. It keeps the connection alive, and clients ignore it.

    A comment ends with an empty line, so it must not be sent within an event.
    """
    lines = [f": {line}\n" for line in _split_lines(text)]
    return ("".join(lines) + "\n").encode("utf-8", "replace")


def _split_lines(text: str) -> list[str]:
    """Split at LF, CR and CRLF only; `str.splitlines` splits at further characters."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _field(name: str, value: str | None, forbidden: str) -> str:
    if value is None:
        return ""
    if any(character in value for character in forbidden):
        raise ValueError(f"{name} must be one line without NUL: {value!r}")
    return f"{name}: {value}\n"
