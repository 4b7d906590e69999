"""Embeddings: computes a vector for each input of token ids, on a llama.cpp context of its own.

The context is created at the first request, since most servers never need one. Several short inputs are computed in
one step, and the steps of concurrent requests alternate. Uses the `EmbeddingBackend` protocol, not llama.cpp.
"""

from __future__ import annotations

import logging
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from .values import Cancelled, EngineError, EngineStopped, InvalidToken

log = logging.getLogger("localchat.engine")

# The numbers of `pooling_type` in a model's metadata. Without pooling (0) the mean is used.
_POOLINGS = {"1": "mean", "2": "cls", "3": "last", "4": "rank"}
# Names of architectures without causal attention. Their metadata may lack `attention.causal`.
_NON_CAUSAL = ("bert", "embedding", "t5encoder")


class InputTooLong(EngineError):
    """An input has more tokens than the embedding context holds; `index` is its position in the list of inputs."""

    def __init__(self, index: int, n_tokens: int, n_ctx: int):
        super().__init__(f"input {index} has {n_tokens} tokens and the embedding context holds {n_ctx}: shorten it")
        self.index = index
        self.n_ctx = n_ctx


@dataclass(frozen=True)
class EmbeddingLimits:
    """The limits of an embedding context."""

    n_ctx: int
    """Tokens of an input. An input that is longer than a step is computed in several steps."""
    n_step: int
    """Tokens of a step."""
    n_inputs: int
    """Inputs of a step."""
    n_vocab: int
    """The size of the vocabulary."""


@dataclass(frozen=True)
class Piece:
    """A part of one input: its tokens `start` to `stop`."""

    index: int
    """The index of the input in the request."""
    start: int
    stop: int


class EmbeddingBackend(Protocol):
    """A context that computes vectors of tokens; one thread at a time."""

    limits: EmbeddingLimits

    def compute(self, inputs: Sequence[Sequence[int]], step: Sequence[Piece]) -> dict[int, array[float]]:
        """Computes a step. Returns the pooled vectors of the inputs that it completes, by their indexes."""

    def forget(self) -> None:
        """Drops the state of inputs that will not be completed."""

    def close(self) -> None: ...


class Embedder:
    """Computes embeddings of token ids. Any thread may call `embed`; the steps of concurrent calls alternate."""

    def __init__(self, open_backend: Callable[[], EmbeddingBackend]):
        self._open_backend = open_backend
        # Held from the first to the last step of an input, and while the context is created or closed.
        self._lock = threading.Lock()
        self._backend: EmbeddingBackend | None = None
        self._is_closed = False

    def embed(
        self, inputs: Sequence[Sequence[int]], is_cancelled: Callable[[], bool] = lambda: False
    ) -> list[array[float]]:
        """The pooled vector of each input, not normalised.

        Raises:
            InputTooLong: An input does not fit into the context.
            InvalidToken: An input is empty, or has a token that the vocabulary does not have.
            Cancelled: `is_cancelled` returned True between two steps.
            EngineStopped: The embedder was closed.
            EngineError: There is no memory for a context, or the model failed.
        """
        with self._lock:
            limits = self._opened().limits
        _check(inputs, limits)
        vectors: dict[int, array[float]] = {}
        remaining = steps([len(tokens) for tokens in inputs], limits)
        while len(vectors) < len(inputs):
            if is_cancelled():
                raise Cancelled("the embedding was cancelled")
            with self._lock:
                vectors.update(self._compute(inputs, remaining))
        return [vectors[index] for index in range(len(inputs))]

    def close(self) -> None:
        """Frees the context. Waits for the step in progress."""
        with self._lock:
            self._is_closed = True
            backend, self._backend = self._backend, None
        if backend is not None:
            backend.close()

    def _opened(self) -> EmbeddingBackend:
        if self._is_closed:
            raise EngineStopped("the engine has been closed")
        if self._backend is None:
            self._backend = self._open_backend()
            log.info("created a context for embeddings: at most %d tokens per input", self._backend.limits.n_ctx)
        return self._backend

    def _compute(self, inputs: Sequence[Sequence[int]], remaining: Iterator[list[Piece]]) -> dict[int, array[float]]:
        """Computes the next steps, up to the first one that ends with the last token of an input."""
        backend = self._opened()
        vectors: dict[int, array[float]] = {}
        try:
            for step in remaining:
                vectors.update(backend.compute(inputs, step))
                if step[-1].stop == len(inputs[step[-1].index]):
                    break
        except BaseException:
            backend.forget()
            raise
        return vectors


def steps(lengths: Sequence[int], limits: EmbeddingLimits) -> Iterator[list[Piece]]:
    """Divides inputs of these lengths into steps, in order. Only an input that is longer than a step is split."""
    step: list[Piece] = []
    n_left = limits.n_step
    for index, length in enumerate(lengths):
        start = 0
        while start < length:
            if len(step) == limits.n_inputs or (step and length - start > n_left):
                yield step
                step, n_left = [], limits.n_step
            stop = min(length, start + n_left)
            step.append(Piece(index, start, stop))
            n_left -= stop - start
            start = stop
    if step:
        yield step


def pooling_of(metadata: Mapping[str, str]) -> str:
    """The pooling of the model; "mean" if the metadata does not have it."""
    architecture = metadata.get("general.architecture", "")
    return _POOLINGS.get(metadata.get(f"{architecture}.pooling_type", ""), "mean")


def is_non_causal(metadata: Mapping[str, str]) -> bool:
    """Whether each token attends to all others: the model cannot generate, and computes an input in one step."""
    architecture = metadata.get("general.architecture", "")
    if metadata.get(f"{architecture}.attention.causal") == "false":
        return True
    return any(name in architecture for name in _NON_CAUSAL)


def _check(inputs: Sequence[Sequence[int]], limits: EmbeddingLimits) -> None:
    for index, tokens in enumerate(inputs):
        if not tokens:
            raise InvalidToken(f"input {index} is empty: it needs one token at least")
        if len(tokens) > limits.n_ctx:
            raise InputTooLong(index, len(tokens), limits.n_ctx)
        if min(tokens) < 0 or max(tokens) >= limits.n_vocab:
            raise InvalidToken(
                f"token ids go from 0 to {limits.n_vocab - 1}; input {index} has {min(tokens)} to {max(tokens)}"
            )
