"""Messages for the thread of a request.

A thread has one mailbox for all that it waits for: its model, the engine, and its client.
"""

from __future__ import annotations

import contextlib
from queue import Empty, SimpleQueue
from typing import Any


class Mailbox:
    """Messages that other threads put here for one thread, which takes them.

    Each has its sender: one from a sender that the thread no longer waits for may still be there.
    """

    def __init__(self) -> None:
        self._messages: SimpleQueue[tuple[object, Any]] = SimpleQueue()

    def put(self, sender: object, message: Any) -> None:
        """Add a message. Any thread may call this; it never waits."""
        self._messages.put((sender, message))

    def take(self, timeout_s: float | None = None) -> list[tuple[object, Any]]:
        """Wait for a message, then return all that have arrived, in their order; none after `timeout_s`.

        A subclass may raise an error that ends the waiting, such as that of a client that has disconnected.
        """
        messages: list[tuple[object, Any]] = []
        with contextlib.suppress(Empty):
            messages.append(self._messages.get(timeout=timeout_s))
            while True:
                messages.append(self._messages.get_nowait())
        return messages
