"""What is being worked on, so that the end of the server can end it. Knows nothing of what the work is."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Protocol


class Work(Protocol):
    def stop(self) -> None:
        """Ends it soon, because the server ends; any thread."""


class AtWork:
    """Work in progress; once stopped, new work is stopped as it begins."""

    def __init__(self) -> None:
        self.is_stopping = False
        self._lock = threading.Lock()
        self._works: set[Work] = set()

    @contextlib.contextmanager
    def during(self, work: Work) -> Iterator[None]:
        """Within the `with`, `stop` reaches this work."""
        with self._lock:
            self._works.add(work)
            if self.is_stopping:
                work.stop()
        try:
            yield
        finally:
            with self._lock:
                self._works.discard(work)

    def stop(self) -> None:
        with self._lock:
            self.is_stopping = True
            for work in self._works:
                work.stop()
