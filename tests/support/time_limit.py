"""A limit for the processor time of work, on a machine that may be slow or busy."""

from __future__ import annotations

import contextlib
import gc
import json
import time
from collections.abc import Iterator

TEXT = json.dumps([{"name": str(i), "values": [i, i / 7]} for i in range(2000)])
# The processor time of `_standard_work` on an idle machine of 2026, in seconds.
STANDARD_S = 0.02


@contextlib.contextmanager
def limited_time(seconds: float) -> Iterator[None]:
    """Fail if the block takes more processor time than this machine now needs for work of so many seconds.

    `seconds` is the limit on an idle machine. A machine on which a standard work takes `n` times as long has `n` times
    the limit. The garbage collector is off meanwhile: its time depends on the objects of all earlier tests.
    """
    gc.disable()
    try:
        began_at = time.thread_time()
        yield
        taken_s = time.thread_time() - began_at
        if taken_s > seconds:
            limit_s = seconds * _standard_work() / STANDARD_S
            assert taken_s < limit_s, f"{taken_s:.2g} s, more than the limit of {limit_s:.2g} s"
    finally:
        gc.enable()


def _standard_work() -> float:
    """The processor time of reading and writing a fixed text, in seconds."""
    began_at = time.thread_time()
    for _ in range(5):
        json.dumps(json.loads(TEXT), indent=1)
    return time.thread_time() - began_at
