"""Embeddings: computes a vector for each input of token ids, on a llama.cpp context of its own.

The context is created at the first request, since most servers never need one. Several short inputs are computed in
one step. Uses the `EmbeddingBackend` protocol, not llama.cpp.
"""

from __future__ import annotations

import logging
import threading
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..core.errors import ContextLengthExceeded
from .values import EngineStopped, check_tokens

log = logging.getLogger("localchat.engine")

# The numbers of `pooling_type` in a model's metadata. Without pooling (0) the mean is used.
_POOLINGS = {"1": "mean", "2": "cls", "3": "last", "4": "rank"}
# Names of architectures without causal attention. Their metadata may lack `attention.causal`.
_NON_CAUSAL = ("bert", "embedding", "t5encoder")


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
    """Computes embeddings of token ids. Any thread may call `embed`; one call runs at a time."""

    def __init__(self, open_backend: Callable[[], EmbeddingBackend]):
        self._open_backend = open_backend
        # Held during a call, and while the context is created or closed.
        self._lock = threading.Lock()
        self._backend: EmbeddingBackend | None = None
        self._is_closed = False

    def embed(self, inputs: Sequence[Sequence[int]]) -> list[array[float]]:
        """The pooled vector of each input, not normalised.

        Raises:
            ContextLengthExceeded: An input does not fit into the context.
            BadRequest: An input is empty, or has a token that the vocabulary does not have.
            EngineStopped: The embedder was closed.
            EngineError: There is no memory for a context, or the model failed.
        """
        with self._lock:
            backend = self._opened()
            _check(inputs, backend.limits)
            vectors: dict[int, array[float]] = {}
            try:
                for step in steps([len(tokens) for tokens in inputs], backend.limits):
                    vectors.update(backend.compute(inputs, step))
            except BaseException:
                backend.forget()
                raise
        return [vectors[index] for index in range(len(inputs))]

    def close(self) -> None:
        """Frees the context. Waits for the call in progress."""
        with self._lock:
            self._is_closed = True
            backend, self._backend = self._backend, None
        if backend is not None:
            backend.close()

    def _opened(self) -> EmbeddingBackend:
        if self._is_closed:
            raise EngineStopped
        if self._backend is None:
            self._backend = self._open_backend()
            log.info("created a context for embeddings: at most %d tokens per input", self._backend.limits.n_ctx)
        return self._backend


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
    for tokens in inputs:
        check_tokens(tokens, limits.n_vocab)
        if len(tokens) > limits.n_ctx:
            message = f"an input has {len(tokens)} tokens and the embedding context holds {limits.n_ctx}: shorten it"
            raise ContextLengthExceeded(message, n_tokens=len(tokens), n_ctx=limits.n_ctx)
