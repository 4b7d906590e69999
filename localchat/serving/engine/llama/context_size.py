"""How many tokens a context holds: as many as the options say, or a default for likely requests in the free memory.

All running requests share the KV cache of the context. This module does not know llama.cpp.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import NamedTuple

from ...models.memory import NotEnoughMemory, OtherModels, gigabytes
from ..values import LIKELY_TOKENS, LoadOptions

log = logging.getLogger("localchat.engine")

# On the machine, the default KV cache takes at most as much memory as the weights, or this if they take less.
SMALL_CACHE_BYTES = 1 << 30
# The share of the free memory that the KV cache takes at most by default on the machine, which other programs use too.
DEFAULT_SHARE = 0.5
# The same on a GPU, of which at least the reserve is left for its kernels.
GPU_SHARE = 0.9
GPU_RESERVE_BYTES = 1 << 30
# The same if the user sets the size.
LARGEST_SHARE = 0.95
MIN_TOKENS = 512  # The smallest default size.
_UNLIMITED = 1 << 30  # The number of tokens that fit if the free memory is not known.
# The most streams for idle prefixes.
IDLE_STREAMS = 8
# llama.cpp rounds the size of a KV cache up to a multiple of this.
STEP = 256


class MemoryPool(NamedTuple):
    """The memory of the machine, or that of the GPUs: what is free there, and what a context takes of it."""

    n_free: int | None  # Bytes that are free beside the weights; None if not known.
    per_token: float  # Bytes for each token of the KV cache.
    fixed: float = 0  # Bytes that do not depend on the number of tokens.
    gpus: str = ""  # The names of the GPUs whose memory it is; "" for the memory of the machine.

    def n_default_tokens(self) -> int:
        """How many tokens the KV cache has by default, as far as this pool allows."""
        if not self.gpus or not self.n_free:
            return self.n_tokens(DEFAULT_SHARE)
        return self.n_tokens(max(min(GPU_SHARE, 1 - GPU_RESERVE_BYTES / self.n_free), DEFAULT_SHARE))

    def n_tokens(self, share: float = LARGEST_SHARE) -> int:
        """How many tokens fit into a share of the free memory."""
        if self.n_free is None or not self.per_token:
            return _UNLIMITED
        n = int(max(self.n_free * share - self.fixed, 0) / self.per_token)
        return min(n // STEP * STEP, _UNLIMITED)

    def without_idle(self, others: OtherModels) -> MemoryPool:
        """This pool, once the idle ones of the other models have been ended."""
        n_freed = others.n_idle_on_gpus if self.gpus else others.n_idle
        return self if self.n_free is None else self._replace(n_free=self.n_free + n_freed)

    def n_bytes(self, n_tokens: int) -> int:
        """The bytes of a context with a KV cache of this many tokens."""
        return int(self.per_token * n_tokens + self.fixed)


class ContextSize(NamedTuple):
    """Sizes of a context, in tokens."""

    n_ctx: int  # The limit of one request.
    n_cells: int  # The capacity of the KV cache, for all running requests together.
    n_streams: int = 0  # Sequences that have their own cells, at least `n_ctx` each; 0 if all share the cells.


def context_size(
    options: LoadOptions,
    pools: Sequence[MemoryPool],
    n_ctx_train: int,
    n_weight_bytes: int,
    may_have_streams: bool = False,
) -> ContextSize:
    """The size of the context for a model that was trained on texts of `n_ctx_train` tokens.

    With `may_have_streams`, the sequences have their own cells if the default size holds a whole context for each
    running one and at least one for idle prefixes; up to IDLE_STREAMS are for these.

    Raises NotEnoughMemory if the size in the options does not fit, or if the default limit of a request would be larger
    without the idle models.
    """
    tightest = min(pools, key=MemoryPool.n_tokens)
    if options.n_ctx > (n_largest := tightest.n_tokens()):
        n_bytes, n_free = tightest.n_bytes(options.n_ctx), tightest.n_free or 0
        least = f"the largest that fits is --ctx {n_largest}" if n_largest >= STEP else "not even the smallest one fits"
        free = f"{gigabytes(n_free)} are free {f'on {tightest.gpus} ' if tightest.gpus else ''}beside the weights"
        text = f"a context of {options.n_ctx} tokens takes {gigabytes(n_bytes)}, and {free}: {least}"
        raise NotEnoughMemory(text, max(n_bytes - n_free * LARGEST_SHARE, 1))
    size = _size_within(options, pools, n_ctx_train, n_weight_bytes, may_have_streams)
    pools_without_idle = [pool.without_idle(options.others) for pool in pools]
    # Streams do not change the size of one request.
    n_alone = _size_within(options, pools_without_idle, n_ctx_train, n_weight_bytes).n_ctx
    if size.n_ctx < n_alone:
        raise NotEnoughMemory(f"the context has {size.n_ctx} tokens, and {n_alone} without the idle models")
    return size


def _size_within(
    options: LoadOptions,
    pools: Sequence[MemoryPool],
    n_ctx_train: int,
    n_weight_bytes: int,
    may_have_streams: bool = False,
) -> ContextSize:
    """The size of the context by default, or that of the options, as far as there is memory for more."""
    n_default = min(pool.n_default_tokens() for pool in pools)
    per_token = sum(pool.per_token for pool in pools)
    is_on_gpus = all(pool.gpus for pool in pools)
    if per_token and not is_on_gpus:
        n_default = min(n_default, int(max(n_weight_bytes, SMALL_CACHE_BYTES) / per_token))
    n_ctx = options.limit_of_request(n_ctx_train)
    cells_per_stream = math.ceil(n_ctx / STEP) * STEP
    n_streams = min(options.n_parallel + IDLE_STREAMS, n_default // cells_per_stream)
    if may_have_streams and n_streams > options.n_parallel:
        return ContextSize(n_ctx, n_streams * cells_per_stream, n_streams)
    # Nothing else uses the memory of a GPU, so it may hold a whole context for each running sequence.
    n_each = n_ctx if is_on_gpus else min(n_ctx, LIKELY_TOKENS)
    n_likely = min(max(n_ctx, options.n_parallel * n_each), n_default // STEP * STEP)
    n_cells = max(n_likely, options.n_ctx, MIN_TOKENS)
    return ContextSize(min(n_ctx, n_cells), n_cells)


def warn_of_context(n_ctx: int, options: LoadOptions, n_ctx_train: int, pools: Sequence[MemoryPool]) -> None:
    """Log a warning if the context is larger than that of the training, or smaller without an option."""
    if options.n_ctx > n_ctx_train > 0:  # It is 0 in a damaged header.
        text = "--ctx %d is more than the %d tokens that the model was trained for: expect worse output beyond these"
        log.warning(text, options.n_ctx, n_ctx_train)
    elif not options.n_ctx and n_ctx < n_ctx_train:
        text = "the context has %d tokens, to save memory; the model can use %d: --ctx %d takes %s"
        n_bytes = sum(pool.n_bytes(n_ctx_train) for pool in pools)
        log.warning(text, n_ctx, n_ctx_train, n_ctx_train, gigabytes(n_bytes))
