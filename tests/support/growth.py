"""Whether the time of a function is linear in the size of its input."""

from __future__ import annotations

import gc
from collections.abc import Callable

# How much longer than linear the time may grow. That of quadratic work grows at least ten times as much.
TOLERANCE = 4


def assert_linear(seconds: Callable[[int], float], n: int, times: int, least_s: float) -> None:
    """Fail if `times` as much input as `n` takes much more than `times` as long.

    `seconds` returns the processor time for an input of a size. `least_s` is a time that is too short to be measured.
    Other programs take the caches of the processor, so the least of several times counts. The garbage collector is off
    meanwhile: its time depends on the objects of all earlier tests.
    """
    seconds(1)
    gc.disable()
    try:
        limit_s = TOLERANCE * times * max(min(seconds(n) for _ in range(3)), least_s)
        assert any(seconds(times * n) < limit_s for _ in range(5)), (
            f"{times} times the input takes over {limit_s:.2g} s"
        )
    finally:
        gc.enable()
