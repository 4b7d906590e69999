"""Damaged streams for the client, which must raise only its own errors. See tests/fuzz_sse.py, tests/fuzz_wire.py."""

from __future__ import annotations

from .. import fuzz_sse, fuzz_wire


def run(n: int, seed: int) -> str:
    """Decode `n` random streams of events, and a tenth as many damaged responses."""
    for i in range(n):
        fuzz_sse.check(seed + i)
    for i in range(n // 10):
        fuzz_wire.check(seed + i)
    return f"{n:,} random event streams and {n // 10:,} damaged responses: only documented errors"
