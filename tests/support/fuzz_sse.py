"""Random streams for the SSE decoder. A failure has its seed.

Streams consist of fields, line ends, byte order marks and random bytes. The decoder may raise only SSEError, and its
events must not depend on how the bytes are cut.
"""

from __future__ import annotations

import random
from typing import Any

from localchat.sse import SSEDecoder, SSEError

PARTS = [
    *(b"data", b"event", b"id", b"retry", b"Data", b":", b": ", b":\t", b" ", b"\n", b"\r", b"\r\n", b"\n\n", b"\r\r"),
    *(b"data: x\n\n", b"id: 1\n", b"retry: 30\n", b": ping\n", b"event: e\n", b"data:\n", b"\xef\xbb\xbf", b"\0"),
    *("\u2028".encode(), "\u0085".encode(), "\u00e9".encode(), b"\xff", b"\x0b", b"\x1c", b"[DONE]", b"123"),
]


def pieces_of(raw: bytes, chance: random.Random) -> list[bytes]:
    """The bytes, cut at random. Some pieces are empty."""
    cuts = sorted(chance.randrange(len(raw) + 1) for _ in range(chance.randrange(30)))
    return [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)])]


def cuts(raw: bytes) -> list[list[bytes]]:
    """The whole stream, its single bytes, and every cut in two."""
    return [[raw], [raw[i : i + 1] for i in range(len(raw))], *([raw[:i], raw[i:]] for i in range(1, len(raw)))]


def decode(pieces: list[bytes], **options: Any) -> list[Any]:
    decoder, events = SSEDecoder(**options), []
    try:
        for piece in pieces:
            events += decoder.feed(piece)
    except SSEError as error:
        return [*events, *error.events, str(error).partition(" of ")[0]]
    return events


def check(seed: int) -> None:
    chance = random.Random(seed)
    noise = chance.randbytes(chance.randrange(4))
    raw = b"".join(chance.choices([*PARTS, noise], k=chance.randrange(60)))
    options: dict[str, Any] = chance.choice([{}, {"sentinel": "[DONE]"}, {"max_event_bytes": 25}])
    whole = decode([raw], **options)
    assert decode(pieces_of(raw, chance), **options) == whole, (seed, raw)
    assert decode([raw[i : i + 1] for i in range(len(raw))], **options) == whole, (seed, raw)
