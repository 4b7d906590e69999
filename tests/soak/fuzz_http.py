"""Sends damaged HTTP requests. The server must send a documented status or close the connection."""

from __future__ import annotations

import random
from collections import Counter

from ..wire_cases import chat_cases, other_cases
from .target import DOCUMENTED, Broken, Target, counted, responses

BATCH = 100
_RAW = [case.raw() for case in (*chat_cases(), *other_cases())]
_LINES = [
    *(b"Host: evil.example", b"Host: 127.0.0.1", b"Content-Length: 5", b"Content-Length: 99999999999", b"X: \0"),
    *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip", b"Expect: 100-continue", b"Connection: keep-alive"),
    *(
        b" folded: line",
        b"No-Colon",
        b"Origin: http://evil.example",
        b"Upgrade: h2c",
        b"A" * 70_000,
        b"X: " + b"y" * 9000,
    ),
]
_BYTES = (*b'\0\r\n :/?%\x7f\xff{}[]",', *b"09azGH")


def damaged(chance: random.Random) -> bytes:
    """One request, or two on one connection, with one to three defects."""
    raw = bytearray(chance.choice(_RAW))
    for _ in range(chance.randrange(1, 4)):
        kind = chance.randrange(6)
        if kind == 0:
            for _ in range(chance.randrange(1, 6)):
                raw[chance.randrange(len(raw))] = chance.choice(_BYTES)
        elif kind == 1:
            head = raw.partition(b"\r\n\r\n")[0].split(b"\r\n")
            head.insert(chance.randrange(len(head) + 1), chance.choice(_LINES))
            raw[:] = b"\r\n".join(head) + raw[raw.find(b"\r\n\r\n") :] if b"\r\n\r\n" in raw else b"\r\n".join(head)
        elif kind == 2:
            del raw[chance.randrange(1, len(raw) + 1) :]
        elif kind == 3:
            raw[:] = raw.replace(b"\r\n", chance.choice([b"\n", b"\r", b"\r\n\r\n", b"\n\r"]), chance.randrange(1, 5))
        elif kind == 4:
            at, n = chance.randrange(len(raw)), chance.randrange(1, 40)
            raw[at:at] = raw[at : at + n] or b"x"
        else:
            raw += chance.choice(_RAW)
        if not raw:
            raw += b"x"
    return bytes(raw)


def run(target: Target, n: int, seed: int) -> str:
    """Send `n` damaged requests. An ordinary request follows each batch."""
    statuses: Counter[int] = Counter()
    for i in range(n):
        raw = damaged(random.Random(seed + i))
        try:
            found = [status for status, _ in responses(target.send(raw, half_close=True), may_be_cut=True)]
        except (Broken, ValueError) as error:
            target.fault(f"seed {seed + i}: {error}")
            continue
        for status in found:
            statuses[status] += 1
            if status not in DOCUMENTED:
                target.fault(f"seed {seed + i}: status {status} for {raw[:500]!r}")
        if i % BATCH == BATCH - 1:
            target.check()
    return f"{n:,} damaged HTTP requests: {counted(statuses)}; an ordinary request in {target.ordinary}"
