"""Timeouts of a call: `Timeout` has their values, `TotalDeadline` and `Deadlines` measure the time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from ..errors import TimedOut

_TIMEOUT_REASONS = {
    "connect": "no connection",
    "first": "no first output",
    "idle": "no further bytes",
    "stall": "only keep-alives or empty events",
    "total": "no complete response",
    "finish": "no end of the response",  # No field: the limit of `Deadlines.end_within`.
}

_NEVER_S = 1e9  # Longer than any call: an integer that is larger than any float cannot be added to a time.
_MAX_WAIT_S = 1e6  # A wait of an operation is never longer: sockets refuse more than about 24 days.
_DEFAULT: Any = object()


@dataclass(frozen=True, init=False)
class Timeout:
    """Timeouts in seconds; None means no limit.

    `Timeout(30)` sets all; limits given by name have priority. Raises ValueError for a value that is not above zero.
    """

    connect: float | None = 5.0  # For making the connection.
    # From the request, or the last report of its progress, to the first output of the model: a server may load a model
    # and prefill a long prompt. An event without output, such as the role of the message, does not end it.
    first: float | None = 600.0
    idle: float | None = 120.0  # Between two reads of bytes, after the first output.
    stall: float | None = 600.0  # Between two events. Keep-alive comments and empty deltas are bytes, but not events.
    total: float | None = None  # For the whole call, with its retries.

    def __init__(
        self,
        seconds: float | None = _DEFAULT,
        *,
        connect: float | None = _DEFAULT,
        first: float | None = _DEFAULT,
        idle: float | None = _DEFAULT,
        stall: float | None = _DEFAULT,
        total: float | None = _DEFAULT,
    ) -> None:
        named = {"connect": connect, "first": first, "idle": idle, "stall": stall, "total": total}
        for name, value in named.items():
            limit = seconds if value is _DEFAULT else value
            limit = getattr(type(self), name) if limit is _DEFAULT else limit
            is_number = isinstance(limit, (int, float)) and not isinstance(limit, bool)
            if limit is not None and not (is_number and 0 < limit < float("inf")):
                raise ValueError(f"a timeout is a number of seconds above 0, or None for no limit, not {limit!r}")
            vars(self)[name] = limit

    @staticmethod
    def of(value: Timeout | float | None) -> Timeout:
        """The timeouts for an option `timeout`."""
        return value if isinstance(value, Timeout) else Timeout(value)


DEFAULT_TIMEOUT = Timeout()


def timed_out(name: str) -> TimedOut:
    """The error for an expired timeout, by the name of its field."""
    return TimedOut(f"{_TIMEOUT_REASONS[name]} within Timeout.{name}; increase it if this is expected", kind=name)


class LimitExpired(Exception):
    """An operation of a driver did not end within its limit. It is no TimeoutError: the system raises these too."""


class TotalDeadline:
    """The end of `Timeout.total`. All requests of one call of the program share it, such as the rounds of `run`."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self.end: float | None = None  # A time of time.monotonic; None for no limit, and before the first request.

    def start(self) -> None:
        """Start the timeout with the first request."""
        if self.end is None:
            self.end = _after(self._seconds)

    def at_most(self, seconds: float) -> float:
        """These seconds, or the seconds left if they are fewer."""
        return seconds if self.end is None else min(seconds, self.end - time.monotonic())


class Deadlines:
    """The deadlines of the requests of one Call, as times of time.monotonic; None means no limit.

    A request has phases, each with its timeout:

        connect | first | stall | stall | ...
                |       |       an event
                |       the first output of the model
                the connection is made

    Between two reads, while the program does other things, the phases stand still; only the total goes on. `left`
    returns the time for the next operation: "idle" limits it too in a phase "stall", and "total" in every phase.
    """

    def __init__(self, timeout: Timeout, total: TotalDeadline) -> None:
        self._timeout = timeout
        self.total = total
        self._phase = "connect"
        self._phase_end: float | None = None
        self._finish_end: float | None = None  # The end that `end_within` sets.
        self._paused_at = 0.0  # When the last read ended; 0 during a read.

    def begin(self, phase: str) -> None:
        """Begin the phase "connect" or "first". The first phase of all requests also starts the total timeout."""
        # The total starts last: if both have the same seconds, the error names the phase.
        self._begin(phase)
        self.total.start()
        self._finish_end = None

    def restart(self, has_output: bool) -> None:
        """Begin the phase "stall" after an event; before the first output of the model, the phase "first" again."""
        self._begin("stall" if has_output else "first")

    def _begin(self, phase: str) -> None:
        """Begin a phase. A pause before it is not a part of it."""
        self._phase_end, self._phase = _after(getattr(self._timeout, phase)), phase
        self._paused_at = 0.0

    def end_within(self, seconds: float | None) -> None:
        """Let the response end within these seconds, or sooner if an earlier call set an earlier end. None removes it.

        `left` names this limit "finish". It is no timeout of the user: the caller catches its error, and ends the
        response as if the connection had ended.
        """
        ends = [end for end in (self._finish_end, _after(seconds)) if end is not None]
        self._finish_end = None if seconds is None else min(ends)

    def pause(self) -> None:
        """Report the end of a read."""
        self._paused_at = time.monotonic()

    def _resume(self, now: float) -> None:
        """End a pause, by which the phase ends later."""
        if self._phase_end is not None and self._paused_at:
            self._phase_end += now - self._paused_at
        self._paused_at = 0.0

    def left(self) -> tuple[float | None, str]:
        """Seconds left for one operation, and the timeout that ends first. Raises TimedOut if it has ended."""
        now = time.monotonic()
        self._resume(now)
        seconds, expiring = self._timeout.idle if self._phase == "stall" else None, "idle"
        for end, name in ((self._phase_end, self._phase), (self.total.end, "total"), (self._finish_end, "finish")):
            if end is not None and (seconds is None or end - now < seconds):
                seconds, expiring = end - now, name
        if seconds is not None and seconds <= 0:
            raise timed_out(expiring)
        return None if seconds is None else min(seconds, _MAX_WAIT_S), expiring


def _after(seconds: float | None) -> float | None:
    return None if seconds is None else time.monotonic() + min(seconds, _NEVER_S)
