"""Runs long computations in slices of about a millisecond, so that they do not delay the engine thread.

The GIL lets only one thread run Python code, so a long computation would delay the engine thread after each of its
calls into llama.cpp. A computation therefore pauses for a millisecond after each slice.
"""

from __future__ import annotations

import threading
import time

_PAUSE_S = 0.001

# Held during a slice, so that only one thread at a time runs a long computation.
working = threading.Lock()


def pause() -> None:
    """End the slice of the calling thread, which holds `working`, and begin the next one."""
    working.release()
    try:
        time.sleep(_PAUSE_S)
    finally:
        working.acquire()
