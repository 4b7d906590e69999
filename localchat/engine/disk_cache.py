"""Disk cache: idle prefixes are saved in files while nothing runs, and loaded for requests that begin with them.

Runs on the engine thread. Files are read and written on another thread, so no running sequence waits for a disk.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .backend import Backend
from .batch import Sequence
from .prefix import n_common_of
from .scheduler import Scheduler
from .state_files import Data, SavedPrefix, StateFiles

log = logging.getLogger("localchat.engine")

# Fewer tokens are computed about as fast as they are fetched.
_MIN_TOKENS = 32
# How long nothing must have run before something is saved: in a conversation the next turn replaces it.
_IDLE_S = 1.0
# How long saving may hold up the end of a server.
_CLOSE_S = 10.0


class DiskCache:
    """Saves what rests in the memory, and brings it back.

    `n_known` says how many tokens of a sequence are at hand; `post` has the engine thread run a command;
    `change_memory` does what the scheduler wants changed there; `bring` puts a copy of tokens into the memory
    and says into which slot, if there is room for it.
    """

    def __init__(
        self,
        files: StateFiles,
        backend: Backend,
        scheduler: Scheduler,
        n_known: Callable[[Sequence], int],
        post: Callable[[Callable[[], None]], None],
        change_memory: Callable[[], None],
        bring: Callable[[list[int], Data], int | None],
    ):
        self._files = files
        self._backend = backend
        self._scheduler = scheduler
        self._n_known = n_known
        self._post = post
        self._change_memory = change_memory
        self._bring = bring
        self._disk = ThreadPoolExecutor(1, "localchat-disk")
        # Of each slot how many of its tokens were saved, or not worth it.
        self._saved: dict[int, int] = {}
        # Who waits for a file that is being read.
        self._waiting: dict[Path, list[Callable[[], None]]] = {}
        self._is_writing = False
        self._has_news = False
        self._idle_s = _IDLE_S

    @property
    def patience_s(self) -> float | None:
        """How long to wait for work before something is to be saved; None for ever."""
        return self._idle_s if self._has_news and not self._is_writing else None

    @property
    def has_news(self) -> bool:
        """Whether something rests that may have to be saved."""
        return self._has_news

    def note_turn(self) -> None:
        """Something ran: what rests may have changed."""
        self._has_news, self._idle_s = True, _IDLE_S

    def note_cleared(self, slot: int) -> None:
        self._saved.pop(slot, None)

    def save_next(self) -> None:
        """Saves one prefix that is not in a file yet; who asks meanwhile waits only for a copy in memory."""
        for slot, tokens in self._unsaved():
            self._saved[slot] = len(tokens)
            try:
                data = self._backend.read_state(slot)
            except Exception:
                log.exception("a prefix of %d tokens cannot be saved", len(tokens))
                continue
            self._is_writing, self._idle_s = True, 0.0
            self._disk.submit(self._write, tokens, data)
            return
        self._has_news = False

    def fetch(self, sequence: Sequence, then: Callable[[], None]) -> bool:
        """Brings what a prompt begins with into the memory, if a file knows more of it than the memory does.

        False if none does. Else `then` is called later, whether it came to something or not.
        """
        if sequence.is_to_score:  # it is computed anew in any case
            return False
        tokens = sequence.tokens[:-1]
        prefix = self._files.find(tokens, whole=not self._backend.room.can_cut)
        if prefix is None:
            return False
        n_saved = n_common_of(prefix.tokens, tokens, 0)
        if n_saved < self._n_known(sequence) + _MIN_TOKENS:
            return False
        waiting = self._waiting.get(prefix.path)
        if waiting is not None:
            waiting.append(then)
            return True
        self._waiting[prefix.path] = [then]
        self._disk.submit(self._read, prefix)
        return True

    def close(self, *, saves: bool = True) -> None:
        """Saves what is not saved yet, as far as there is time. What is fetched is not waited for."""
        until = time.monotonic() + _CLOSE_S
        self._waiting.clear()
        self._disk.shutdown()
        for slot, tokens in self._unsaved() if saves else ():
            if time.monotonic() > until:
                log.warning("not all prefixes were saved: the disk is slow")
                return
            self._files.write(tokens, self._backend.read_state(slot), replaces_shorter=self._backend.room.can_cut)

    def _unsaved(self) -> list[tuple[int, list[int]]]:
        self._change_memory()
        return [
            (slot, tokens)
            for slot, tokens in self._scheduler.resting()
            if len(tokens) >= _MIN_TOKENS and self._saved.get(slot) != len(tokens) and not self._is_in_a_file(tokens)
        ]

    def _is_in_a_file(self, tokens: list[int]) -> bool:
        prefix = self._files.find(tokens, whole=not self._backend.room.can_cut)
        return prefix is not None and n_common_of(prefix.tokens, tokens, 0) == len(tokens)

    def _write(self, tokens: list[int], data: Data) -> None:
        try:
            self._files.write(tokens, data, replaces_shorter=self._backend.room.can_cut)
        except Exception:
            log.exception("saving a prefix failed")
        finally:
            self._post(self._written)

    def _written(self) -> None:
        self._is_writing = False

    def _read(self, prefix: SavedPrefix) -> None:
        data = None
        try:
            data = self._files.read(prefix)
        except Exception:
            log.exception("reading a saved prefix failed")
        finally:
            self._post(lambda: self._place(prefix, data))

    def _place(self, prefix: SavedPrefix, data: Data | None) -> None:
        waiting = self._waiting.pop(prefix.path, [])
        try:
            slot = None if data is None or not waiting else self._bring(prefix.tokens, data)
            if slot is not None:
                self._saved[slot] = len(prefix.tokens)
        finally:
            for then in waiting:
                then()
