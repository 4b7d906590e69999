"""Disk cache: prefixes of the KV cache in files, saved while nothing runs and read for requests that begin with them.

Its methods run on the engine thread. Files are read and written on another thread, so no running sequence waits for a
disk. Knows tokens and copied states; the KV cache owns it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .prefix import n_common_of
from .state_files import Data, SavedPrefix, StateFiles

log = logging.getLogger("localchat.engine")

# Shorter prefixes are computed about as fast as they are read from a file.
_MIN_TOKENS = 32
# Prefixes are saved after no sequence has run for so long: in a conversation the next turn replaces its prefix.
_IDLE_S = 1.0
# When the engine is closed, saving stops after this time.
_CLOSE_S = 10.0

# Idle slots with their tokens.
IdlePrefixes = list[tuple[int, list[int]]]
# Copies the state of a slot.
ReadState = Callable[[int], Data]
# Makes an idle prefix of its tokens and their state.
Load = Callable[[list[int], Data], object]


class DiskCache:
    """The saved prefixes of a KV cache.

    Args:
        files: Where they are.
        post: Has the engine thread run a command before its next step. The thread for the disk uses it.
        can_truncate: Whether the beginning of a saved prefix is of use; if not, only all of it is.
    """

    def __init__(self, files: StateFiles, post: Callable[[Callable[[], None]], None], *, can_truncate: bool):
        self._files = files
        self._post = post
        self._can_truncate = can_truncate
        self._disk = ThreadPoolExecutor(1, "localchat-disk")
        # For each slot the tokens that were saved, or could not be saved, the last time.
        self._tried: dict[int, list[int]] = {}
        # For each file that is being read, what continues after it.
        self._waiting: dict[Path, list[Callable[[], None]]] = {}
        self._is_writing = False
        self._has_news = False
        self._idle_s = _IDLE_S

    @property
    def wait_s(self) -> float | None:
        """Seconds without a running sequence after which `save_next` is due; None if there is nothing to save."""
        return self._idle_s if self._has_news and not self._is_writing else None

    def note_idle_prefix(self) -> None:
        """A sequence has ended or was preempted: its tokens may be in no file yet."""
        self._has_news, self._idle_s = True, _IDLE_S

    def save_next(self, idle: IdlePrefixes, read_state: ReadState) -> None:
        """Saves one idle prefix that is in no file yet. This thread copies its state; another one writes the file."""
        for slot, tokens in self._unsaved(idle):
            self._tried[slot] = tokens
            try:
                data = read_state(slot)
            except Exception:
                log.exception("a prefix of %d tokens cannot be saved", len(tokens))
                continue
            self._is_writing, self._idle_s = True, 0.0
            self._disk.submit(self._write, tokens, data)
            return
        self._has_news = False

    def fetch(self, tokens: list[int], n_known: int, load: Load, then: Callable[[], None]) -> bool:
        """Reads a prefix of `tokens`, if a file has enough more of them than the `n_known` that need no file.

        Returns whether a file is read. If so, the engine thread then calls `load` with the tokens and the state of the
        file, unless it cannot be read, and `then` in any case.
        """
        prefix = self._find(tokens)
        if prefix is None or n_common_of(prefix.tokens, tokens, 0) < n_known + _MIN_TOKENS:
            return False
        waiting = self._waiting.get(prefix.path)
        if waiting is not None:
            waiting.append(then)
            return True
        self._waiting[prefix.path] = [then]
        self._disk.submit(self._read, prefix, load)
        return True

    def close(self, idle: IdlePrefixes, read_state: ReadState) -> None:
        """Saves the idle prefixes that are in no file yet, as far as there is time. Cancels what is being read."""
        until = time.monotonic() + _CLOSE_S
        self._waiting.clear()
        self._disk.shutdown()
        for slot, tokens in self._unsaved(idle):
            if time.monotonic() > until:
                log.warning("not all prefixes were saved: the disk is slow")
                return
            self._save(tokens, read_state(slot))

    def _unsaved(self, idle: IdlePrefixes) -> IdlePrefixes:
        return [
            (slot, tokens)
            for slot, tokens in idle
            if len(tokens) >= _MIN_TOKENS and self._tried.get(slot) != tokens and not self._is_in_a_file(tokens)
        ]

    def _is_in_a_file(self, tokens: list[int]) -> bool:
        prefix = self._find(tokens)
        return prefix is not None and n_common_of(prefix.tokens, tokens, 0) == len(tokens)

    def _find(self, tokens: list[int]) -> SavedPrefix | None:
        return self._files.find(tokens, whole=not self._can_truncate)

    def _save(self, tokens: list[int], data: Data) -> None:
        self._files.write(tokens, data, replaces_shorter=self._can_truncate)

    # On the thread for the disk.

    def _write(self, tokens: list[int], data: Data) -> None:
        try:
            self._save(tokens, data)
        except Exception:
            log.exception("saving a prefix failed")
        finally:
            self._post(self._was_written)

    def _read(self, prefix: SavedPrefix, load: Load) -> None:
        data = None
        try:
            data = self._files.read(prefix)
        except Exception:
            log.exception("reading a saved prefix failed")
        finally:
            self._post(lambda: self._was_read(prefix, data, load))

    # On the engine thread again.

    def _was_written(self) -> None:
        self._is_writing = False

    def _was_read(self, prefix: SavedPrefix, data: Data | None, load: Load) -> None:
        waiting = self._waiting.pop(prefix.path, [])
        try:
            if data is not None and waiting:
                load(prefix.tokens, data)
        finally:
            for then in waiting:
                then()
