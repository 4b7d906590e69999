"""Compiling constraints beside a running engine: in time slices, within a budget of steps.

Garbage is collected after each slice, from the objects that the slice made, and at no other time meanwhile: a
collection that visits all objects of a large constraint takes a fraction of a second, even if it is compiled by then.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..grammar import Budget, Interrupted, limited_to
from ..protocol import time_slices
from .values import Cancelled

CONVERT_STEPS = 1_000_000
"""Work to convert the constraint of a request to a grammar: a second or two of one thread, in slices."""

_is_cancelled: ContextVar[Callable[[], bool] | None] = ContextVar("is_cancelled", default=None)


@contextmanager
def compiling(n_steps: int) -> Iterator[Budget]:
    """Compile within the block, with a budget that is also that of `grammar.spend`.

    The block may raise TooMuchWork, and Cancelled if a check of `compiling_cancelled_by` is true.
    """
    try:
        with time_slices.working, _collection.held(), limited_to(Budget(n_steps, _pause)) as budget:
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


def _pause() -> None:
    check = _is_cancelled.get()
    if check is not None and check():
        raise Interrupted("the client has left, or the server stops, while the constraint was compiled")
    gc.collect(1)
    time_slices.pause()


class _Collection:
    """Keeps the garbage collector off while at least one thread compiles, in its pauses too."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_holding = 0
        self._was_enabled = False

    @contextmanager
    def held(self) -> Iterator[None]:
        with self._lock:
            if self._n_holding == 0:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._n_holding += 1
        try:
            yield
        finally:
            gc.collect(1)
            with self._lock:
                self._n_holding -= 1
                if self._n_holding == 0 and self._was_enabled:
                    gc.enable()


_collection = _Collection()
