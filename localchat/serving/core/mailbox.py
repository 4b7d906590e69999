"""Messages for the thread of a request.

A thread has one mailbox for all that it waits for: its model, the engine, and its client.
"""

from __future__ import annotations

import contextlib
import math
import time
from queue import Empty, SimpleQueue
from typing import Any


class Mailbox:
    """Messages that other threads put here for one thread, which takes them."""

    def __init__(self) -> None:
        self._messages: SimpleQueue[tuple[object, Any]] = SimpleQueue()

    def put(self, sender: object, message: Any) -> None:
        """Add a message. Any thread may call this; it never waits."""
        self._messages.put((sender, message))

    def take(self, sender: object, timeout_s: float | None = None) -> list[Any]:
        """Wait for a message of a sender, then return all that have arrived, in their order; none after `timeout_s`.

        The messages of others are dropped. They are of senders for which the thread no longer waits, such as an earlier
        request to the engine that it dropped. A subclass may raise an error that ends the waiting, such as that of a
        client that has disconnected.
        """
        ends_at = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            messages = [message for source, message in self._next(ends_at) if source is sender]
            if messages or time.monotonic() >= ends_at:
                return messages

    def _next(self, ends_at: float) -> list[tuple[object, Any]]:
        """Wait for messages, each with its sender, until `ends_at` by `time.monotonic`. A subclass may return none."""
        timeout_s = None if ends_at == math.inf else max(ends_at - time.monotonic(), 0)
        messages: list[tuple[object, Any]] = []
        with contextlib.suppress(Empty):
            messages.append(self._messages.get(timeout=timeout_s))
            while True:
                messages.append(self._messages.get_nowait())
        return messages
