"""Moves prefixes that rest out of the memory while nothing runs, since attention goes over every cell.

Whoever runs beside 3,000 cells that rest reads a prompt a third slower on a model of half a billion
parameters. To copy them out and back takes as long as a few dozen tokens. Runs on the engine thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from .backend import Backend
from .copies import Copies
from .scheduler import Scheduler

log = logging.getLogger("localchat.engine")

# Fewer new tokens are computed about as fast as a whole prefix is copied.
_MIN_NEW = 32


class Parking:
    """Empties a crowded memory into copies, one prefix at a time, so that who asks meanwhile hardly waits.

    All of it goes, since cells keep their places: with one prefix left high up, attention would go as far as
    before. `change_memory` does what the scheduler wants changed.
    """

    def __init__(self, copies: Copies, backend: Backend, scheduler: Scheduler, change_memory: Callable[[], None]):
        self._copies = copies
        self._backend = backend
        self._scheduler = scheduler
        self._change_memory = change_memory
        self._is_emptying = False
        # Until the next step: there is no room for another copy.
        self._is_full = False

    @property
    def has_work(self) -> bool:
        return not self._is_full and (self._is_emptying or self._scheduler.is_crowded)

    def note_turn(self) -> None:
        """Something ran: what rests is in use again."""
        self._is_emptying = self._is_full = False

    def park_next(self) -> None:
        """Moves out what was used least recently; what the copies have already, or nearly, is just dropped.

        A prefix for whose copy there is no room stays in the KV cache.
        """
        resting = self._scheduler.resting()
        self._is_emptying = len(resting) > 1
        if not resting:
            return
        slot, tokens = resting[0]
        self._change_memory()
        if len(tokens) - self._copies.n_known(tokens) >= _MIN_NEW:
            try:
                data = self._backend.read_state(slot)
            except Exception:
                log.exception("%d tokens cannot be copied: they stay in the KV cache", len(tokens))
                self._is_full = True
                return
            if not self._copies.has_room(len(data)):
                self._is_full = True
                return
            self._copies.add(tokens, data)
        self._scheduler.discard(slot)
        self._change_memory()
