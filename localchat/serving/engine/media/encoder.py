"""Encodes images and sounds beside the engine thread, and keeps what may be needed again.

An image or sound is a `PreparedMedia`, one for each content as long as the cache has it. When a request arrives, its
media are decoded to count their cells. They are encoded when the scheduler asks for them; it does not if a cached
prefix has them. The cache holds the media that were used last, within a limit of bytes.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, Union

from ...core.errors import BadRequest, out_of_resources
from ...core.media import MediaFile
from ..batch import MediaChunk, PositionSection
from ..values import EngineError

log = logging.getLogger("localchat.engine")

# The limit of the cache: files that are not encoded yet, and vectors.
CACHE_BYTES = 256 << 20
# The priority of the thread and of those that it starts, as in nice(1). Streams of text go on while it encodes.
_NICE = 5


class Counted(NamedTuple):
    """A chunk of an image or sound, before it is encoded; see MediaChunk."""

    n_cells: int
    n_positions: int
    is_causal: bool = True
    sections: tuple[PositionSection, ...] = ()


Items = Sequence[Union[int, Counted]]
"""What stands for an image or sound in a prompt: tokens that the model wants around it, and its chunks."""


class Projector(Protocol):
    """What `LlamaProjector` has. Tests have another one."""

    def count(self, media: MediaFile) -> Items:
        """The size of an image or sound in a prompt; any thread. Raises BadRequest if it cannot be decoded."""

    def encode(self, media: MediaFile) -> Sequence[Any]:
        """The rows of each chunk, in a buffer. Runs on one thread."""

    def close(self) -> None: ...


class PreparedMedia:
    """An image or a sound for the model."""

    def __init__(self, media: MediaFile, key: bytes, items: Items) -> None:
        # Its tokens: those that the model wants around it, and a negative number for each cell of a chunk.
        self.cells: list[int] = []
        self.chunks: list[MediaChunk] = []
        self.error: Exception | None = None  # Why it cannot be encoded.
        self.media = media
        self.n_bytes = len(media.data)
        for item in items:
            if isinstance(item, int):
                self.cells.append(item)
                continue
            # All of the content is in the number, so that equal numbers are equal content. -1 means no token.
            cell = -2 - int.from_bytes(key + len(self.chunks).to_bytes(4, "big"), "big")
            self.chunks.append(MediaChunk(cell, *item, self))
            self.cells += [cell] * item.n_cells


class MediaEncoder:
    """Encodes media with a projector, first come first served."""

    def __init__(self, projector: Projector, max_bytes: int = CACHE_BYTES) -> None:
        self._projector = projector
        self._max_bytes = max_bytes
        self._wants: Callable[[PreparedMedia], bool]
        self._on_end: Callable[[PreparedMedia], None]
        # One file is decoded at a time, which bounds the memory for that.
        self._counting = threading.Lock()
        # Guards the rest.
        self._lock = threading.Lock()
        # By content, the least recently used first.
        self._cache: OrderedDict[bytes, PreparedMedia] = OrderedDict()
        self._queue: deque[PreparedMedia] = deque()
        self._current: PreparedMedia | None = None
        # It ends when the queue is empty: OpenMP keeps a team of threads for each thread that has computed, and
        # shortens the waits of all teams if they have more threads than there are cores.
        self._thread: threading.Thread | None = None

    def start(self, wants: Callable[[PreparedMedia], bool], on_end: Callable[[PreparedMedia], None]) -> None:
        """`wants` tells whether a sequence still needs a medium; `on_end` is called when it is encoded or has an error.
        Both are called on the thread that encodes."""
        self._wants, self._on_end = wants, on_end

    def close(self) -> None:
        """Wait until the medium that is being encoded is complete, and encode no other."""
        with self._lock:
            self._queue.clear()
            thread = self._thread
        if thread is not None:
            thread.join()
        self._projector.close()

    def prepared(self, media: MediaFile) -> PreparedMedia:
        """The medium of this content; any thread. Raises BadRequest if it cannot be decoded."""
        key = hashlib.sha256(media.kind.encode() + media.data).digest()
        with self._counting:
            with self._lock:
                if key in self._cache:
                    self._cache.move_to_end(key)
                    return self._cache[key]
            try:
                medium = PreparedMedia(media, key, self._projector.count(media))
            except BadRequest as error:
                error.param = media.path
                raise
            with self._lock:
                self._cache[key] = medium
                self._evict()
        return medium

    def encode(self, media: Iterable[PreparedMedia]) -> None:
        """Encode media soon, each once. Runs on the engine thread."""
        with self._lock:
            for medium in media:
                is_missing = any(chunk.rows is None for chunk in medium.chunks)
                if is_missing and medium is not self._current and medium not in self._queue:
                    medium.error = None
                    self._queue.append(medium)
            if not self._queue or self._thread is not None:
                return
            self._thread = threading.Thread(target=self._run, name="localchat-media", daemon=True)
            try:
                self._thread.start()
                return
            except RuntimeError as error:
                self._thread, refused = None, list(self._queue)
                self._queue.clear()
                for medium in refused:
                    medium.error = out_of_resources(error) or EngineError(str(error))
        for medium in refused:
            self._on_end(medium)

    def _evict(self) -> None:
        """Drop the least recently used media, except the newest one."""
        n_bytes = sum(medium.n_bytes for medium in self._cache.values())
        while n_bytes > self._max_bytes and len(self._cache) > 1:
            n_bytes -= self._cache.popitem(last=False)[1].n_bytes

    def _run(self) -> None:
        if sys.platform == "linux":  # There, each thread has a priority.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while (medium := self._next()) is not None:
            try:
                self._encode(medium)
            except Exception as error:
                log.warning("%s could not be encoded: %s", medium.media.path or medium.media.kind, error)
                known = isinstance(error, EngineError)
                medium.error = error if known else EngineError(f"it cannot be encoded: {error}")
            with self._lock:
                # Before the scheduler hears of it, which may ask again.
                self._current = None
                self._evict()
            self._on_end(medium)

    def _next(self) -> PreparedMedia | None:
        """The next medium that a sequence still needs. None: the thread ends."""
        with self._lock:
            while self._queue:
                medium = self._queue.popleft()
                if self._wants(medium):
                    self._current = medium
                    return medium
            self._thread = None
            return None

    def _encode(self, medium: PreparedMedia) -> None:
        began_at = time.perf_counter()
        for chunk, rows in zip(medium.chunks, self._projector.encode(medium.media)):
            chunk.rows = rows
        # The file is not needed again.
        medium.media = replace(medium.media, data=b"")
        medium.n_bytes = sum(memoryview(chunk.rows).nbytes for chunk in medium.chunks)
        seconds = time.perf_counter() - began_at
        log.debug("encoded %s of %d tokens in %.2f s", medium.media.kind, len(medium.cells), seconds)
