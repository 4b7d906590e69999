"""The requests in flight, so that the end of the server can end them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Protocol


class Stoppable(Protocol):
    def stop(self) -> None:
        """Ends it soon, because the server ends; any thread."""


class InFlight:
    """Requests in flight. After `stop`, each new one is stopped as it begins."""

    def __init__(self) -> None:
        self.is_stopping = False
        self._lock = threading.Lock()
        self._requests: set[Stoppable] = set()

    @contextlib.contextmanager
    def during(self, request: Stoppable) -> Iterator[None]:
        """Within the `with`, `stop` reaches this request."""
        with self._lock:
            self._requests.add(request)
            if self.is_stopping:
                request.stop()
        try:
            yield
        finally:
            with self._lock:
                self._requests.discard(request)

    def stop(self) -> None:
        with self._lock:
            self.is_stopping = True
            for request in self._requests:
                request.stop()
