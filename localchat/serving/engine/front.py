"""The front of an engine: has methods of `Engine`, and calls them in an engine process, which it starts when needed.

The server's process never loads llama.cpp, so a native crash ends only the engine process. `process.py` notices that
and ends its requests with EngineDied; the next request starts another process here. If that fails some times in a row,
it is not tried again for a while.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, Union

from ..models.memory import OtherModels
from .engine import Engine
from .process import EngineProcess
from .run import RequestRun
from .tuning import has_matrix_instructions
from .values import (
    EngineDied,
    EngineError,
    EngineStats,
    EngineStopped,
    GenerationRequest,
    LoadOptions,
    ModelFacts,
    TokenTexts,
)

log = logging.getLogger("localchat.engine")

Result = TypeVar("Result")

# A process that fails to start this often in a row is not started again for this many seconds.
MAX_FAILED_STARTS, PAUSE_S = 3, 60.0
_MATRIX_INSTRUCTIONS_OFF = (
    "this build of llama.cpp crashes at this CPU's matrix instructions (AMX; %s), so they are off; "
    "for full speed rebuild it as docs/install.md says"
)


class Front:
    """Stands for the `Engine` of a model in an engine process. Any thread may call its methods, which raise the errors
    of `Engine`, and those of `load` if they start the process."""

    def __init__(
        self, path: str, options: LoadOptions, on_progress: Callable[[float], None] = lambda share: None
    ) -> None:
        """`on_progress` is called with the loaded share of the model, 0 to 1, at the first start."""
        self._path, self._options, self._on_progress = path, options, on_progress
        self._is_closed = False
        # Held while a process is started; other requests wait for it.
        self._starting = threading.Lock()
        self._process: EngineProcess | None = None
        # Whether a process has loaded the model, and what it reported.
        self._was_loaded = False
        self.facts: ModelFacts
        self.texts: TokenTexts
        self._n_failed_starts = 0
        # After too many failed starts: the error, and the time of the next start.
        self._failure: EngineError | None = None
        self._next_start_at = 0.0

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
    def failure(self) -> EngineError | None:
        """Why the engine accepts no requests; None if it does."""
        return self._failure if time.monotonic() < self._next_start_at else None

    @property
    def max_open(self) -> int:
        return self.facts.n_parallel + self._options.max_queue

    @property
    def n_open(self) -> int:
        return 0 if self._process is None else self._process.n_open

    def submit(self, requests: Sequence[GenerationRequest]) -> RequestRun:
        return self._repeated(lambda process: process.submit(requests))

    def tokenize(
        self, text: str, *, add_bos: bool = False, parse_special: bool = True, limit: int | None = None
    ) -> list[int]:
        tokens: list[int] = self._called("tokenize", text, add_bos=add_bos, parse_special=parse_special, limit=limit)
        return tokens

    def tokenize_prompt(self, parts: Iterable[tuple[str, bool]], *, add_bos: bool = False) -> list[int]:
        tokens: list[int] = self._called("tokenize_prompt", list(parts), add_bos=add_bos)
        return tokens

    def pair_tokens(self, query: str, documents: Sequence[str]) -> list[list[int]]:
        pairs: list[list[int]] = self._called("pair_tokens", query, documents)
        return pairs

    def embed(self, inputs: Sequence[Sequence[int]]) -> list[array[float]]:
        # Not repeated after a crash, which the inputs may have caused.
        vectors: list[array[float]] = self._running().call("embed", inputs).result()
        return vectors

    def stats(self) -> EngineStats:
        process, stats = self._process, EngineStats()
        # A process that is dead or loads its model runs nothing, and is not started for this.
        if process is not None and process.is_serving:
            with contextlib.suppress(EngineDied, EngineStopped):
                stats = process.call("stats").result()
        return stats

    def _called(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._repeated(lambda process: process.call(method, *arguments, **options).result())

    def _repeated(self, call: Callable[[EngineProcess], Result]) -> Result:
        """The result of a short call, which is repeated once if the process dies meanwhile."""
        process = self._running()
        try:
            return call(process)
        except EngineDied:
            process.join()  # An engine that has failed ends its process a moment later.
            return call(self._running())

    def _running(self) -> EngineProcess:
        """The process, which has loaded the model. Starts it if there is none."""
        with self._starting:
            if self._is_closed:
                raise EngineStopped
            if self._process is not None and self._process.is_serving:
                return self._process
            if (failure := self.failure) is not None:
                raise EngineError(str(failure))
            try:
                process = self._started()
            except Exception as error:
                self._n_failed_starts += 1
                if self._n_failed_starts >= MAX_FAILED_STARTS:
                    self._failure = EngineError(f"the engine cannot be started: {error}")
                    self._next_start_at = time.monotonic() + PAUSE_S
                raise
            self._n_failed_starts = 0
            return process

    def _started(self) -> EngineProcess:
        """A new process that has loaded the model. If it crashes and this CPU announces matrix instructions, a second
        one is started without them."""
        try:
            process, facts, texts = self._loading(self._options)
        except EngineDied as error:
            # SIGKILL ends a process that takes much memory.
            is_crash = not self._was_loaded and error.killed_by not in (None, "SIGKILL")
            if not (is_crash and self._options.use_extra_bufts and has_matrix_instructions()):
                raise
            options = replace(self._options, use_extra_bufts=False)
            process, facts, texts = self._loading(options)
            self._options = options
            log.warning(_MATRIX_INSTRUCTIONS_OFF, error.killed_by)
        if not self._was_loaded:
            self._was_loaded, self.facts, self.texts = True, facts, texts
            # After a crash the model is loaded into the memory that is free: no idle model is ended, as requests wait.
            self._options = replace(self._options, others=OtherModels(self._options.others.n_mapped))
        elif facts.metadata != self.facts.metadata:
            process.close()
            # Templates and token ids of the model before would be wrong for this one, in silence.
            raise EngineError(f"{self._path} is another model than at the start of the server: restart the server")
        else:
            log.info("the engine process has been started again")
        return process

    def _loading(self, options: LoadOptions) -> tuple[EngineProcess, ModelFacts, TokenTexts]:
        process = self._process = EngineProcess(self._path, options, self._show)
        if self._is_closed:  # `close` was called meanwhile, before it could see this process.
            process.close()
        try:
            return (process, *process.loaded.result())
        except BaseException:
            process.close()
            raise

    def _show(self, share: float) -> None:
        if not self._was_loaded:
            self._on_progress(share)


AnyEngine = Union[Engine, Front]
"""What the rest of the server uses: an engine in this process, or the front of one in a child process."""
