"""Makes contexts of a loaded model: measures what a context takes of each memory pool, and creates one.

`context_size.py` chooses the size.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ..batch import CacheLimits
from ..tuning import CPU, GPU
from ..values import EngineError, LoadOptions
from .context_size import MIN_TOKENS, MemoryPool, context_size, warn_of_context
from .devices import Device, free_memory, mapped_memory, projector_gpu, used_gpus
from .library import L, last_errors
from .threads import default_threads

log = logging.getLogger("localchat.engine")

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


class ContextFactory:
    """Makes contexts of a loaded model, by its sizes and its devices."""

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
        # The number of llama.cpp's sequences (n_seq_max) in a context in which all share the cells. In one with streams
        # it is the number of streams, which is smaller.
        n_wanted_slots = options.n_parallel + max(_IDLE_SLOTS, options.n_parallel)
        self.n_unified_sequences = min(n_wanted_slots * self.n_ids, int(L.llama_max_parallel_sequences()))
        self._n_unified_slots = self.n_unified_sequences // self.n_ids
        # The limit of rows with logits in a step (n_outputs_max). llama.cpp ends the process if it is below n_seq_max,
        # so both layouts have the larger number.
        self.max_outputs = self.n_unified_sequences
        self.n_vocab: int = L.llama_vocab_n_tokens(L.llama_model_get_vocab(pointer))
        n_wanted = -1 if options.n_gpu_layers is None else options.n_gpu_layers
        self.uses_gpus = bool(self.gpus) and n_wanted != 0
        self.n_layers = max(L.llama_model_n_layer(pointer), 1)  # Without the output layer.
        # How many of these layers are on the GPUs: one less than the options say, since the output layer is the first
        # that llama.cpp has on a GPU.
        n_on_gpus = self.n_layers if n_wanted < 0 else min(n_wanted - 1, self.n_layers)
        self.n_on_gpus = n_on_gpus if self.uses_gpus else 0
        self.is_on_gpus = self.n_on_gpus == self.n_layers  # Whether all of them are.
        self._gpu_share = self.n_on_gpus / self.n_layers
        self.n_weight_bytes_on_gpus = int(self.n_bytes * self._gpu_share)
        self.projector_is_on_gpu = self.uses_gpus and projector_gpu(gpus) is not None
        # The limit of rows of one pass through the layers (n_ubatch).
        self.n_pass = _PASS

    def widen_pass(self, n_rows: int) -> None:
        """Let one pass compute so many rows, if that is more than before. Later calls of other methods count them."""
        self.n_pass = max(self.n_pass, n_rows)

    def cache_pools(self, n_free_for_model: int | None) -> list[MemoryPool]:
        """The pools in which the KV cache is allocated: that of the machine, of the GPUs, or both.

        `n_free_for_model` are the free bytes of the machine for the model and its context; None: not known.
        """
        kv_bytes, state_bytes = self._cache_bytes
        # The attention mask has 16 bits for each row and token, in each pool.
        mask_bytes = 2 * self.n_pass if kv_bytes else 0
        pass_bytes = self.n_pass * L.llama_model_n_embd(self.pointer) * _WIDTHS_PER_ROW * 4
        logits_bytes = self.max_outputs * self.n_vocab * 4
        pools, share = [], self._gpu_share
        if share < 1:
            n_free = (
                None
                if n_free_for_model is None
                else max(n_free_for_model - (self.n_bytes - self.n_weight_bytes_on_gpus), 0)
            )
            fixed = pass_bytes + 2 * logits_bytes + self.n_unified_sequences * state_bytes * (1 - share)
            pools.append(MemoryPool(n_free, kv_bytes * (1 - share) + mask_bytes, fixed))
        if share:
            fixed = pass_bytes + logits_bytes + self.n_unified_sequences * state_bytes * share
            pools.append(self._gpu_pool(kv_bytes * share + mask_bytes, fixed))
        return pools

    def vector_pools(self, params: Any) -> list[MemoryPool]:
        """The pools of a second context, for vectors, with these parameters of llama.cpp.

        It is created while the model is in use, so the free memory is that of this moment.
        """
        n_rows = params.n_ubatch
        kv_bytes, state_bytes = self._cache_bytes
        kv_bytes *= _F16_RATIO[self.options.kv_type]
        # For each row and token, the mask has a number, and without flash attention each head a score.
        n_heads = L.llama_model_n_head(self.pointer)
        has_scores = params.flash_attn_type == L.LLAMA_FLASH_ATTN_TYPE_DISABLED
        scores_bytes = 4 * n_rows * (1 + (n_heads if has_scores else 0))
        if L.llama_model_is_recurrent(self.pointer):
            scores_bytes = 0
        pass_bytes = n_rows * (L.llama_model_n_embd(self.pointer) * _WIDTHS_PER_ROW + self.n_vocab) * 4
        state_bytes *= params.n_seq_max
        output_bytes = n_rows * self.n_vocab * 4  # In the memory of the machine, wherever the layers are.
        free, share = free_memory(), self._gpu_share
        if free is not None:  # The system counts the weights that are mapped from files as free.
            free = max(free - self.options.others.n_mapped - mapped_memory(), 0)
        pools = [MemoryPool(free, 0, output_bytes)]
        if share < 1:
            fixed = output_bytes + pass_bytes + state_bytes * (1 - share)
            pools = [MemoryPool(free, kv_bytes * (1 - share) + scores_bytes, fixed)]
        if share:
            pools.append(self._gpu_pool(kv_bytes * share + scores_bytes, pass_bytes + state_bytes * share))
        return pools

    def _gpu_pool(self, per_token: float, fixed: float) -> MemoryPool:
        """The memory of the GPUs, as free as it is now: the weights and the kernels are loaded."""
        n_free = sum(gpu.n_free for gpu in used_gpus(self.options)) or None  # Some drivers report 0.
        return MemoryPool(n_free, per_token, fixed, ", ".join(gpu.name for gpu in self.gpus))

    @functools.cached_property
    def _cache_bytes(self) -> tuple[float, float]:
        """Bytes of the KV cache for each token, and of the recurrent state of a sequence, which does not grow.

        llama.cpp reports only their sum, for the computed tokens of a sequence. So two tokens are computed in a small
        context, after each of which that is read. This also reads the weights into memory and starts the threads.
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
        token_bytes = sizes[1] - sizes[0]
        return token_bytes, sizes[0] - token_bytes

    def new_context(self, pools: list[MemoryPool]) -> tuple[Any, int, CacheLimits]:
        """A context of the user's size or of a size that memory allows, its limit of one request, and its limits."""
        options = self.options
        # On a GPU memory is scarce, and a copied prefix would cross the bus.
        may_have_streams = self.can_truncate and not (self.gpus or self.has_window)
        n_ctx, n_cells, n_streams = context_size(options, pools, self.n_ctx_train, self.n_bytes, may_have_streams)
        n_least = options.n_ctx or MIN_TOKENS
        while not (context := L.llama_init_from_model(self.pointer, self._context_params(n_cells, n_streams))):
            n_streams = 0
            if n_cells <= n_least:
                raise EngineError(
                    f"llama.cpp could not create a context of {n_least} tokens ({last_errors()}): use a smaller --ctx"
                )
            n_cells = max(n_cells // 2, n_least)
        n_ctx = min(n_ctx, L.llama_n_ctx_seq(context))
        warn_of_context(n_ctx, options, self.n_ctx_train, pools)
        return context, n_ctx, self._cache_limits(context, not n_streams)

    def _context_params(self, n_cells: int, n_streams: int) -> Any:
        params = L.llama_context_default_params()
        params.n_ctx = n_cells
        params.n_seq_max = n_streams or self.n_unified_sequences
        params.n_batch = min(_BATCH, n_cells)
        params.n_ubatch = min(self.n_pass, params.n_batch)
        params.n_outputs_max = self.max_outputs  # The default reserves logits for a whole batch.
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
        # With its drafts, a step has no more rows with logits than there are slots, which `max_outputs` allows.
        n_drafted = min(tuning.max_drafted, min(self._n_unified_slots, n_batch) - n_parallel)
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
