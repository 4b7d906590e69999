"""The run of one request on the engine: one queue of what the engine produces for its sequences.

The engine thread only puts token ids into the queue. The thread that takes them looks up their bytes, so the steps of
the engine stay short.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from .values import StepOutput


class RequestRun:
    """The sequences of one request on the engine, by their index in the request. One thread calls `take`."""

    def __init__(self, n_sequences: int, cancel: Callable[[int], None]):
        """`cancel` ends the sequence with an id; its error is Cancelled."""
        self._cancel = cancel
        # The ids of the sequences, which the engine sets.
        self.ids: Sequence[int] = ()
        # The indexes of the sequences whose end has not been delivered.
        self.undelivered = set(range(n_sequences))
        self._queue: SimpleQueue[StepOutput] = SimpleQueue()

    def deliver(self, new: StepOutput) -> None:
        """Queues what a step produced. The engine thread calls this, or the thread that reads its messages."""
        if new.end is not None:
            self.undelivered.discard(new.sequence)
        self._queue.put(new)

    def take(self, timeout_s: float | None = None) -> dict[int, list[StepOutput]]:
        """What the steps since the last call produced, by the index of the sequence. Waits at most `timeout_s` if that
        is nothing; None: no timeout."""
        taken: dict[int, list[StepOutput]] = {}
        try:
            new = self._queue.get(timeout=timeout_s)
            while True:
                taken.setdefault(new.sequence, []).append(new)
                new = self._queue.get_nowait()
        except Empty:
            return taken

    def cancel(self, index: int) -> None:
        """Ends a sequence before the next step, if it still runs. Its end is then the error Cancelled."""
        self._cancel(self.ids[index])
