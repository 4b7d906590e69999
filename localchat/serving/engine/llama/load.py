"""Loads a GGUF file and creates its context: sizes, threads and metadata.

Struct layouts change between releases of llama.cpp, so fields are set by name on its default structs.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ...core.params import SAMPLERS, SamplingParams
from ..batch import CacheLimits
from ..context_size import MIN_TOKENS, CacheMemory, ContextSize, context_size, warn_of_context
from ..memory import free_memory
from ..tuning import CPU, GPU
from ..values import EngineError, LoadOptions, ModelFacts, Resources, WrongDraftModel
from .backend import LlamaBackend
from .devices import uses_gpu
from .library import L, Model, last_errors
from .memory_use import cache_memories, resources_of
from .vocabulary import Vocabulary

log = logging.getLogger("localchat.engine")

# Slots for idle prefixes, or as many as for running sequences if these are more. Each costs the memory of one row of
# logits.
_IDLE_SLOTS = 24
# The limit of tokens of a step (n_batch), and of one pass through the layers (n_ubatch).
_BATCH, _PASS = 2048, 512

# A model with fewer bytes uses one thread. With 3 MB on 2 cores, one of them busy, one thread is 2 to 4 times as fast
# as two: in its short steps, threads mostly wait for each other.
_TINY_MODEL_BYTES = 32 << 20

# The sampler names of llama.cpp that differ from those of `SAMPLERS`.
_STEP_NAMES = {"typ_p": "typical_p", "temp": "temperature"}


def _read_steps(text: str) -> tuple[str, ...]:
    steps = tuple(_STEP_NAMES.get(name, name) for name in text.replace("-", "_").split(";"))
    if not set(steps) <= set(SAMPLERS):
        raise ValueError(text)
    return steps


_SAMPLING_KEYS: dict[str, tuple[str, Callable[[str], object]]] = {
    "temperature": ("general.sampling.temp", float),
    "top_k": ("general.sampling.top_k", int),
    "top_p": ("general.sampling.top_p", float),
    "min_p": ("general.sampling.min_p", float),
    "repeat_penalty": ("general.sampling.penalty_repeat", float),
    "penalty_last_n": ("general.sampling.penalty_last_n", int),
    "xtc_probability": ("general.sampling.xtc_probability", float),
    "xtc_threshold": ("general.sampling.xtc_threshold", float),
    "mirostat": ("general.sampling.mirostat", int),
    "mirostat_tau": ("general.sampling.mirostat_tau", float),
    "mirostat_eta": ("general.sampling.mirostat_eta", float),
    "samplers": ("general.sampling.sequence", _read_steps),
}


def load_backend(path: str, options: LoadOptions, progress: Callable[[float], None] | None = None) -> LlamaBackend:
    """Load a GGUF file and create a context for it.

    `progress` is called with numbers from 0 to 1 while the weights load.

    Raises:
        EngineError: The file cannot be loaded, does not generate text, or there is not enough memory.
    """
    if not os.path.isfile(path):
        raise EngineError(f"there is no model file {path!r}: check the path")
    free = free_memory()
    model = Model(_load_model(path, options, progress))
    _check_generates(model.pointer, path)
    _check_parallel(model.pointer, options)
    vocabulary = Vocabulary(model)
    metadata = _read_metadata(model.pointer)
    n_outputs = _n_outputs(model.pointer, options)
    memories = cache_memories(model.pointer, path, metadata, options, free, n_rows=_PASS, n_outputs=n_outputs)
    context, options, is_unified = _new_context(model.pointer, options, memories)
    _warm_up(context)
    # With all layers on GPUs threads have no effect.
    n_threads = 1 if _is_on_gpus(model.pointer, options) else L.llama_n_threads(context)
    resources = resources_of(model.pointer, options, memories, L.llama_n_ctx(context), n_threads)
    facts = _read_facts(model.pointer, context, vocabulary, options, metadata, resources)
    limits = _cache_limits(model.pointer, context, options, is_unified)
    return LlamaBackend(model, context, vocabulary, facts, limits, memories)


def load_draft_backend(path: str, options: LoadOptions, target: LlamaBackend) -> LlamaBackend:
    """Load a draft model for a loaded model.

    Raises:
        WrongDraftModel: It has another vocabulary, or a KV cache that cannot be truncated.
        EngineError: As `load_backend`.
    """
    backend = load_backend(path, replace(options, n_ctx=target.facts.n_ctx, n_cells=0, kv_unified=True))
    try:
        if not backend.limits.can_truncate:
            raise WrongDraftModel(f"{path!r} cannot draft: the state of a recurrent model cannot be truncated")
        difference = target.vocabulary.difference(backend.vocabulary)
        if difference:
            raise WrongDraftModel(
                f"{path!r} has another vocabulary than the model for which it would draft: {difference}"
            )
    except BaseException:
        backend.close()
        raise
    return backend


def default_threads(n_model_bytes: int) -> int:
    """The number of threads of a step: that of the cores that this process may use, or half of it if that is more than
    4, since cores may be hyperthreads; 1 for a tiny model."""
    if n_model_bytes < _TINY_MODEL_BYTES:
        return 1
    try:
        n_cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        n_cores = os.cpu_count() or 1
    return n_cores if n_cores <= 4 else n_cores // 2


def _load_model(path: str, options: LoadOptions, progress: Callable[[float], None] | None) -> Any:
    params = L.llama_model_default_params()
    params.n_gpu_layers = options.n_gpu_layers
    params.use_extra_bufts = options.use_extra_bufts

    @L.llama_progress_callback  # type: ignore[untyped-decorator]  # ctypes
    def on_progress(done: float, _: ctypes.c_void_p) -> bool:
        if progress is not None:
            progress(done)
        return True

    params.progress_callback = on_progress
    model = L.llama_model_load_from_file(os.fsencode(path), params)
    if model is None:
        raise EngineError(f"llama.cpp cannot load {path!r}: {last_errors()}")
    return model


def _check_generates(model: Any, path: str) -> None:
    if L.llama_model_has_encoder(model) or not L.llama_model_has_decoder(model) or L.llama_model_is_diffusion(model):
        raise EngineError(f"{path!r} is not a model that generates text token by token: use a chat model")


def _check_parallel(model: Any, options: LoadOptions) -> None:
    most = L.llama_max_parallel_sequences() // _n_ids(model) - 1  # One slot is for idle prefixes.
    if options.n_parallel > most:
        raise EngineError(
            f"--parallel {options.n_parallel} is more than llama.cpp can run at once: the limit of this model is {most}"
        )


def _new_context(model: Any, options: LoadOptions, memories: list[CacheMemory]) -> tuple[Any, LoadOptions, bool]:
    """A context of the user's size or of a size that memory allows, the options with its size, and is_unified."""
    n_ctx_train: int = L.llama_model_n_ctx_train(model)
    # On a GPU memory is scarce, and a copied prefix would cross the bus.
    is_unified = options.kv_unified or uses_gpu(options) or not _can_truncate(model) or L.llama_model_n_swa(model)
    size = context_size(
        options,
        n_ctx_train=n_ctx_train,
        n_weight_bytes=L.llama_model_size(model),
        memories=memories,
        has_streams=not is_unified,
    )
    n_least = options.n_cells or options.n_ctx or MIN_TOKENS
    n_cells, n_streams = size.n_cells, size.n_streams
    while True:
        context = L.llama_init_from_model(model, _context_params(model, options, n_cells, n_streams))
        if context is not None:
            break
        n_streams = 0
        if n_cells <= n_least:
            raise EngineError(
                f"llama.cpp could not create a context of {n_least} tokens ({last_errors()}): use a smaller --ctx"
            )
        n_cells = max(n_cells // 2, n_least)
    size = ContextSize(min(size.n_ctx, L.llama_n_ctx_seq(context)), L.llama_n_ctx(context), n_streams)
    warn_of_context(size, options, n_ctx_train, memories)
    return context, replace(options, n_ctx=size.n_ctx), not n_streams


def _warm_up(context: Any) -> None:
    """Compute one token, so that the weights are in memory and the threads have started before the first request."""
    memory = L.llama_get_memory(context)
    if memory is None:  # An encoder has no KV cache.
        return
    token = (L.llama_token * 1)(0)
    L.llama_set_warmup(context, True)
    L.llama_decode(context, L.llama_batch_get_one(token, 1))
    L.llama_set_warmup(context, False)
    L.llama_memory_clear(memory, True)


def _context_params(model: Any, options: LoadOptions, n_cells: int, n_streams: int) -> Any:
    params = L.llama_context_default_params()
    params.n_ctx = n_cells
    params.n_seq_max = n_streams or _n_outputs(model, options)
    params.n_batch = min(_BATCH, n_cells)
    params.n_ubatch = min(_PASS, params.n_batch)
    # A number below n_seq_max aborts the process; the default reserves logits for a whole batch.
    params.n_outputs_max = _n_outputs(model, options)
    params.n_threads = params.n_threads_batch = options.n_threads or default_threads(L.llama_model_size(model))
    params.kv_unified = not n_streams
    return params


def _n_outputs(model: Any, options: LoadOptions) -> int:
    """The limit of rows with logits in a batch; in the unified layout also the number of llama.cpp's sequences."""
    n_slots = options.n_parallel + max(_IDLE_SLOTS, options.n_parallel)
    return min(n_slots * _n_ids(model), int(L.llama_max_parallel_sequences()))


def _is_on_gpus(model: Any, options: LoadOptions) -> bool:
    """Whether GPUs compute all layers."""
    return uses_gpu(options) and not 0 <= options.n_gpu_layers < L.llama_model_n_layer(model)


def _can_truncate(model: Any) -> bool:
    return not (L.llama_model_is_recurrent(model) or L.llama_model_is_hybrid(model))


def _n_ids(model: Any) -> int:
    """The number of llama.cpp's sequences for each slot.

    With a sliding window llama.cpp frees a cell when its only sequence no longer attends to it, although another
    request with the same prefix still would. A second sequence with the same cells prevents that.
    """
    return 2 if L.llama_model_n_swa(model) and _can_truncate(model) else 1


def _cache_limits(model: Any, context: Any, options: LoadOptions, is_unified: bool) -> CacheLimits:
    n_slots, n_batch = L.llama_n_seq_max(context) // _n_ids(model), L.llama_n_batch(context)
    can_truncate, tuning = _can_truncate(model), GPU if _is_on_gpus(model, options) else CPU
    n_outputs = _n_outputs(model, options) // _n_ids(model)
    n_spare_rows = min(n_outputs, n_batch) - options.n_parallel
    return CacheLimits(
        n_cells=L.llama_n_ctx(context),
        n_parallel=options.n_parallel,
        n_slots=n_slots,
        n_batch=n_batch,
        can_truncate=can_truncate,
        max_drafted=min(tuning.max_drafted, n_spare_rows) if can_truncate and options.speculates else 0,
        is_unified=is_unified,
        n_outputs=n_outputs,
        tuning=tuning,
    )


def _read_facts(
    model: Any,
    context: Any,
    vocabulary: Vocabulary,
    options: LoadOptions,
    metadata: dict[str, str],
    resources: Resources,
) -> ModelFacts:
    template = L.llama_model_chat_template(model, None)
    return ModelFacts(
        # llama.cpp writes "?B" for a model whose architecture and size it has no label for.
        description=_read_text(partial(L.llama_model_desc, model)).replace(" ?B", ""),
        n_params=L.llama_model_n_params(model),
        n_bytes=L.llama_model_size(model),
        n_vocab=vocabulary.n_tokens,
        n_ctx_train=L.llama_model_n_ctx_train(model),
        n_ctx=options.n_ctx,
        n_cells=L.llama_n_ctx(context),
        n_parallel=options.n_parallel,
        chat_template=None if template is None else template.decode("utf-8", "replace"),
        bos=vocabulary.bos,
        eos=vocabulary.eos,
        add_bos=vocabulary.add_bos,
        special_tokens=vocabulary.special_tokens,
        sampling=sampling_from(metadata),
        metadata=metadata,
        fim_tokens=vocabulary.fim_tokens,
        fim_file=vocabulary.fim_file,
        fim_repository=vocabulary.fim_repository,
        resources=resources,
    )


def sampling_from(metadata: dict[str, str]) -> SamplingParams:
    """The sampling defaults, overridden by the recommendations in the model's metadata."""
    values: dict[str, Any] = {}
    for name, (key, read) in _SAMPLING_KEYS.items():
        if key in metadata:
            try:
                values[name] = read(metadata[key])
            except ValueError:
                log.warning("the model's %s is %r, which is not valid: ignored", key, metadata[key])
    return SamplingParams(**values)


def _read_metadata(model: Any) -> dict[str, str]:
    """The metadata as text. For an array, llama.cpp returns only a description."""
    keys = (partial(L.llama_model_meta_key_by_index, model, i) for i in range(L.llama_model_meta_count(model)))
    names = [_read_text(key) for key in keys]
    return {name: _read_text(partial(L.llama_model_meta_val_str, model, name.encode())) for name in names}


def _read_text(read: Callable[[Any, int], int]) -> str:
    """The text that `read(buffer, size)` writes. It returns the length of the text, which may exceed the size."""
    n_buffer = 256
    while True:
        buffer = ctypes.create_string_buffer(n_buffer)
        n = read(buffer, n_buffer)
        if n < n_buffer:
            return buffer.raw[: max(n, 0)].decode("utf-8", "replace")
        n_buffer = n + 1
