"""The lock of all models, which also announces their changes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from ..core.mailbox import Mailbox


class ModelsLock(threading.Condition):
    """Guards the states of all models, and is notified of each change.

    The thread that loads models waits for a change here. The thread of a request waits in its mailbox, since it has to
    notice its client, too.
    """

    def __init__(self) -> None:
        super().__init__()
        self._mailboxes: set[Mailbox] = set()

    def notify_all(self) -> None:
        super().notify_all()
        for mailbox in self._mailboxes:
            mailbox.put(self, None)

    @contextlib.contextmanager
    def announced_to(self, mailbox: Mailbox) -> Iterator[None]:
        """Put a message into a mailbox for each change within the `with` block."""
        with self:
            self._mailboxes.add(mailbox)
        try:
            yield
        finally:
            with self:
                self._mailboxes.remove(mailbox)
