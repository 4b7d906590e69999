"""Time limits of a call: `Timeout` as the caller sets them, `Deadlines` as they run out."""

from __future__ import annotations

import time
from typing import NamedTuple

from .errors import TimedOut

# After the finish reason only usage and [DONE] can follow; some servers send neither and do not close.
_AFTER_FINISH_S = 5.0


class Timeout(NamedTuple):
    """Limits in seconds; None means no limit."""

    # Until the connection is made.
    connect: float | None = 5.0
    # From the request to the first event. A local server may load a model and compute a long prompt.
    first: float | None = 600.0
    # Between two reads of bytes, after the first event.
    idle: float | None = 120.0
    # Between two events that carry something. Keep-alive comments satisfy `idle`, not this.
    stall: float | None = 600.0
    # The whole call, with its retries.
    total: float | None = None

    @classmethod
    def of(cls, value: Timeout | float | None) -> Timeout:
        """One number limits the first event, the silence between bytes and the connection; None keeps the defaults.

        Raises:
            ValueError: A limit is not above zero, or infinite.
        """
        if value is None:
            return cls()
        limits = value if isinstance(value, Timeout) else (float(value),)
        if not all(limit is None or 0 < limit < float("inf") for limit in limits):
            raise ValueError(f"a timeout is a number of seconds above 0, or None for no limit, not {value!r}")
        return value if isinstance(value, Timeout) else cls(min(value, 5.0), value, value)


class Deadlines:
    """What is left of each limit. All times are of time.monotonic."""

    def __init__(self, timeout: Timeout) -> None:
        self._timeout = timeout
        self._total_end: float | None = None
        self._finish_end: float | None = None
        self._event_end: float | None = None
        self._event_kind = "first"
        self._rests_from = 0.0

    def start(self) -> None:
        """The call begins, unless it has: it may take several requests."""
        self._total_end = self._total_end or _after(self._timeout.total)

    def finish(self, complete: bool) -> None:
        """Once all that matters has come, what is left gets little time, whatever keeps the connection busy."""
        self._finish_end = (self._finish_end or _after(_AFTER_FINISH_S)) if complete else None

    def sent(self) -> None:
        """The request is on its way."""
        self._event_end, self._event_kind, self._rests_from = _after(self._timeout.first), "first", 0.0

    def event(self) -> None:
        """Something that carries meaning has come."""
        self._event_end, self._event_kind = _after(self._timeout.stall), "stall"

    def connecting(self) -> tuple[float | None, str]:
        """Seconds left to connect, and the kind of the limit that ends first."""
        return self._least(self._timeout.connect, "connect", None, "")

    def rest(self) -> None:
        """A read is over. The time until the next one counts against no limit but the total."""
        self._rests_from = time.monotonic()

    def reading(self) -> tuple[float | None, str]:
        """Seconds left for one read, and the kind of the limit that ends first."""
        if self._event_end is not None and self._rests_from:
            self._event_end += time.monotonic() - self._rests_from
        self._rests_from = 0.0
        silence = self._timeout.idle if self._event_kind == "stall" else None
        return self._least(silence, "idle", self._event_end, self._event_kind)

    def at_most(self, seconds: float) -> float:
        """These seconds, or what is left of the whole call if that is less."""
        return seconds if self._total_end is None else min(seconds, self._total_end - time.monotonic())

    def _least(self, seconds: float | None, kind: str, end: float | None, end_kind: str) -> tuple[float | None, str]:
        """The shortest of a limit from now on, one that ends at a time, and the total."""
        now = time.monotonic()
        for until, its_kind in ((end, end_kind), (self._total_end, "total"), (self._finish_end, "total")):
            if until is not None and (seconds is None or until - now < seconds):
                seconds, kind = until - now, its_kind
        if seconds is not None and seconds <= 0:
            raise timed_out(kind)
        return seconds, kind


def _after(seconds: float | None) -> float | None:
    """When a limit that begins now ends."""
    return None if seconds is None else time.monotonic() + seconds


_LIMIT_MEANING = {
    "connect": "no connection",
    "first": "no first event",
    "idle": "no further bytes",
    "stall": "bytes, but no event that carries anything",
    "total": "no complete answer",
}


def timed_out(kind: str) -> TimedOut:
    meaning = _LIMIT_MEANING[kind]
    return TimedOut(f"{meaning} within the limit Timeout.{kind}; raise it if this is expected", kind=kind)
