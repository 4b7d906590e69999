"""The front of an engine: has methods of `Engine`, and calls them in an engine process, which it starts.

The server's process never loads llama.cpp, so a native crash ends only the engine process. `process.py` notices that
and ends its requests with EngineDied. The front is then of no more use: `loading/service.py` loads the model again.
"""

from __future__ import annotations

import contextlib
import logging
from array import array
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from typing import Any, TypeVar, Union

from .engine import Engine
from .process import EngineProcess
from .tuning import has_matrix_instructions
from .values import (
    EngineDied,
    EngineGone,
    EngineSilent,
    EngineStats,
    EngineStopped,
    GenerationRequest,
    LoadOptions,
    ModelFacts,
    PromptPart,
    StepOutput,
    Submitted,
    TokenTexts,
)

log = logging.getLogger("localchat.engine")

Result = TypeVar("Result")

# How long the statistics of an engine may take.
_STATS_S = 3.0
# How long a call may take that tokenizes texts.
_CALL_S = 60.0
_MATRIX_INSTRUCTIONS_OFF = (
    "this build of llama.cpp crashes at this CPU's matrix instructions (AMX; %s), so they are off; "
    "for full speed rebuild it as docs/install.md says"
)


class Front:
    """Stands for the `Engine` of a model in an engine process. Any thread may call its methods, which raise the errors
    of `Engine`. `start` is called once, before the others."""

    def __init__(
        self, path: str, options: LoadOptions, on_progress: Callable[[float], None] = lambda share: None
    ) -> None:
        """`on_progress` is called with the loaded share of the model, 0 to 1."""
        self._path, self._options, self._on_progress = path, options, on_progress
        self._is_closed = False
        self._process: EngineProcess | None = None
        self.facts: ModelFacts
        self.texts: TokenTexts

    def __enter__(self) -> Front:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def start(self) -> Front:
        """Start the process, and wait until the model is loaded. If the process crashes and this CPU announces matrix
        instructions, a second one is started without them. Raises what `load` raises, and OSError."""
        try:
            self.facts, self.texts = self._loaded(self._options)
        except EngineDied as error:
            # SIGKILL ends a process that takes much memory.
            is_crash = error.killed_by not in (None, "SIGKILL")
            if not (is_crash and self._options.use_extra_bufts and has_matrix_instructions()):
                raise
            self.facts, self.texts = self._loaded(replace(self._options, use_extra_bufts=False))
            log.warning(_MATRIX_INSTRUCTIONS_OFF, error.killed_by)
        return self

    def _loaded(self, options: LoadOptions) -> tuple[ModelFacts, TokenTexts]:
        process = self._process = EngineProcess(self._path, options, self._on_progress)
        if self._is_closed:  # `stop` was called meanwhile, before it could see this process.
            process.stop()
        try:
            return process.loaded.result()
        except BaseException:
            process.close()
            raise

    def stop(self) -> None:
        """End the process; do not wait. Requests end with EngineStopped."""
        self._is_closed = True
        if self._process is not None:
            self._process.stop()

    def close(self) -> None:
        """End the process, and wait until it has ended."""
        self.stop()
        if self._process is not None:
            self._process.close()

    @property
    def has_died(self) -> bool:
        """Whether the process has ended, so that the model must be loaded again."""
        return self._process is not None and isinstance(self._process.death, EngineDied)

    @property
    def max_open(self) -> int:
        return self.facts.n_parallel + self._options.max_queue

    @property
    def n_open(self) -> int:
        return 0 if self._process is None else self._process.n_open

    def submit(
        self,
        requests: Sequence[GenerationRequest],
        deliver: Callable[[StepOutput], None],
        check: Callable[[], None] = lambda: None,
    ) -> Submitted:
        return self._called(lambda process: process.submit(requests, deliver, check))

    def tokenize(
        self, text: str, *, add_bos: bool = False, parse_special: bool = True, limit: int | None = None
    ) -> list[int]:
        tokens: list[int] = self._result("tokenize", text, add_bos=add_bos, parse_special=parse_special, limit=limit)
        return tokens

    def tokenize_prompt(self, parts: Iterable[PromptPart], *, add_bos: bool = False) -> list[int]:
        tokens: list[int] = self._result("tokenize_prompt", list(parts), add_bos=add_bos)
        return tokens

    def embed(
        self, inputs: Sequence[str | Sequence[int]], *, check: Callable[[], None] = lambda: None, **options: Any
    ) -> tuple[list[array[float]], int]:
        vectors: tuple[list[array[float]], int] = self._called(lambda process: process.embed(inputs, check, options))
        return vectors

    def stats(self, timeout_s: float = _STATS_S) -> EngineStats:
        """A dead process runs nothing. Raises EngineSilent if a living one does not respond in time."""
        with contextlib.suppress(EngineDied, EngineStopped):
            return self._called(lambda process: process.stats(timeout_s))
        return EngineStats()

    def _result(self, method: str, *arguments: Any, **options: Any) -> Any:
        try:
            return self._called(lambda process: process.call(method, *arguments, **options).result(_CALL_S))
        except FutureTimeout:
            raise EngineSilent(_CALL_S) from None

    def _called(self, call: Callable[[EngineProcess], Result]) -> Result:
        if self._process is None:
            raise EngineStopped
        try:
            return call(self._process)
        except EngineGone:
            self._process.join()  # An engine that has failed ends its process a moment later.
            raise


AnyEngine = Union[Engine, Front]
"""What the rest of the server uses: an engine in this process, or the front of one in a child process."""
