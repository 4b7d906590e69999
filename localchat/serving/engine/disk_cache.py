"""The disk cache: prefixes of the KV cache in files, saved while nothing runs and loaded for requests that need them.

Methods run on the engine thread. Another thread reads and writes the files, so no running sequence waits for the disk.
The KV cache owns the disk cache.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .prefix import MIN_SAVED, n_common_of
from .state_files import Data, SavedPrefix, StateFiles

log = logging.getLogger("localchat.engine")

# Prefixes are saved after this time without a running sequence. The next turn of a conversation may replace them.
_IDLE_S = 1.0
# The time limit for saving when the engine is closed.
_CLOSE_S = 10.0

# Idle slots with their tokens.
IdlePrefixes = list[tuple[int, list[int]]]
# Copies the state of a slot.
ReadState = Callable[[int], Data]
# Makes an idle prefix from tokens and their state.
Load = Callable[[list[int], Data], object]


class DiskCache:
    """The saved prefixes of a KV cache.

    Args:
        files: The files of the prefixes.
        post: Runs a command on the engine thread before its next step.
    """

    def __init__(self, files: StateFiles, post: Callable[[Callable[[], None]], None]):
        self._files = files
        self._post = post
        self._disk = ThreadPoolExecutor(1, "localchat-disk")
        # By slot: the tokens of the last attempt to save, successful or not.
        self._tried: dict[int, list[int]] = {}
        # By file that is being read: the commands to run afterwards.
        self._waiting: dict[Path, list[Callable[[], None]]] = {}
        self._is_writing = False
        # Whether an idle prefix may be in no file yet.
        self._has_unsaved = False
        self._idle_s = _IDLE_S

    @property
    def wait_s(self) -> float | None:
        """Seconds without a running sequence after which `save_next` is due; None if there is nothing to save."""
        return self._idle_s if self._has_unsaved and not self._is_writing else None

    def note_idle_prefix(self) -> None:
        """Notes that a sequence has become an idle prefix, which may have to be saved."""
        self._has_unsaved, self._idle_s = True, _IDLE_S

    def save_next(self, idle: IdlePrefixes, read_state: ReadState) -> None:
        """Saves one idle prefix that is in no file yet. Its state is copied here, and written on the other thread."""
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
        self._has_unsaved = False

    def fetch(self, tokens: list[int], n_known: int, load: Load, then: Callable[[], None]) -> bool:
        """Reads a prefix of `tokens` if a file has enough more of them than the `n_known` that need no file.

        Returns whether a file is read. If so, the engine thread calls `load` with the tokens and the state in the file,
        unless the file cannot be read. Then it calls `then` in any case.
        """
        prefix = self._files.find(tokens)
        if prefix is None or n_common_of(prefix.tokens, tokens) < n_known + MIN_SAVED:
            return False
        waiting = self._waiting.get(prefix.path)
        if waiting is not None:
            waiting.append(then)
            return True
        self._waiting[prefix.path] = [then]
        self._disk.submit(self._read, prefix, load)
        return True

    def close(self, idle: IdlePrefixes, read_state: ReadState) -> None:
        """Saves the idle prefixes that are in no file yet, within a time limit. Cancels every `fetch`."""
        until = time.monotonic() + _CLOSE_S
        self._waiting.clear()
        self._disk.shutdown()
        for slot, tokens in self._unsaved(idle):
            if time.monotonic() > until:
                log.warning("not all prefixes were saved: the disk is slow")
                return
            self._files.write(tokens, read_state(slot))

    def _unsaved(self, idle: IdlePrefixes) -> IdlePrefixes:
        return [
            (slot, tokens)
            for slot, tokens in idle
            if len(tokens) >= MIN_SAVED and self._tried.get(slot) != tokens and not self._is_in_a_file(tokens)
        ]

    def _is_in_a_file(self, tokens: list[int]) -> bool:
        prefix = self._files.find(tokens)
        return prefix is not None and n_common_of(prefix.tokens, tokens) == len(tokens)

    # These run on the thread for the files.

    def _write(self, tokens: list[int], data: Data) -> None:
        try:
            self._files.write(tokens, data)
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

    # These run on the engine thread again.

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
