"""Finds the trigger of a lazy grammar. The grammar constrains the output from the trigger on. Pure."""

from __future__ import annotations

from collections.abc import Iterable


class TriggerWatch:
    """Finds the first of several triggers in a stream of token bytes, however they are split."""

    def __init__(self, triggers: Iterable[str]):
        self._triggers = tuple(trigger.encode() for trigger in triggers)
        if not all(self._triggers):
            raise ValueError("an empty trigger would constrain the whole text: leave the triggers out instead")
        self._n_held = max(map(len, self._triggers)) - 1
        self._tail = b""

    def peek(self, piece: bytes) -> bytes | None:
        """The text from the start of the trigger on, if this piece completes a trigger; None otherwise."""
        text = self._tail + piece
        starts = [start for trigger in self._triggers if (start := text.find(trigger)) >= 0]
        return text[min(starts) :] if starts else None

    def feed(self, piece: bytes) -> bytes | None:
        """Like `peek`, and adds the piece to the text."""
        found = self.peek(piece)
        self._tail = (self._tail + piece)[-self._n_held :] if self._n_held else b""
        return found
