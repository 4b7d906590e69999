"""Compiling constraints beside a running engine: in slices, one thread at a time, within a budget of steps.

Python runs one thread at a time. A thread that computes for long would hold up the engine thread after each of its
calls into llama.cpp. So compiling stops for as long as it worked after every slice of about a millisecond, and of
several threads that compile only one works at any time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..grammar import Budget, Interrupted, limited_to
from .values import Cancelled

PAUSE_S = 0.001
CONVERT_STEPS = 1_000_000
"""Work to convert the constraint of a request to a grammar: a second or two of one thread, in slices."""

_working = threading.Lock()
_is_cancelled: ContextVar[Callable[[], bool] | None] = ContextVar("is_cancelled", default=None)


@contextmanager
def compiling(n_steps: int) -> Iterator[Budget]:
    """Compile within the block, with a budget that is also that of `grammar.spend`.

    The block may raise TooMuchWork, and Cancelled if a check of `compiling_cancelled_by` is true.
    """
    slices = _Slices()
    try:
        with slices, limited_to(Budget(n_steps, slices.pause)) as budget:
            yield budget
    except Interrupted as error:
        raise Cancelled(str(error)) from error


@contextmanager
def compiling_cancelled_by(check: Callable[[], bool]) -> Iterator[None]:
    """End what this thread compiles within the block once `check` is true. It is called after each slice."""
    token = _is_cancelled.set(check)
    try:
        yield
    finally:
        _is_cancelled.reset(token)


class _Slices:
    """Holds the lock while its thread works."""

    def __init__(self) -> None:
        self._has_lock = False

    def __enter__(self) -> None:
        self._begin()

    def __exit__(self, *error: object) -> None:
        if self._has_lock:
            self._end()

    def pause(self) -> None:
        self._end()
        check = _is_cancelled.get()
        if check is not None and check():
            raise Interrupted("the client has left, or the server stops, while the constraint was compiled")
        time.sleep(PAUSE_S)
        self._begin()

    def _begin(self) -> None:
        _working.acquire()
        self._has_lock = True

    def _end(self) -> None:
        self._has_lock = False
        _working.release()
