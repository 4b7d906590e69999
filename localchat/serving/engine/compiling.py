"""Compiles constraints while other threads run: in slices of about a millisecond, within a budget of steps.

The garbage collector is off while a constraint is compiled: a collection that visits all objects of a large constraint
takes a fraction of a second. Instead, the new objects of each slice are collected after the slice.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..grammar import Budget, Interrupted, limited_to
from .values import Cancelled

CONVERT_STEPS = 1_000_000
"""The limit of steps to convert the constraint of a request to a grammar: one or two seconds of one thread."""

# After a slice, other threads get the GIL for this long.
_PAUSE_S = 0.001

_is_cancelled: ContextVar[Callable[[], bool] | None] = ContextVar("is_cancelled", default=None)


@contextmanager
def compiling(n_steps: int) -> Iterator[Budget]:
    """Compile within the block, with a budget that `grammar.spend` uses as well.

    Raises:
        TooMuchWork: The budget is used up.
        Cancelled: The check of `compiling_cancelled_by` returned True.
    """
    try:
        with _collector.disabled(), limited_to(Budget(n_steps, _pause)) as budget:
            yield budget
    except Interrupted as error:
        raise Cancelled(str(error)) from error


@contextmanager
def compiling_cancelled_by(check: Callable[[], bool]) -> Iterator[None]:
    """Cancel a compilation of this thread within the block if `check`, which is called after each slice, is true."""
    token = _is_cancelled.set(check)
    try:
        yield
    finally:
        _is_cancelled.reset(token)


def _pause() -> None:
    check = _is_cancelled.get()
    if check is not None and check():
        raise Interrupted("the client has left, or the server stops, while the constraint was compiled")
    gc.collect(1)
    time.sleep(_PAUSE_S)


class _Collector:
    """Turns the garbage collector off while at least one thread compiles, also in the pauses between its slices."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_compiling = 0
        self._was_enabled = False

    @contextmanager
    def disabled(self) -> Iterator[None]:
        with self._lock:
            if self._n_compiling == 0:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._n_compiling += 1
        try:
            yield
        finally:
            gc.collect(1)
            with self._lock:
                self._n_compiling -= 1
                if self._n_compiling == 0 and self._was_enabled:
                    gc.enable()


_collector = _Collector()
