"""Chooses the size of the context and of the KV cache, which all running requests share.

The size is that of the options, or a default for likely requests within the free memory. Does not use llama.cpp.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from ..models.memory import NotEnoughMemory, gigabytes
from .values import LoadOptions

log = logging.getLogger("localchat.engine")

# The tokens of a likely request, prompt and output together.
LIKELY_TOKENS = 4096
# On the machine, the default KV cache takes at most as much memory as the weights, or this if they take less.
SMALL_CACHE_BYTES = 1 << 30
# The share of the free memory that the KV cache may take: by default on the machine, which other programs use too; by
# default on a GPU, whose kernels need at least the reserve; and if the user sets the size.
DEFAULT_SHARE, GPU_SHARE, LARGEST_SHARE = 0.5, 0.9, 0.95
GPU_RESERVE_BYTES = 1 << 30
# The smallest default size.
MIN_TOKENS = 512
# The streams of idle prefixes, if memory allows.
IDLE_STREAMS = 8
# llama.cpp rounds the size of a KV cache up to a multiple of this.
STEP = 256
# The number of tokens if the free memory is not known.
_UNLIMITED = 1 << 30


@dataclass(frozen=True)
class CacheMemory:
    """The memory of the machine or of a GPU, in which all or some layers of the KV cache are allocated."""

    n_free: int | None
    """Bytes that are free beside the weights; None if not known."""
    per_token: float
    """Bytes for each token of the KV cache."""
    fixed: int = 0
    """Bytes of the context that do not depend on its size."""
    gpus: str = ""
    """The names of the GPUs whose memory it is; "" for the memory of the machine."""

    def n_default_tokens(self) -> int:
        """How many tokens the KV cache has by default, as far as this memory allows."""
        if not self.gpus or not self.n_free:
            return self.n_tokens(DEFAULT_SHARE)
        return self.n_tokens(max(min(GPU_SHARE, 1 - GPU_RESERVE_BYTES / self.n_free), DEFAULT_SHARE))

    def n_tokens(self, share: float = LARGEST_SHARE) -> int:
        """How many tokens fit into a share of the free memory."""
        if self.n_free is None or not self.per_token:
            return _UNLIMITED
        n = int(max(self.n_free * share - self.fixed, 0) / self.per_token)
        return min(n // STEP * STEP, _UNLIMITED)

    def with_more(self, n_bytes: int) -> CacheMemory:
        """The same memory with more free bytes."""
        return self if self.n_free is None else replace(self, n_free=self.n_free + n_bytes)

    def n_bytes(self, n_tokens: int) -> int:
        """The bytes of a context with a KV cache of this many tokens."""
        return int(self.per_token * n_tokens) + self.fixed


@dataclass(frozen=True)
class ContextSize:
    """Sizes of a context, in tokens."""

    n_ctx: int
    """The limit of one request."""
    n_cells: int
    """The capacity of the KV cache, for all running requests together."""
    n_streams: int = 0
    """Sequences that have their own cells, at least `n_ctx` each; 0 if all share the cells."""


def context_size(
    options: LoadOptions,
    *,
    n_ctx_train: int,
    n_weight_bytes: int,
    memories: Sequence[CacheMemory],
    has_streams: bool = False,
) -> ContextSize:
    """The size of the context for a model that was trained on texts of `n_ctx_train` tokens.

    With `has_streams` the sequences have their own cells if the default size holds a whole context for each running
    sequence and one for an idle prefix.

    Raises:
        NotEnoughMemory: The size in the options does not fit into memory, or the default limit of a request would be
            larger without the idle models.
    """
    n_requested = options.n_cells or options.n_ctx
    if n_requested > min(memory.n_tokens() for memory in memories):
        raise _does_not_fit(n_requested, memories)
    sizes = partial(_size, options, n_ctx_train, n_weight_bytes, has_streams)
    size = sizes(memories)
    alone = sizes([memory.with_more(options.others.n_idle) for memory in memories])
    if size.n_ctx < alone.n_ctx:
        raise NotEnoughMemory(f"the context has {size.n_ctx} tokens, and {alone.n_ctx} without the idle models")
    return size


def limit_of_request(options: LoadOptions, n_ctx_train: int) -> int:
    """The limit of one request, if memory allows: that of the options or of the training."""
    n_ctx = options.n_ctx or n_ctx_train or LIKELY_TOKENS  # `n_ctx_train` is 0 in a damaged header.
    return min(n_ctx, options.n_cells) if options.n_cells else n_ctx


def _size(
    options: LoadOptions, n_ctx_train: int, n_weight_bytes: int, has_streams: bool, memories: Sequence[CacheMemory]
) -> ContextSize:
    n_default = min(memory.n_default_tokens() for memory in memories)
    per_token = sum(memory.per_token for memory in memories)
    is_on_gpus = all(memory.gpus for memory in memories)
    if per_token and not is_on_gpus:
        n_default = min(n_default, int(max(n_weight_bytes, SMALL_CACHE_BYTES) / per_token))
    n_ctx = limit_of_request(options, n_ctx_train)
    n_stream = math.ceil(n_ctx / STEP) * STEP
    n_streams = min(options.n_parallel + IDLE_STREAMS, n_default // n_stream)
    if has_streams and not options.n_cells and n_streams > options.n_parallel:
        return ContextSize(n_ctx, n_streams * n_stream, n_streams)
    # Nothing else uses the memory of a GPU, so it may hold a whole context for each running sequence.
    n_each = n_ctx if is_on_gpus else min(n_ctx, LIKELY_TOKENS)
    n_likely = min(max(n_ctx, options.n_parallel * n_each), n_default // STEP * STEP)
    n_cells = options.n_cells or max(n_likely, options.n_ctx, MIN_TOKENS)
    return ContextSize(min(n_ctx, n_cells), n_cells)


def warn_of_context(n_ctx: int, options: LoadOptions, n_ctx_train: int, memories: Sequence[CacheMemory]) -> None:
    """Log a warning if the context is larger than that of the training, or smaller without an option."""
    if options.n_ctx > n_ctx_train:
        text = "--ctx %d is more than the %d tokens that the model was trained for: expect worse output beyond these"
        log.warning(text, options.n_ctx, n_ctx_train)
    elif not options.n_ctx and n_ctx < n_ctx_train:
        text = "the context has %d tokens, to save memory; the model can use %d: --ctx %d takes %s"
        n_bytes = sum(memory.n_bytes(n_ctx_train) for memory in memories)
        log.warning(text, n_ctx, n_ctx_train, n_ctx_train, gigabytes(n_bytes))


def _does_not_fit(n_requested: int, memories: Sequence[CacheMemory]) -> NotEnoughMemory:
    memory = min(memories, key=CacheMemory.n_tokens)
    n_largest, n_bytes, n_free = memory.n_tokens(), memory.n_bytes(n_requested), memory.n_free or 0
    way_out = f"the largest that fits is --ctx {n_largest}" if n_largest >= STEP else "not even the smallest one fits"
    free = f"{gigabytes(n_free)} are free {f'on {memory.gpus} ' if memory.gpus else ''}beside the weights"
    text = f"a context of {n_requested} tokens takes {gigabytes(n_bytes)}, and {free}: {way_out}"
    return NotEnoughMemory(text, max(n_bytes - n_free * LARGEST_SHARE, 1))
