"""Long work in Python beside a running engine: one thread at a time, in slices of about a millisecond.

Python runs one thread at a time. A thread that computes for long would hold up the engine thread after each of its
calls into llama.cpp, so long work pauses after each slice for about as long.
"""

from __future__ import annotations

import threading
import time

_PAUSE_S = 0.001

# Held during a slice: of several threads with long work only one works at any time.
working = threading.Lock()


def pause() -> None:
    """Ends the slice of this thread, which holds `working`, and begins the next one."""
    working.release()
    try:
        time.sleep(_PAUSE_S)
    finally:
        working.acquire()
