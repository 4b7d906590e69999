"""What the fuzzers share: pieces, and a loop that ends after some seconds."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable


def pieces_of(raw: bytes, chance: random.Random) -> list[bytes]:
    """The bytes, cut at random, with empty pieces among them."""
    cuts = sorted(chance.randrange(len(raw) + 1) for _ in range(chance.randrange(8)))
    return [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)])]


def main(check: Callable[[int], None]) -> None:
    """Check one seed after the other until the time is over."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="the first seed")
    arguments = parser.parse_args()
    end, seed = time.monotonic() + arguments.seconds, arguments.seed
    while time.monotonic() < end:
        check(seed)
        seed += 1
    print(f"{seed - arguments.seed} streams, seeds {arguments.seed} to {seed - 1}: nothing found")
