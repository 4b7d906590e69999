"""Disk cache: idle prefixes are saved in files while nothing runs, and loaded for requests that begin with them.

Runs on the engine thread. Files are read and written on another thread, so no running sequence waits for a disk.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .kv_cache import KVCache
from .prefix import n_common_of
from .state_files import Data, SavedPrefix, StateFiles

log = logging.getLogger("localchat.engine")

# Shorter prefixes are computed about as fast as they are read from a file.
_MIN_TOKENS = 32
# Prefixes are saved after no sequence has run for so long: in a conversation the next turn replaces its prefix.
_IDLE_S = 1.0
# When the engine is closed, saving stops after this time.
_CLOSE_S = 10.0


class DiskCache:
    """Saves the idle prefixes of a KV cache, and loads them into it.

    `post` has the engine thread run a command before its next step; the thread for the disk uses it.
    """

    def __init__(self, files: StateFiles, cache: KVCache, post: Callable[[Callable[[], None]], None]):
        self._files = files
        self._cache = cache
        self._post = post
        self._disk = ThreadPoolExecutor(1, "localchat-disk")
        # For each slot the tokens that were saved, or could not be saved, the last time.
        self._tried: dict[int, list[int]] = {}
        # For each file that is being read, what continues after it.
        self._waiting: dict[Path, list[Callable[[], None]]] = {}
        self._is_writing = False
        self._has_news = False
        self._idle_s = _IDLE_S

    @property
    def patience_s(self) -> float | None:
        """How long to wait for work before something is to be saved; None for ever."""
        return self._idle_s if self._has_news and not self._is_writing else None

    def note_step(self) -> None:
        """The engine has computed something: there may be new idle prefixes."""
        self._has_news, self._idle_s = True, _IDLE_S

    def save_next(self) -> None:
        """Saves one idle prefix that is in no file yet. This thread copies its state; another one writes the file."""
        for slot, tokens in self._unsaved():
            self._tried[slot] = tokens
            try:
                data = self._cache.read_state(slot)
            except Exception:
                log.exception("a prefix of %d tokens cannot be saved", len(tokens))
                continue
            self._is_writing, self._idle_s = True, 0.0
            self._disk.submit(self._write, tokens, data)
            return
        self._has_news = False

    def fetch(self, tokens: list[int], then: Callable[[], None]) -> bool:
        """Loads a prefix of `tokens` into the KV cache if a file has more of them than the cache and its snapshots.

        Returns whether a file is read. If so, `then` is called on the engine thread afterwards, whether or not the
        prefix could be loaded.
        """
        prefix = self._find(tokens)
        if prefix is None or n_common_of(prefix.tokens, tokens, 0) < self._cache.n_known(tokens) + _MIN_TOKENS:
            return False
        waiting = self._waiting.get(prefix.path)
        if waiting is not None:
            waiting.append(then)
            return True
        self._waiting[prefix.path] = [then]
        self._disk.submit(self._read, prefix)
        return True

    def close(self, *, saves: bool = True) -> None:
        """Saves the idle prefixes that are in no file yet, as far as there is time. Cancels what is being loaded."""
        until = time.monotonic() + _CLOSE_S
        self._waiting.clear()
        self._disk.shutdown()
        for slot, tokens in self._unsaved() if saves else ():
            if time.monotonic() > until:
                log.warning("not all prefixes were saved: the disk is slow")
                return
            self._files.write(tokens, self._cache.read_state(slot), replaces_shorter=self._cache.can_cut)

    def _unsaved(self) -> list[tuple[int, list[int]]]:
        return [
            (slot, tokens)
            for slot, tokens in self._cache.idle()
            if len(tokens) >= _MIN_TOKENS and self._tried.get(slot) != tokens and not self._is_in_a_file(tokens)
        ]

    def _is_in_a_file(self, tokens: list[int]) -> bool:
        prefix = self._find(tokens)
        return prefix is not None and n_common_of(prefix.tokens, tokens, 0) == len(tokens)

    def _find(self, tokens: list[int]) -> SavedPrefix | None:
        return self._files.find(tokens, whole=not self._cache.can_cut)

    def _write(self, tokens: list[int], data: Data) -> None:
        try:
            self._files.write(tokens, data, replaces_shorter=self._cache.can_cut)
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
            self._post(lambda: self._load(prefix, data))

    def _load(self, prefix: SavedPrefix, data: Data | None) -> None:
        waiting = self._waiting.pop(prefix.path, [])
        try:
            if data is not None and waiting:
                slot = self._cache.load(prefix.tokens, data)
                if slot is not None:
                    self._tried[slot] = prefix.tokens
        finally:
            for then in waiting:
                then()
