"""The requests in flight. A shutdown waits for them, or ends them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Protocol

from ..core import errors


class Stoppable(Protocol):
    """A request in flight."""

    def stop(self) -> None:
        """End the request soon, because the server shuts down. Thread-safe."""


class InFlight:
    """The requests in flight. At shutdown, `refuse` rejects new ones, then `stop` ends the remaining ones."""

    def __init__(self) -> None:
        # Whether new requests are refused. Requests in flight continue until `stop`.
        self.is_stopping = False
        # Whether `stop` was called, which ends the requests in flight.
        self.is_stopped = False
        # Guards `_requests` and writes to `is_stopped`.
        self._lock = threading.Lock()
        self._requests: set[Stoppable] = set()
        self._n_admitted = 0

    @property
    def is_idle(self) -> bool:
        return self._n_admitted == 0

    @contextlib.contextmanager
    def admitted(self) -> Iterator[None]:
        """Count a request as in flight for the `with` block, also before it generates, unless the server stops.

        Raises:
            ShuttingDown: New requests are refused.
        """
        with self._lock:
            if self.is_stopping:
                raise errors.ShuttingDown(errors.SHUTTING_DOWN)
            self._n_admitted += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_admitted -= 1

    @contextlib.contextmanager
    def during(self, request: Stoppable) -> Iterator[None]:
        """Let `stop` end `request` in the `with` block. If `stop` was called already, end it immediately."""
        with self._lock:
            self._requests.add(request)
            if self.is_stopped:
                request.stop()
        try:
            yield
        finally:
            with self._lock:
                self._requests.discard(request)

    def refuse(self) -> None:
        """Refuse new requests from now on."""
        with self._lock:
            self.is_stopping = True

    def stop(self) -> None:
        """Refuse new requests and end those in flight."""
        with self._lock:
            self.is_stopping = self.is_stopped = True
            for request in self._requests:
                request.stop()
