"""What crosses between the server's process and an engine process, and the interface that both kinds of engine have.

A message is a pickled tuple whose first item is its kind.

To the engine process:
    ("call", id, method, arguments)   call a method of `Calls`; "load" is the first call, with the id 0
    ("abandon", id)                   end that call with Cancelled, if it checks for that
    ("cancel", id, index)             end a sequence of the run that the call "submit" with this id started
    ("suspend", id, is_suspended)     suspend or resume the sequences of that run
    ("close",)                        end

From it:
    ("result", id, value)             the result of a call
    ("error", id, error)              the error of a call
    ("step", outputs)                 everything that a step produced: a list of (id, method, *arguments), each a call
                                      of a method of the RequestRun with this id
    ("progress", share)               the loaded share of the model, 0 to 1
    ("log", name, level, text)        a record of the log
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..core.server_state import SequenceStats
from .run import RequestRun
from .stats import EngineStats
from .values import GenerationRequest, LoadOptions, ModelFacts


class AnyEngine(Protocol):
    """What the rest of the server uses of an engine: `Engine` in this process, or `Front` for one in a child process.

    Any thread may call these. The methods raise EngineError; see `Engine` for its kinds.
    """

    @property
    def facts(self) -> ModelFacts: ...

    @property
    def failure(self) -> BaseException | None:
        """Why the engine accepts no requests; None if it does."""

    @property
    def max_open(self) -> int:
        """The limit of sequences that run or wait."""

    def submit(self, requests: Sequence[GenerationRequest]) -> RequestRun: ...

    def tokenize(
        self, text: str, *, add_bos: bool = False, parse_special: bool = True, limit: int | None = None
    ) -> list[int]: ...

    def tokenize_prompt(self, parts: Iterable[tuple[str, bool]], *, add_bos: bool = False) -> list[int]: ...

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes of a token; those of a control token only with `special`."""

    def embed(
        self, inputs: Sequence[Sequence[int]], is_cancelled: Callable[[], bool] = lambda: False
    ) -> list[array[float]]: ...

    def pair_tokens(self, query: str, documents: Sequence[str]) -> list[list[int]]:
        """The tokens of a query with each document, for a model with `rank` pooling."""

    def stats(self) -> EngineStats: ...

    def running(self) -> list[SequenceStats]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class LoadRequest:
    """How an engine process loads its model: the arguments of `load`, and the levels of its log."""

    path: str
    options: LoadOptions
    draft_path: str | None = None
    max_queue: int = 256
    log_levels: tuple[tuple[str, int], ...] = ()
    """Names of loggers and their levels."""
