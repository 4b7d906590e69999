"""When a grammar begins to bind: after a text that the model says of its own accord. Pure: bytes in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Optional


class TriggerWatch:
    """Finds the first of some texts in a stream of pieces, however they are cut."""

    def __init__(self, triggers: Iterable[str]):
        self._triggers = tuple(trigger.encode() for trigger in triggers)
        if not all(self._triggers):
            raise ValueError("an empty trigger would bind at once: leave the triggers out instead")
        self._n_held = max(map(len, self._triggers)) - 1
        self._tail = b""

    def feed(self, piece: bytes) -> Optional[bytes]:
        """What was said from the start of the trigger on, once it is complete; None before."""
        text = self._tail + piece
        starts = [start for trigger in self._triggers if (start := text.find(trigger)) >= 0]
        if starts:
            return text[min(starts) :]
        self._tail = text[-self._n_held :] if self._n_held else b""
        return None
