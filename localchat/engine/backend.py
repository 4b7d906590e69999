"""What the engine needs of a model in memory: the protocol that llama/backend.py implements, and that tests fake."""

from __future__ import annotations

from typing import Any, Protocol

from .batch import Batch, Room
from .embedding import EmbeddingBackend
from .state_files import Data
from .values import GenerationRequest, ModelFacts


class NoRoom(Exception):
    """The backend found no free cells for a batch; nothing has been changed."""


class DecodeFailed(Exception):
    """The backend could not compute a batch; its sequences have to be computed again from the start."""


class CacheBackend(Protocol):
    """The cells of a context, by slots. Runs on the engine thread."""

    room: Room

    def clear(self, slot: int) -> None:
        """Frees all cells of a slot."""

    def share(self, source: int, target: int, n_tokens: int) -> None:
        """Makes the first cells of one slot also those of another, empty one."""

    def cut(self, slot: int, n_tokens: int) -> None:
        """Frees all cells of a slot but the first ones. Only where the limits say that this can be done."""

    def read_state(self, slot: int) -> Data:
        """A copy of all that a slot holds."""

    def write_state(self, slot: int, data: Data, n_tokens: int) -> bool:
        """Fills an empty slot with a copy of so many tokens; False, and the slot is empty, if it does not fit."""


class Backend(CacheBackend, Protocol):
    """What the engine needs of a model in memory. Methods that touch the context run on the engine thread only."""

    facts: ModelFacts
    # Threads that compute the first step, and the most that a later one may have; 1 where the count does not matter.
    threads: tuple[int, int]

    def tokenize(self, text: str, *, add_bos: bool = False, parse_special: bool = True) -> list[int]:
        """Text to token ids; any thread."""

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes that a token stands for; those of a control token only if they are asked for; any thread."""

    def is_end(self, token: int) -> bool:
        """Whether the model ends its answer with this token; any thread."""

    def new_sampler(self, request: GenerationRequest) -> Any:
        """The state that draws one request's tokens; any thread.

        Raises:
            InvalidGrammar: the request's grammar cannot be read.
        """

    def forced_tokens(self, sampler: Any) -> list[int]:
        """Tokens that come next whatever the model says, since a constraint leaves no choice. Between two steps."""

    def allow_ends(self, sampler: Any) -> None:
        """The first `min_tokens` have been drawn: stop tokens may come, and ends that are not ignored. Called once."""

    def free_sampler(self, sampler: Any) -> None: ...

    def state_key(self) -> str:
        """What a saved state depends on: the model's file and how it is run. Others cannot use it."""

    def set_threads(self, n: int) -> None:
        """From the next batch on, so many threads compute."""

    def decode(self, batch: Batch) -> None:
        """Computes the parts of a batch. Raises NoRoom or DecodeFailed."""

    def look(self, draws: list[tuple[Any, int, int]]) -> bool:
        """Prepares draws from a large vocabulary: samplers with the rows of the last batch that each may draw from.

        The third number says how many tokens the sampler may have drawn from other rows of the batch by then.
        Whether all of them are so quick now that other threads would be of no help. Several threads may look at
        different rows at once.
        """

    def sample(self, sampler: Any, row: int) -> int:
        """Draws from the logits of an output row of the last batch. Several threads may draw for several samplers."""

    def logprobs(self, row: int, token: int, n_top: int) -> tuple[float, list[tuple[int, float]]]:
        """The log probability of `token` in a row with logits, and the `n_top` likeliest tokens with theirs."""

    def drawn_from(self, sampler: Any, token: int, n_top: int) -> tuple[float, list[tuple[int, float]]]:
        """The same by what the sampler drew `token` from last, which its request must have asked for."""

    def n_cells_used(self) -> int:
        """Cells that hold something, counted in the memory itself."""

    def open_embeddings(self) -> EmbeddingBackend:
        """A context of its own that makes vectors; any thread. Raises EngineError when there is no room for it."""

    def pair_tokens(self, query: str, document: str) -> list[int]:
        """The tokens of which a model with `rank` pooling makes a score; any thread."""

    def close(self) -> None: ...
