"""The context of a model: the bytes of its KV cache, by the header of the file or as measured, and how many tokens fit.

All running requests share the KV cache. Its size is that of the options, or a default for likely requests within the
free memory.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...models.memory import NotEnoughMemory, gigabytes
from ..batch import CacheLimits
from ..tuning import CPU, GPU
from ..values import LIKELY_TOKENS, EngineError, LoadOptions
from .devices import Device, free_memory, mapped_memory, used_gpus
from .library import L, last_errors
from .threads import default_threads

log = logging.getLogger("localchat.engine")

# On the machine, the default KV cache takes at most as much memory as the weights, or this if they take less.
SMALL_CACHE_BYTES = 1 << 30
# The share of the free memory that the KV cache may take: by default on the machine, which other programs use too; by
# default on a GPU, whose kernels need at least the reserve; and if the user sets the size.
DEFAULT_SHARE, GPU_SHARE, LARGEST_SHARE = 0.5, 0.9, 0.95
GPU_RESERVE_BYTES = 1 << 30
# The smallest default size, and the number of tokens if the free memory is not known.
MIN_TOKENS, _UNLIMITED = 512, 1 << 30
# The streams of idle prefixes, if memory allows.
IDLE_STREAMS = 8
# llama.cpp rounds the size of a KV cache up to a multiple of this.
STEP = 256
# The least number of slots for idle prefixes; if more sequences can run, there are as many slots as these. Each costs
# the memory of one row of logits.
_IDLE_SLOTS = 24
# The limit of tokens of a step (n_batch), and by default of one pass through the layers (n_ubatch).
_BATCH, _PASS = 2048, 512
# The buffers of one pass through the layers have about this many vectors of 32-bit numbers for each row.
_WIDTHS_PER_ROW = 8
# How many times as many bytes an f16 KV cache takes as one of these types, whose blocks of 32 values have a scale.
_F16_RATIO: Mapping[str, float] = {"f16": 1, "q8_0": 64 / 34, "q4_0": 64 / 18}
KV_TYPES: Mapping[str, int] = {"f16": L.GGML_TYPE_F16, "q8_0": L.GGML_TYPE_Q8_0, "q4_0": L.GGML_TYPE_Q4_0}


class CacheMemory(NamedTuple):
    """A memory in which layers of the KV cache are allocated, and the bytes that they take."""

    n_free: int | None  # Bytes that are free beside the weights; None if not known.
    per_token: float  # Bytes for each token of the KV cache.
    fixed: float = 0  # Bytes that do not depend on the number of tokens.
    gpus: str = ""  # The names of the GPUs whose memory it is; "" for the memory of the machine.

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

    def with_freed(self, n_bytes: int) -> CacheMemory:
        """This memory, once so many bytes of it have been freed."""
        return self if self.n_free is None else self._replace(n_free=self.n_free + n_bytes)

    def n_bytes(self, n_tokens: int) -> int:
        """The bytes of a context with a KV cache of this many tokens."""
        return int(self.per_token * n_tokens + self.fixed)


def layer_memory(header: Mapping[str, Any], n_weight_bytes: int) -> tuple[int, CacheMemory]:
    """By the header of a file: the number of layers with the output layer, and what one takes with its weights."""
    architecture = header.get("general.architecture", "")

    def number(name: str, otherwise: int) -> int:
        value = header.get(f"{architecture}.{name}")  # None for an array, whose values are not read.
        return value if isinstance(value, int) else otherwise

    n_heads = max(number("attention.head_count", 1), 1)
    width = number("attention.key_length", number("embedding_length", 0) // n_heads)
    n_layers = max(number("block_count", 1), 1) + 1
    n_kv_bytes = 4.0 * number("attention.head_count_kv", n_heads) * width
    return n_layers, CacheMemory(None, n_kv_bytes, n_weight_bytes / n_layers)


class ContextSize(NamedTuple):
    """Sizes of a context, in tokens."""

    n_ctx: int  # The limit of one request.
    n_cells: int  # The capacity of the KV cache, for all running requests together.
    n_streams: int = 0  # Sequences that have their own cells, at least `n_ctx` each; 0 if all share the cells.


def context_size(
    options: LoadOptions,
    memories: Sequence[CacheMemory],
    n_ctx_train: int,
    n_weight_bytes: int,
    has_streams: bool = False,
) -> ContextSize:
    """The size of the context for a model that was trained on texts of `n_ctx_train` tokens.

    With `has_streams` the sequences have their own cells if the default size holds a whole context for each running
    one and one for an idle prefix. Raises NotEnoughMemory if the size in the options does not fit, or if the default
    limit of a request would be larger without the idle models.
    """
    tightest = min(memories, key=CacheMemory.n_tokens)
    if options.n_ctx > (n_largest := tightest.n_tokens()):
        n_bytes, n_free = tightest.n_bytes(options.n_ctx), tightest.n_free or 0
        least = f"the largest that fits is --ctx {n_largest}" if n_largest >= STEP else "not even the smallest one fits"
        free = f"{gigabytes(n_free)} are free {f'on {tightest.gpus} ' if tightest.gpus else ''}beside the weights"
        text = f"a context of {options.n_ctx} tokens takes {gigabytes(n_bytes)}, and {free}: {least}"
        raise NotEnoughMemory(text, max(n_bytes - n_free * LARGEST_SHARE, 1))
    size = _size_within(options, memories, n_ctx_train, n_weight_bytes, has_streams)
    if options.others.n_idle:
        n_alone = _size_within(
            options, [memory.with_freed(options.others.n_idle) for memory in memories], n_ctx_train, n_weight_bytes
        ).n_ctx
        if size.n_ctx < n_alone:
            raise NotEnoughMemory(f"the context has {size.n_ctx} tokens, and {n_alone} without the idle models")
    return size


def _size_within(
    options: LoadOptions,
    memories: Sequence[CacheMemory],
    n_ctx_train: int,
    n_weight_bytes: int,
    has_streams: bool = False,
) -> ContextSize:
    """The size of the context by default, or that of the options, as far as there is memory for more."""
    n_default = min(memory.n_default_tokens() for memory in memories)
    per_token = sum(memory.per_token for memory in memories)
    is_on_gpus = all(memory.gpus for memory in memories)
    if per_token and not is_on_gpus:
        n_default = min(n_default, int(max(n_weight_bytes, SMALL_CACHE_BYTES) / per_token))
    n_ctx = options.limit_of_request(n_ctx_train)
    n_stream = math.ceil(n_ctx / STEP) * STEP
    n_streams = min(options.n_parallel + IDLE_STREAMS, n_default // n_stream)
    if has_streams and n_streams > options.n_parallel:
        return ContextSize(n_ctx, n_streams * n_stream, n_streams)
    # Nothing else uses the memory of a GPU, so it may hold a whole context for each running sequence.
    n_each = n_ctx if is_on_gpus else min(n_ctx, LIKELY_TOKENS)
    n_likely = min(max(n_ctx, options.n_parallel * n_each), n_default // STEP * STEP)
    n_cells = max(n_likely, options.n_ctx, MIN_TOKENS)
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


class LoadedModel:
    """The sizes and devices of a loaded model. Measures how much memory a context takes, and creates one."""

    def __init__(self, pointer: Any, options: LoadOptions, gpus: Sequence[Device]):
        self.pointer = pointer
        self.options = options
        self.gpus = gpus
        self.n_bytes: int = L.llama_model_size(pointer)
        self.n_ctx_train: int = L.llama_model_n_ctx_train(pointer)
        self.can_truncate = not (L.llama_model_is_recurrent(pointer) or L.llama_model_is_hybrid(pointer))
        self.has_window = bool(L.llama_model_n_swa(pointer))
        # The number of llama.cpp's sequences for each slot. With a sliding window llama.cpp frees a cell when its only
        # sequence no longer attends to it, although another request with the same prefix still would. A second
        # sequence with the same cells prevents that.
        self.n_ids = 2 if self.has_window and self.can_truncate else 1
        # The limit of rows with logits in a batch; in the unified layout also the number of llama.cpp's sequences.
        n_slots = options.n_parallel + max(_IDLE_SLOTS, options.n_parallel)
        self.n_outputs = min(n_slots * self.n_ids, int(L.llama_max_parallel_sequences()))
        # The layers in all, and those on the GPUs.
        self.n_layers = max(L.llama_model_n_layer(pointer), 1)
        n_wanted = -1 if options.n_gpu_layers is None else options.n_gpu_layers
        n_on_gpus = self.n_layers if n_wanted < 0 else min(n_wanted, self.n_layers)
        self.n_on_gpus = n_on_gpus if self.gpus else 0
        self.is_on_gpus = self.n_on_gpus == self.n_layers
        # The limit of rows of one pass through the layers (n_ubatch).
        self.n_pass = _PASS
        # Bytes of the KV cache for each token, and of the recurrent state of a sequence.
        self._kv_bytes, self._state_bytes = 0, 0

    def cache_memories(self, free: int | None) -> list[CacheMemory]:
        """The memory in which the KV cache is allocated: that of the machine, which had `free` bytes before the model
        was loaded, of the GPUs, or both."""
        kv_bytes, state_bytes = self._kv_bytes, self._state_bytes = self._measured_cache()
        # The attention mask has 16 bits for each row and token, in each memory.
        mask_bytes = 2 * self.n_pass if kv_bytes else 0
        pass_bytes = self.n_pass * L.llama_model_n_embd(self.pointer) * _WIDTHS_PER_ROW * 4
        logits_bytes = self.n_outputs * L.llama_vocab_n_tokens(L.llama_model_get_vocab(self.pointer)) * 4
        memories, share = [], self.n_on_gpus / self.n_layers
        if share < 1:
            n_free = None if free is None else max(free - int(self.n_bytes * (1 - share)), 0)
            fixed = pass_bytes + 2 * logits_bytes + self.n_outputs * state_bytes * (1 - share)
            memories.append(CacheMemory(n_free, kv_bytes * (1 - share) + mask_bytes, fixed))
        if share:
            # Measured now: the weights and the kernels are loaded. Some drivers report 0, which means unknown.
            n_free = sum(gpu.n_free for gpu in used_gpus(self.options)) or None
            fixed = pass_bytes + logits_bytes + self.n_outputs * state_bytes * share
            names = ", ".join(gpu.name for gpu in self.gpus)
            memories.append(CacheMemory(n_free, kv_bytes * share + mask_bytes, fixed, names))
        return memories

    def vector_memories(self, params: Any) -> list[CacheMemory]:
        """The memory of a second context, for vectors, with these parameters of llama.cpp.

        It is created while the model is in use, so the free memory is that of this moment. Call `cache_memories`
        before.
        """
        n_rows = params.n_ubatch
        kv_bytes = self._kv_bytes * _F16_RATIO[self.options.kv_type]
        # For each row and token, the mask has a number, and without flash attention each head a score.
        n_heads = L.llama_model_n_head(self.pointer)
        has_scores = params.flash_attn_type == L.LLAMA_FLASH_ATTN_TYPE_DISABLED
        scores_bytes = 4 * n_rows * (1 + (n_heads if has_scores else 0))
        if L.llama_model_is_recurrent(self.pointer):
            scores_bytes = 0
        n_vocab = L.llama_vocab_n_tokens(L.llama_model_get_vocab(self.pointer))
        pass_bytes = n_rows * (L.llama_model_n_embd(self.pointer) * _WIDTHS_PER_ROW + n_vocab) * 4
        state_bytes = params.n_seq_max * self._state_bytes
        output_bytes = n_rows * n_vocab * 4  # In the memory of the machine, wherever the layers are.
        free, share = free_memory(), self.n_on_gpus / self.n_layers
        if free is not None:  # The system counts the weights that are mapped from files as free.
            free = max(free - self.options.others.n_mapped - mapped_memory(), 0)
        memories = [CacheMemory(free, 0, output_bytes)]
        if share < 1:
            fixed = output_bytes + pass_bytes + state_bytes * (1 - share)
            memories = [CacheMemory(free, kv_bytes * (1 - share) + scores_bytes, fixed)]
        if share:
            n_free = sum(gpu.n_free for gpu in used_gpus(self.options)) or None
            names = ", ".join(gpu.name for gpu in self.gpus)
            memories.append(
                CacheMemory(n_free, kv_bytes * share + scores_bytes, pass_bytes + state_bytes * share, names)
            )
        return memories

    def _measured_cache(self) -> tuple[int, int]:
        """Bytes of the KV cache for each token, and of the recurrent state of a sequence, which does not grow.

        llama.cpp does not report them, so two tokens are computed in a small context. This also reads the weights into
        memory and starts the threads.
        """
        params = self._context_params(MIN_TOKENS, 1)
        params.n_outputs_max = params.n_batch = params.n_ubatch = 1
        context = L.llama_init_from_model(self.pointer, params)
        if context is None:
            raise EngineError(f"llama.cpp could not create a context: {last_errors()}")
        sizes = [0, 0]
        if L.llama_get_memory(context) is not None:  # An encoder has no KV cache.
            L.llama_set_warmup(context, True)
            for i in range(2):
                L.llama_decode(context, L.llama_batch_get_one((L.llama_token * 1)(0), 1))
                sizes[i] = L.llama_state_seq_get_size(context, 0)
        L.llama_free(context)
        return sizes[1] - sizes[0], 2 * sizes[0] - sizes[1]

    def new_context(self, memories: list[CacheMemory]) -> tuple[Any, int, CacheLimits]:
        """A context of the user's size or of a size that memory allows, its limit of one request, and its limits."""
        options = self.options
        # On a GPU memory is scarce, and a copied prefix would cross the bus.
        is_unified = bool(self.gpus) or not self.can_truncate or self.has_window
        n_ctx, n_cells, n_streams = context_size(options, memories, self.n_ctx_train, self.n_bytes, not is_unified)
        n_least = options.n_ctx or MIN_TOKENS
        while not (context := L.llama_init_from_model(self.pointer, self._context_params(n_cells, n_streams))):
            n_streams = 0
            if n_cells <= n_least:
                raise EngineError(
                    f"llama.cpp could not create a context of {n_least} tokens ({last_errors()}): use a smaller --ctx"
                )
            n_cells = max(n_cells // 2, n_least)
        n_ctx = min(n_ctx, L.llama_n_ctx_seq(context))
        warn_of_context(n_ctx, options, self.n_ctx_train, memories)
        return context, n_ctx, self._cache_limits(context, not n_streams)

    def _context_params(self, n_cells: int, n_streams: int) -> Any:
        params = L.llama_context_default_params()
        params.n_ctx = n_cells
        params.n_seq_max = n_streams or self.n_outputs
        params.n_batch = min(_BATCH, n_cells)
        params.n_ubatch = min(self.n_pass, params.n_batch)
        # A number below n_seq_max aborts the process; the default reserves logits for a whole batch.
        params.n_outputs_max = self.n_outputs
        params.n_threads = params.n_threads_batch = self.options.n_threads or default_threads()
        params.kv_unified = not n_streams
        params.type_k = params.type_v = KV_TYPES[self.options.kv_type]
        if self.options.kv_type != "f16":
            params.flash_attn_type = L.LLAMA_FLASH_ATTN_TYPE_ENABLED  # which quantised values need
        assert not vars(params), "a field that this release does not have"
        return params

    def _cache_limits(self, context: Any, is_unified: bool) -> CacheLimits:
        n_parallel, n_batch = self.options.n_parallel, L.llama_n_batch(context)
        # The devices of workers may be CPUs, and a step waits for the network.
        tuning = GPU if self.is_on_gpus and not self.options.workers else CPU
        n_drafted = min(tuning.max_drafted, min(self.n_outputs // self.n_ids, n_batch) - n_parallel)
        return CacheLimits(
            n_cells=L.llama_n_ctx(context),
            n_parallel=n_parallel,
            n_slots=L.llama_n_seq_max(context) // self.n_ids,
            n_batch=n_batch,
            can_truncate=self.can_truncate,
            max_drafted=n_drafted if self.can_truncate and self.options.speculates else 0,
            is_unified=is_unified,
            tuning=tuning,
        )
