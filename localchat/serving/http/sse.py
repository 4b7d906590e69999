"""The framing of server-sent events (SSE): events and comments as bytes. The client's decoder is localchat/sse.py."""

from __future__ import annotations

COMMENT = b": \n\n"
"""An empty comment. It keeps the connection alive, and clients ignore it. It must not be sent within an event."""


def encode(data: str, event: str | None = None) -> bytes:
    """One event as bytes, with the empty line that ends it. `event` must be one line.

    Each line of `data` becomes a data line. The format cannot represent a CR, which arrives as LF, and UTF-8 cannot
    represent an unpaired surrogate, which is sent as "?".
    """
    # Not `str.splitlines`, which also splits at characters that are no line ends in this format.
    lines = data.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    fields = [] if event is None else [f"event: {event}\n"]
    fields += [f"data: {line}\n" for line in lines]
    return ("".join(fields) + "\n").encode("utf-8", "replace")
