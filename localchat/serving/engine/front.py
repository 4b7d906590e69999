"""The front of an engine: has the methods of `Engine`, and runs them in an engine process, which it starts when needed.

This process never loads llama.cpp, so a native crash ends only the engine process. Its requests end with EngineDied,
which names the cause, and the next request starts it again. A process that cannot be started some times in a row is
not tried again for a while, or until the model file changes.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, TimeoutError
from dataclasses import replace
from typing import Any, TypeVar

from ..core.server_state import SequenceStats
from .library_build import MATRIX_INSTRUCTIONS_OFF, has_matrix_instructions, rebuild_command
from .messages import LoadRequest
from .process import EngineProcess
from .run import RequestRun
from .stats import FIRST_TOKEN_BOUNDS_S, EngineCounts, EngineStats, Histogram
from .token_texts import TokenTexts
from .values import EngineDied, EngineError, EngineStopped, GenerationRequest, ModelFacts

log = logging.getLogger("localchat.engine")

Result = TypeVar("Result")

# A process that fails to start this often in a row is not started again for this many seconds.
MAX_FAILED_STARTS, PAUSE_S = 3, 60.0
# The interval at which an embedding checks whether it has been cancelled.
_POLL_S = 0.05


class Front:
    """Has the methods of `Engine` (see `AnyEngine`) for a model in an engine process, which it starts when needed."""

    def __init__(self, request: LoadRequest, on_progress: Callable[[float], None] = lambda share: None) -> None:
        self._request = request
        self._on_progress = on_progress
        self._is_closed = False
        self._was_loaded = False
        # Held while a process is started; other requests wait for it.
        self._starting = threading.Lock()
        self._process: EngineProcess | None = None
        self._facts: ModelFacts
        self._texts: TokenTexts
        self._n_failed_starts = 0
        # After too many failed starts: the error, the time of the next start, and the state of the file.
        self._failure: tuple[EngineError, float, object] | None = None

    def __enter__(self) -> Front:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def start(self) -> Front:
        """Start the process, unless it runs, and wait until the model is loaded. Raises what `load` raises."""
        self._running()
        return self

    def close(self) -> None:
        """End the process. Requests end with EngineStopped, those that wait for a start too."""
        self._is_closed = True
        if self._process is not None:
            self._process.close()

    @property
    def facts(self) -> ModelFacts:
        """Only after `start`."""
        return self._facts

    @property
    def failure(self) -> EngineError | None:
        if self._failure is None:
            return None
        error, until, file = self._failure
        return error if time.monotonic() < until and file == self._file() else None

    @property
    def max_open(self) -> int:
        return self.facts.n_parallel + self._request.max_queue

    def submit(self, requests: Sequence[GenerationRequest]) -> RequestRun:
        return self._repeated(lambda process: process.submit(requests, self._texts))

    def tokenize(
        self, text: str, *, add_bos: bool = False, parse_special: bool = True, limit: int | None = None
    ) -> list[int]:
        tokens: array[int] = self._called("tokenize", text, add_bos, parse_special, limit)
        return tokens.tolist()

    def tokenize_prompt(self, parts: Iterable[tuple[str, bool]], *, add_bos: bool = False) -> list[int]:
        tokens: array[int] = self._called("tokenize_prompt", list(parts), add_bos)
        return tokens.tolist()

    def pair_tokens(self, query: str, documents: Sequence[str]) -> list[list[int]]:
        pairs: list[list[int]] = self._called("pair_tokens", query, documents)
        return pairs

    def piece(self, token: int, special: bool = False) -> bytes:
        return self._texts.piece(token, special)

    def embed(
        self, inputs: Sequence[Sequence[int]], is_cancelled: Callable[[], bool] = lambda: False
    ) -> list[array[float]]:
        process = self._running()
        id, was_cancelled = process.new_id(), False
        call: Future[list[array[float]]] = process.call(id, "embed", inputs)
        while True:
            try:
                return call.result(None if was_cancelled else _POLL_S)
            except TimeoutError:
                if is_cancelled():
                    process.send("abandon", id)
                    was_cancelled = True

    def stats(self) -> EngineStats:
        """The state of the engine. It starts no process: in one that is dead or loads its model, nothing runs."""
        nothing = EngineStats(0, 0, 0, 0, EngineCounts(), Histogram(FIRST_TOKEN_BOUNDS_S).values())
        return self._called_if_serving("stats", nothing)

    def running(self) -> list[SequenceStats]:
        return self._called_if_serving("running", [])

    def _called(self, method: str, *arguments: Any) -> Any:
        return self._repeated(lambda process: process.call(process.new_id(), method, *arguments).result())

    def _repeated(self, call: Callable[[EngineProcess], Result]) -> Result:
        """The result of a short call, which is repeated once if the process dies meanwhile."""
        process = self._running()
        try:
            return call(process)
        except EngineDied:
            return call(self._running())

    def _called_if_serving(self, method: str, otherwise: Result) -> Result:
        process = self._process
        if process is None or not process.is_serving:
            return otherwise
        try:
            result: Result = process.call(process.new_id(), method).result()
        except (EngineDied, EngineStopped):
            return otherwise
        return result

    def _running(self) -> EngineProcess:
        """The process, which has loaded the model. Starts it if there is none."""
        with self._starting:
            if self._is_closed:
                raise EngineStopped("the engine has been closed")
            if self._process is not None and self._process.is_serving:
                return self._process
            if self.failure is not None:
                raise EngineError(str(self.failure))
            try:
                process = self._start()
            except EngineStopped:
                raise
            except Exception as error:
                self._n_failed_starts += 1
                if self._n_failed_starts >= MAX_FAILED_STARTS:
                    failure = EngineError(f"the engine cannot be started: {error}")
                    self._failure = failure, time.monotonic() + PAUSE_S, self._file()
                raise
            self._n_failed_starts = 0
            return process

    def _start(self) -> EngineProcess:
        """A new process that has loaded the model.

        If the first one crashes and this CPU announces matrix instructions, a second one is started without them.
        """
        request, began_at = self._request, time.monotonic()
        while True:
            process = self._process = EngineProcess(request, self._show_first)
            if self._is_closed:  # by a thread that did not see this process
                process.close()
            try:
                facts, texts = process.loaded.result()
                break
            except EngineDied as error:
                is_crash = error.killed_by not in (None, "SIGKILL")  # SIGKILL ends a process that takes much memory.
                if self._was_loaded or not (is_crash and request.options.use_extra_bufts and has_matrix_instructions()):
                    raise
                killed_by = error.killed_by
                request = replace(request, options=replace(request.options, use_extra_bufts=False))
            except BaseException:
                process.close()
                raise
        if request is not self._request:
            self._request = request
            log.warning("%s (%s): %s", MATRIX_INSTRUCTIONS_OFF, killed_by, rebuild_command())
        if self._was_loaded and facts.metadata != self._facts.metadata:
            process.close()
            # Templates and token ids of the model before would be wrong for this one, in silence.
            raise EngineError(f"{request.path} is another model than at the start of the server: restart the server")
        self._facts, self._texts = facts, texts
        if self._was_loaded:
            log.info("the engine process has been started again, in %.1f s", time.monotonic() - began_at)
        self._was_loaded = True
        return process

    def _show_first(self, share: float) -> None:
        if not self._was_loaded:
            self._on_progress(share)

    def _file(self) -> object:
        """Changes with the model file."""
        try:
            status = os.stat(self._request.path)
        except OSError as error:
            return error.errno
        return status.st_size, status.st_mtime_ns
