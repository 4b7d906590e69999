"""Timeouts of a call: `Timeout` has their values, `Deadlines` measures the time."""

from __future__ import annotations

import time
from typing import NamedTuple

from ..errors import TimedOut

_TIMEOUT_REASONS = {
    "connect": "no connection",
    "first": "no first event",
    "idle": "no further bytes",
    "stall": "only keep-alives or empty events",
    "total": "no complete response",
}


class Timeout(NamedTuple):
    """Timeouts in seconds; None means no limit."""

    # For making the connection.
    connect: float | None = 5.0
    # From the request to the first event. A local server may load a model and prefill a long prompt.
    first: float | None = 600.0
    # Without any bytes, after the first event.
    idle: float | None = 120.0
    # Between two events. Keep-alive comments and empty deltas are bytes, but not events.
    stall: float | None = 600.0
    # For the whole call, with its retries.
    total: float | None = None

    @classmethod
    def of(cls, value: Timeout | float | None) -> Timeout:
        """The timeouts for an option `timeout`. A number sets `first`, `idle` and `connect` (5 s at most).

        Raises:
            ValueError: A timeout is not a finite number above zero.
        """
        if value is None:
            return cls()
        for limit in value if isinstance(value, Timeout) else (value,):
            is_number = isinstance(limit, (int, float)) and not isinstance(limit, bool)
            if limit is not None and not (is_number and 0 < limit < float("inf")):
                raise ValueError(f"a timeout is a number of seconds above 0, or None for no limit, not {limit!r}")
        return value if isinstance(value, Timeout) else cls(min(value, 5.0), value, value)


def timed_out(kind: str) -> TimedOut:
    return TimedOut(f"{_TIMEOUT_REASONS[kind]} within Timeout.{kind}; increase it if this is expected", kind=kind)


class Deadlines:
    """The deadlines of one call, as times of time.monotonic; None means no limit."""

    def __init__(self, timeout: Timeout) -> None:
        self._timeout = timeout
        self._total_end: float | None = None
        self._finish_end: float | None = None
        # The deadline of the next event, and the timeout that it comes from: "first" or "stall".
        self._event_end: float | None = None
        self._event_kind = "first"
        # When the last read ended; 0 during a read. The time until the next read counts against the total only.
        self._paused_at = 0.0

    def start(self) -> None:
        """Start the total timeout. A call of several requests starts it once."""
        self._total_end = self._total_end or _after(self._timeout.total)

    def end_within(self, seconds: float | None) -> None:
        """Let the response end within these seconds, None for no limit. An earlier end stays."""
        ends = [end for end in (self._finish_end, _after(seconds)) if end is not None]
        self._finish_end = None if seconds is None else min(ends)

    def sent(self) -> None:
        """Start the timeout of the first event of a response."""
        self._event_end, self._event_kind, self._paused_at = _after(self._timeout.first), "first", 0.0
        self._finish_end = None

    def event(self) -> None:
        """Start the timeout of the next event."""
        self._event_end, self._event_kind = _after(self._timeout.stall), "stall"

    def pause(self) -> None:
        """Report the end of a read."""
        self._paused_at = time.monotonic()

    def connecting(self) -> tuple[float | None, str]:
        """Seconds left to connect, and the name of the timeout that ends first."""
        return self._earliest(self._timeout.connect, "connect")

    def reading(self) -> tuple[float | None, str]:
        """Seconds left for one read, and the name of the timeout that ends first."""
        if self._event_end is not None and self._paused_at:
            self._event_end += time.monotonic() - self._paused_at
        self._paused_at = 0.0
        idle = self._timeout.idle if self._event_kind == "stall" else None
        return self._earliest(idle, "idle", self._event_end)

    def at_most(self, seconds: float) -> float:
        """These seconds, or the seconds left of the total if they are fewer."""
        return seconds if self._total_end is None else min(seconds, self._total_end - time.monotonic())

    def _earliest(self, seconds: float | None, kind: str, event_end: float | None = None) -> tuple[float | None, str]:
        """The first to end of: a timeout that starts now, the deadline of the next event, and those of the call.

        Raises:
            TimedOut: It has ended.
        """
        now = time.monotonic()
        for end, name in ((event_end, self._event_kind), (self._total_end, "total"), (self._finish_end, "total")):
            if end is not None and (seconds is None or end - now < seconds):
                seconds, kind = end - now, name
        if seconds is not None and seconds <= 0:
            raise timed_out(kind)
        return seconds, kind


def _after(seconds: float | None) -> float | None:
    """The deadline of a timeout that starts now."""
    return None if seconds is None else time.monotonic() + seconds
