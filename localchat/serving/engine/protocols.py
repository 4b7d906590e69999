"""The interface of the engine to a model: llama/backend.py implements it with llama.cpp, and tests with a fake."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .batch import Batch, CacheLimits
from .values import ModelFacts, SequenceRequest, TokenTexts


class NoFreeCells(Exception):
    """The backend found no free cells for a batch, and changed nothing."""


class CopyFailed(Exception):
    """The cells of a slot cannot be copied, as memory is short. A slot that was to get them may have some of them."""


class DecodeFailed(Exception):
    """The backend could not compute a batch. It has freed the cells that a batch of text may have used.

    The rows of an image, and a recurrent state, may be damaged: their sequences cannot go on.
    """


class CacheBackend(Protocol):
    """The KV cache of a context, by slots. Runs on the engine thread."""

    limits: CacheLimits

    def clear(self, slot: int) -> None: ...

    def share(self, source: int, target: int, position: int) -> None:
        """Give an empty slot the cells of another slot that are before a position. Both slots have them afterwards.

        These are all of its cells unless `limits.can_truncate`. Without media, the position of a token is its index.
        Called only if all slots share the cells.
        """

    def state(self, slot: int) -> Any:
        """A copy of the cells of a slot. Called only if slots have their own cells. Raises CopyFailed."""

    def set_state(self, slot: int, state: Any) -> None:
        """Give an empty slot the cells of a copy. Called only if slots have their own cells. Raises CopyFailed."""

    def truncate(self, slot: int, position: int) -> bool:
        """Free the cells of a slot from a position on. False: it cannot. Called only if `limits.can_truncate`."""

    def decode(self, batch: Batch) -> None:
        """Compute a batch, and return when it is computed. Raises NoFreeCells or DecodeFailed."""


class Backend(CacheBackend, Protocol):
    """A loaded model with its context. Methods that use the context run on the engine thread only."""

    facts: ModelFacts
    texts: TokenTexts

    def tokenize(
        self, text: str, *, add_bos: bool = False, parse_special: bool = True, limit: int | None = None
    ) -> list[int]:
        """Text to token ids; any thread. Raises ContextLengthExceeded for more than `limit` tokens."""

    def prepare_constraints(self) -> None:
        """Read the vocabulary for constraints before the first request needs it; any thread."""

    def new_sampler(self, request: SequenceRequest) -> Any:
        """The sampler of one sequence; any thread. Raises BadRequest if the grammar of the request cannot be parsed.

        It has the methods `sample_forced` and `sampled_logprobs` of llama/sampler.py.
        """

    def sample(self, sampler: Any, row: int) -> int:
        """Sample from a row with logits of the last batch. Several threads may call it for different samplers."""

    def logprobs(self, row: int, token: int, n_top: int) -> tuple[float, list[tuple[int, float]]]:
        """The log probability of `token` in a row with logits, and the `n_top` likeliest tokens with theirs."""

    def embed(self, inputs: Sequence[Sequence[int]], check: Callable[[], None] = lambda: None) -> list[array[float]]:
        """The pooled vector of each input, not normalised; any thread. One call runs at a time.

        `check` is called before each step of the computation, and may raise an error to end the call. Raises
        ContextLengthExceeded for an input that does not fit into the context for embeddings; BadRequest for one that is
        empty, or has a token that the vocabulary does not have; EngineStopped after `close`.
        """

    def pair_tokenizer(self, query: str, limit: int) -> Callable[[str], list[int]]:
        """A function that makes the tokens of the query with a document, for a model with `rank` pooling; any thread.

        Raises ContextLengthExceeded for a query of more than `limit` tokens.
        """

    def close(self) -> None:
        """Free the context. Waits for a call of `embed`."""
