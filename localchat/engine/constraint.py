"""What a grammar's engine leaves to us: when it begins to bind, and that bytes make characters. Pure: bytes in."""

from __future__ import annotations

import codecs
from collections.abc import Iterable


class TriggerWatch:
    """Finds the first of some texts in a stream of pieces, however they are cut."""

    def __init__(self, triggers: Iterable[str]):
        self._triggers = tuple(trigger.encode() for trigger in triggers)
        if not all(self._triggers):
            raise ValueError("an empty trigger would bind at once: leave the triggers out instead")
        self._n_held = max(map(len, self._triggers)) - 1
        self._tail = b""

    def feed(self, piece: bytes) -> bytes | None:
        """What was said from the start of the trigger on, once it is complete; None before."""
        text = self._tail + piece
        starts = [start for trigger in self._triggers if (start := text.find(trigger)) >= 0]
        if starts:
            return text[min(starts) :]
        self._tail = text[-self._n_held :] if self._n_held else b""
        return None


def rest_of_character(data: bytes) -> bytes | None:
    """The bytes at the end that begin a character of UTF-8; None if the data is no UTF-8 however it goes on."""
    try:
        _, n_read = codecs.utf_8_decode(data, "strict", False)
    except UnicodeDecodeError:
        return None
    rest = data[n_read:]
    # Python waits for the third byte of half a surrogate pair, which no byte makes a character.
    return None if rest[:1] == b"\xed" and rest[1:2] >= b"\xa0" else rest
