"""Encodes images and sounds beside the engine thread, and keeps what may be needed again.

An image or sound is a `PreparedMedium`, one for each content as long as the cache has it. When a request arrives, its
media are decoded to count their cells. They are encoded when the scheduler asks for them; it does not if a cached
prefix has them. The cache holds the media that were used last, within a limit of bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from ...core.errors import BadRequest, out_of_resources
from ...core.media import MediaFile
from ..sequence import MediaChunk
from ..values import EngineError, EngineStopped

if TYPE_CHECKING:
    from .projector import LlamaProjector

log = logging.getLogger("localchat.engine")

# The limit of the cache: files that are not encoded yet, and vectors.
CACHE_BYTES = 256 << 20
# The priority of the thread and of those that it starts, as in nice(1). Streams of text go on while it encodes.
_NICE = 5


class PreparedMedium:
    """An image or a sound for the model: its file until it is encoded, and what stands for it in a prompt."""

    def __init__(self, file: MediaFile, key: bytes, items: Iterable[int | MediaChunk]) -> None:
        """`key` is a digest of the content, `items` are what `LlamaProjector.prompt_items` returns."""
        # Its tokens: those that the model wants around it, and a negative number for each cell of a chunk.
        self.tokens: list[int] = []
        self.chunks: list[MediaChunk] = []
        self.file = file  # Without its data once it is encoded.
        self.n_bytes = len(file.data)
        for item in items:
            if isinstance(item, int):
                self.tokens.append(item)
                continue
            # All of the content is in the number, so that equal numbers are equal content. -1 means no token.
            item.placeholder = -2 - int.from_bytes(key + len(self.chunks).to_bytes(4, "big"), "big")
            item.medium = self
            self.chunks.append(item)
            self.tokens += [item.placeholder] * item.n_cells


class MediaEncoder:
    """Encodes media with a projector, first come first served."""

    def __init__(
        self,
        projector: LlamaProjector,
        is_needed: Callable[[PreparedMedium], bool],
        on_end: Callable[[PreparedMedium, Exception | None], None],
        post: Callable[[Callable[[], None]], None],
        max_bytes: int = CACHE_BYTES,
    ) -> None:
        """`is_needed` is called on the thread that encodes: whether a sequence still needs a medium.

        `post` has the engine thread call a function before its next step. That calls `on_end` with a medium that is
        encoded, with the error of one that cannot be encoded, or with one that no sequence needs any more.
        """
        self._projector = projector
        self._is_needed = is_needed
        self._on_end = on_end
        self._post = post
        self._max_bytes = max_bytes
        # One content is decoded and counted at a time, each once. This lock also guards `_is_closed`.
        self._count_lock = threading.Lock()
        self._is_closed = False
        # The media from `encode` to `on_end`. Only the engine thread uses it.
        self._requested: set[PreparedMedium] = set()
        self._lock = threading.Lock()  # Guards `_cache`, `_queue` and `_thread`.
        self._cache: OrderedDict[bytes, PreparedMedium] = OrderedDict()  # By content, the least recently used first.
        self._queue: deque[PreparedMedium] = deque()
        # It ends when the queue is empty: OpenMP keeps a team of threads for each thread that has computed, and
        # shortens the waits of all teams if they have more threads than there are cores.
        self._thread: threading.Thread | None = None

    def close(self) -> None:
        """Wait until the medium that is being encoded is complete, and encode no other."""
        with self._lock:
            self._queue.clear()
            thread = self._thread
        if thread is not None:
            thread.join()
        with self._count_lock:
            self._is_closed = True
            self._projector.close()

    def prepared(self, file: MediaFile, check: Callable[[], None] = lambda: None) -> PreparedMedium:
        """The medium of this content; any thread. One call decodes at a time.

        `check` is called before the content is decoded, and may raise an error to end the call. Raises what the
        projector's `prompt_items` raises, and EngineStopped after `close`.
        """
        key = hashlib.sha256(file.kind.encode() + file.data).digest()
        with self._count_lock:
            if self._is_closed:
                raise EngineStopped
            with self._lock:
                if key in self._cache:
                    self._cache.move_to_end(key)
                    return self._cache[key]
            check()
            try:
                medium = PreparedMedium(file, key, self._projector.prompt_items(file))
            except BadRequest as error:
                error.param = file.path
                raise
            with self._lock:
                self._cache[key] = medium
                self._evict()
        return medium

    def encode(self, media: Iterable[PreparedMedium]) -> None:
        """Encode media soon, each once. Runs on the engine thread."""
        missing = [medium for medium in media if any(chunk.rows is None for chunk in medium.chunks)]
        with self._lock:
            for medium in missing:
                if medium not in self._requested:
                    self._requested.add(medium)
                    self._queue.append(medium)
            if not self._queue or self._thread is not None:
                return
            self._thread = threading.Thread(target=self._run, name="localchat-media", daemon=True)
            try:
                self._thread.start()
            except RuntimeError as error:
                self._thread = None
                while self._queue:
                    self._report(self._queue.popleft(), _failure_of(error))

    def _report(self, medium: PreparedMedium, error: Exception | None) -> None:
        """Have the engine thread take the result of an encoding. Until then, the medium is not encoded again."""

        def end() -> None:
            self._requested.remove(medium)
            self._on_end(medium, error)

        self._post(end)

    def _evict(self) -> None:
        """Drop the least recently used media, except the newest one."""
        n_bytes = sum(medium.n_bytes for medium in self._cache.values())
        while n_bytes > self._max_bytes and len(self._cache) > 1:
            n_bytes -= self._cache.popitem(last=False)[1].n_bytes

    def _run(self) -> None:
        if sys.platform == "linux":  # There, each thread has a priority.
            with contextlib.suppress(OSError):  # A process with a lower priority may not raise it.
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        while (medium := self._next()) is not None:
            failure = None
            try:
                self._encode(medium)
            except Exception as error:
                log.warning("%s could not be encoded: %s", medium.file.path or medium.file.kind, error)
                failure = _failure_of(error)
            with self._lock:
                self._evict()
            self._report(medium, failure)

    def _next(self) -> PreparedMedium | None:
        """The next medium that a sequence still needs. None: the thread ends."""
        with self._lock:
            while self._queue:
                medium = self._queue.popleft()
                if self._is_needed(medium):
                    return medium
                self._report(medium, None)
            self._thread = None
            return None

    def _encode(self, medium: PreparedMedium) -> None:
        began_at = time.perf_counter()
        for chunk, rows in zip(medium.chunks, self._projector.encode(medium.file)):
            chunk.rows = rows
        medium.file = replace(medium.file, data=b"")
        medium.n_bytes = sum(memoryview(chunk.rows).nbytes for chunk in medium.chunks)
        seconds = time.perf_counter() - began_at
        log.debug("encoded %s of %d tokens in %.2f s", medium.file.kind, len(medium.tokens), seconds)


def _failure_of(error: Exception) -> Exception:
    """The error for the requests whose medium could not be encoded."""
    if isinstance(error, EngineError):
        return error
    return out_of_resources(error) or EngineError(f"it cannot be encoded: {error}")
