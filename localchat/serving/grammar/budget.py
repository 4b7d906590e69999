"""Bounds the work for one constraint, counted in steps.

A step is a small bounded amount of work; steps of different kinds take different times. Steps are counted instead of
measuring time, so that the speed and load of the machine do not decide whether a constraint is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from .errors import TooLarge

# The number of steps between two calls of `pause`: one or two milliseconds of work.
SLICE = 1000


class TooMuchWork(TooLarge):
    """A constraint needs more steps than its budget has."""


class Budget:
    """A number of steps that may be taken. Only one thread at a time may use a budget."""

    def __init__(self, n_steps: int, pause: Callable[[], None] | None = None, outer: Budget | None = None):
        """
        Args:
            pause: Called after every `SLICE` steps; it may sleep, or raise to end the work.
            outer: A budget from which every step is taken, too.
        """
        self.n_steps = n_steps
        self.n_left = n_steps
        self._outer = outer
        self._pause = pause
        # `pause` is called when `n_left` has fallen to this number; -1: never.
        self._next_pause = n_steps - SLICE if pause is not None else -1

    def spend(self, n: int = 1) -> None:
        """Take steps.

        Raises:
            TooMuchWork: Fewer than `n` steps are left.
        """
        self.n_left -= n
        if self.n_left < 0:
            raise TooMuchWork(
                f"it takes more than {self.n_steps:,} steps of work, which is the limit: make it simpler, for example "
                "with fewer alternatives or smaller counts"
            )
        if self._outer is not None:
            self._outer.spend(n)
        if self.n_left <= self._next_pause:
            self._next_pause = self.n_left - SLICE
            assert self._pause is not None
            self._pause()

    def refill(self, n: int) -> None:
        """Add `n` steps, up to the number that the budget had at first."""
        self.n_left = min(self.n_left + n, self.n_steps)


_current: ContextVar[Budget | None] = ContextVar("budget", default=None)


@contextmanager
def limited_to(budget: Budget) -> Iterator[Budget]:
    """Within the block, let the function `spend` take its steps from this budget."""
    token = _current.set(budget)
    try:
        yield budget
    finally:
        _current.reset(token)


def spend(n: int = 1) -> None:
    """Take steps from the budget of the enclosing `limited_to`; without one there is no limit. Raises TooMuchWork."""
    budget = _current.get()
    if budget is not None:
        budget.spend(n)


@contextmanager
def at_most(n_steps: int) -> Iterator[None]:
    """Limit the work of the block to this many of the steps that are left."""
    with limited_to(Budget(n_steps, outer=_current.get())):
        yield


def steps_left() -> float:
    """The number of steps that are left; infinity without a limit."""
    budget = _current.get()
    return float("inf") if budget is None else budget.n_left
