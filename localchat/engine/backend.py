"""The interface between the engine and llama.cpp: what llama/backend.py implements and tests fake."""

from __future__ import annotations

from typing import Any, Protocol

from .batch import Batch, CacheLimits
from .embedding import EmbeddingBackend
from .state_files import Data
from .values import GenerationRequest, ModelFacts


class NoFreeCells(Exception):
    """The backend found no free cells for a batch; nothing has been changed."""


class DecodeFailed(Exception):
    """The backend could not compute a batch; its sequences have to be computed again from the start."""


class CacheBackend(Protocol):
    """The cells of a context, by slots. Runs on the engine thread."""

    limits: CacheLimits

    def clear(self, slot: int) -> None:
        """Frees all cells of a slot."""

    def share(self, source: int, target: int, n_tokens: int) -> None:
        """Makes the first cells of one slot also those of another, empty one."""

    def cut(self, slot: int, n_tokens: int) -> None:
        """Frees all cells of a slot but the first ones. Only where the limits have `can_cut`."""

    def read_state(self, slot: int) -> Data:
        """A copy of all that a slot holds."""

    def write_state(self, slot: int, data: Data, n_tokens: int) -> bool:
        """Fills an empty slot with a copy of so many tokens; False, and the slot is empty, if it does not fit."""


class Backend(CacheBackend, Protocol):
    """A loaded model with its context. Methods that touch the context run on the engine thread only."""

    facts: ModelFacts
    # Threads that compute the first step, and the most that a later one may have; 1 where the count does not matter.
    threads: tuple[int, int]

    def tokenize(
        self, text: str, *, add_bos: bool = False, parse_special: bool = True, limit: int | None = None
    ) -> list[int]:
        """Text to token ids; any thread.

        Raises:
            TextTooLong: There are more than `limit` tokens, or more than any context holds.
        """

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes that a token stands for; those of a control token only if they are asked for; any thread."""

    def is_end(self, token: int) -> bool:
        """Whether the model ends its answer with this token; any thread."""

    def new_sampler(self, request: GenerationRequest) -> Any:
        """The sampler of one sequence; any thread.

        Raises:
            InvalidGrammar: the request's grammar cannot be read.
        """

    def sample_forced(self, sampler: Any) -> int | None:
        """The next token where a constraint allows no other, as `sample` would return it; None otherwise."""

    def allow_ends(self, sampler: Any) -> None:
        """Allows stop tokens, and end tokens that are not ignored. Called once, after `min_tokens` tokens."""

    def free_sampler(self, sampler: Any) -> None: ...

    def state_key(self) -> str:
        """What a saved state depends on: the model's file and how it is run. Others cannot use it."""

    def set_threads(self, n: int) -> None:
        """From the next batch on, so many threads compute."""

    def decode(self, batch: Batch) -> None:
        """Computes the parts of a batch. Raises NoFreeCells or DecodeFailed."""

    def select_candidates(self, samples: list[tuple[Any, int, int]]) -> bool:
        """Selects the likeliest tokens of rows of the last batch, for large vocabularies.

        Each of `samples` is a sampler, the row that it may sample from, and how many tokens it may have sampled from
        other rows of the batch before. Returns whether all samplers then need so little time that further threads are
        of no use. Several threads may call it for different rows.
        """

    def sample(self, sampler: Any, row: int) -> int:
        """Samples from a row with logits of the last batch. Several threads may call it for different samplers."""

    def logprobs(self, row: int, token: int, n_top: int) -> tuple[float, list[tuple[int, float]]]:
        """The log probability of `token` in a row with logits, and the `n_top` likeliest tokens with theirs."""

    def sampled_logprobs(self, sampler: Any, token: int, n_top: int) -> tuple[float, list[tuple[int, float]]]:
        """The same by what the sampler drew `token` from last, which its request must have asked for."""

    def n_cells_used(self) -> int:
        """Cells in use, counted by the context itself."""

    def open_embeddings(self) -> EmbeddingBackend:
        """A second context, for embeddings; any thread. Raises EngineError if there is not enough memory for it."""

    def pair_tokens(self, query: str, document: str) -> list[int]:
        """The tokens of which a model with `rank` pooling makes a score; any thread."""

    def close(self) -> None: ...
