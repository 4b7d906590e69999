"""Loads a GGUF file and creates its context: sizes, memory, threads and metadata.

Struct layouts change between releases of llama.cpp, so fields are set by name on its default structs.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.model_options import Adapter
from ...core.params import NUMBERS, SAMPLERS, SamplingParams
from ...models.adapters import adapter_problem
from ...models.model_file import ModelFile
from ..batch import CacheLimits
from ..context_size import MIN_TOKENS, CacheMemory, context_size, warn_of_context
from ..tuning import CPU, GPU
from ..values import EngineError, LoadOptions, ModelFacts
from .backend import Limit, LlamaBackend
from .devices import Device, built_for, devices, free_memory, mapped_memory, supports_gpu, used_gpus
from .library import L, Model, last_errors, layer_devices
from .placement import KV_TYPES, placed, projector_bytes, set_placement
from .rpc import add_workers, limited
from .threads import default_threads
from .vocabulary import Vocabulary

if TYPE_CHECKING:
    from ..media.projector import LlamaProjector

log = logging.getLogger("localchat.engine")

# The least number of slots for idle prefixes; if more sequences can run, there are as many slots as these. Each costs
# the memory of one row of logits.
_IDLE_SLOTS = 24
# The limit of tokens of a step (n_batch), and by default of one pass through the layers (n_ubatch).
_BATCH, _PASS = 2048, 512
# The buffers of one pass through the layers have about this many vectors of 32-bit numbers for each row.
_WIDTHS_PER_ROW = 8
# The metadata of a model may recommend sampling values, in keys that begin with "general.sampling.". These are the
# names of values and of samplers in it that SamplingParams has under other names.
_PARAM_NAMES = {"temp": "temperature", "penalty_repeat": "repeat_penalty", "sequence": "samplers"}
_SAMPLER_NAMES = {"typ_p": "typical_p", "temp": "temperature"}


def load_backend(path: str, options: LoadOptions, progress: Callable[[float], None] | None = None) -> LlamaBackend:
    """Load a GGUF file and create a context for it.

    `progress` is called with numbers from 0 to 1 while the weights load.

    Raises:
        NotEnoughMemory: It does not fit into the free memory, or would fit better without the idle models.
        EngineError: The file cannot be loaded, or does not generate text.
    """
    if not os.path.isfile(path):
        raise EngineError(f"there is no model file {path!r}: check the path")
    if options.workers:
        add_workers(options.workers)
    limit = partial(limited, options.rpc_timeout) if options.workers else contextlib.nullcontext
    with limit():
        return _loaded(path, options, progress, limit)


def _loaded(path: str, options: LoadOptions, progress: Callable[[float], None] | None, limit: Limit) -> LlamaBackend:
    free = free_memory()
    if free is not None:
        free = max(free - options.others.n_mapped, 0)
    gpus = used_gpus(options)
    options = placed(path, options, free, gpus)
    owner = _load_model(path, options, progress)
    model = _LoadedModel(owner.pointer, options, gpus)
    model.check(path)
    projector = None
    if options.mmproj:
        projector = _load_projector(owner, model)
        model.n_pass = max(model.n_pass, projector.n_most_whole)
        if free is not None and not model.n_on_gpus:
            free = max(free - projector_bytes(options.mmproj), 0)
    pointers, adapters = _load_adapters(owner, path, options)
    n_adapter_bytes = sum(ModelFile(Path(adapter.path), "").n_bytes for adapter in adapters)
    memories = model.cache_memories(free if free is None else max(free - n_adapter_bytes, 0))
    context, n_ctx, is_unified = model.new_context(memories)
    vocabulary = Vocabulary(owner)  # after what may be refused, since reading it takes longer
    facts = _read_facts(model, context, n_ctx, vocabulary, memories)
    facts = replace(
        facts, workers=model.workers(), adapters=adapters, n_context_bytes=facts.n_context_bytes + n_adapter_bytes
    )
    if projector is not None:
        projector.n_pass = L.llama_n_ubatch(context)
        n_bytes = facts.n_context_bytes + projector_bytes(str(options.mmproj))
        facts = replace(facts, modalities=projector.modalities, n_context_bytes=n_bytes)
    limits, adapts_threads = model.cache_limits(context, is_unified), not model.n_on_gpus
    return LlamaBackend(
        owner, context, vocabulary, facts, limits, projector, pointers, adapts_threads=adapts_threads, limit=limit
    )


def _load_model(path: str, options: LoadOptions, progress: Callable[[float], None] | None) -> Model:
    params = L.llama_model_default_params()
    kept = set_placement(params, options)

    @L.llama_progress_callback  # type: ignore[untyped-decorator]  # ctypes
    def on_progress(done: float, _: ctypes.c_void_p) -> bool:
        if progress is not None:
            progress(done)
        if options.workers:  # The limit is for each part of the load.
            faulthandler.dump_traceback_later(options.rpc_timeout, exit=True)
        return True

    params.progress_callback = on_progress
    assert not vars(params), "ctypes takes a field that this release does not have as an attribute"
    pointer = L.llama_model_load_from_file(os.fsencode(path), params)
    if pointer is None:
        raise EngineError(f"llama.cpp cannot load {path!r}: {last_errors()}")
    return Model(pointer, kept)


def _load_projector(owner: Model, model: _LoadedModel) -> LlamaProjector:
    from ..media.projector import LlamaProjector

    has_gpu = any(not gpu.is_remote for gpu in model.gpus)
    n_threads, use_gpu = model.options.n_threads or default_threads(model.n_bytes), bool(model.n_on_gpus) and has_gpu
    return LlamaProjector(str(model.options.mmproj), owner, n_threads=n_threads, use_gpu=use_gpu)


def _load_adapters(owner: Model, path: str, options: LoadOptions) -> tuple[list[Any], tuple[Adapter, ...]]:
    """The adapters for llama.cpp, and with the reason of each that cannot be loaded, which fails its requests alone."""
    pointers, adapters = [], []
    for adapter in options.adapters:
        problem = adapter_problem(adapter, Path(path))
        pointer = None if problem else L.llama_adapter_lora_init(owner.pointer, os.fsencode(adapter.path))
        if not (problem or pointer):
            problem = f"{adapter.path}: llama.cpp cannot load it: {last_errors()}"
        elif pointer and L.llama_adapter_get_alora_n_invocation_tokens(pointer):
            problem = f"{adapter.path}: it is activated by tokens (aLoRA), which is not supported"
        if problem:
            log.error("the adapter %s cannot be used: %s", adapter.name, problem)
        pointers.append(pointer)
        adapters.append(replace(adapter, problem=problem))
    return pointers, tuple(adapters)


class _LoadedModel:
    """A loaded model and its options. It measures how much memory a context takes, and creates one."""

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

    def check(self, path: str) -> None:
        model = self.pointer
        is_encoder = L.llama_model_has_encoder(model) or not L.llama_model_has_decoder(model)
        if is_encoder or L.llama_model_is_diffusion(model):
            raise EngineError(f"{path!r} is not a model that generates text token by token: use a chat model")
        most = L.llama_max_parallel_sequences() // self.n_ids - 1  # One slot is for idle prefixes.
        if self.options.n_parallel > most:
            raise EngineError(
                f"--parallel {self.options.n_parallel} is more than llama.cpp can run at once: "
                f"the limit of this model is {most}"
            )

    def cache_memories(self, free: int | None) -> list[CacheMemory]:
        """The memory in which the KV cache is allocated: that of the machine, of the GPUs, or both.

        `free` is the free memory of the machine before the model was loaded.
        """
        kv_bytes, state_bytes = self._measured_cache()
        # The attention mask has 16 bits for each row and token, in each memory.
        mask_bytes = 2 * self.n_pass if kv_bytes else 0
        pass_bytes = self.n_pass * L.llama_model_n_embd(self.pointer) * _WIDTHS_PER_ROW * 4
        logits_bytes = self.n_outputs * L.llama_vocab_n_tokens(L.llama_model_get_vocab(self.pointer)) * 4
        memories, share = [], self.n_on_gpus / self.n_layers
        if share < 1:
            n_free = None if free is None else max(free - int(self.n_bytes * (1 - share)), 0)
            fixed = pass_bytes + 2 * logits_bytes + int(self.n_outputs * state_bytes * (1 - share))
            memories.append(CacheMemory(n_free, kv_bytes * (1 - share) + mask_bytes, fixed))
        if share:
            # Measured now: the weights and the kernels are loaded. Some drivers report 0, which means unknown.
            n_free = sum(gpu.n_free for gpu in used_gpus(self.options)) or None
            fixed = pass_bytes + logits_bytes + int(self.n_outputs * state_bytes * share)
            names = ", ".join(gpu.name for gpu in self.gpus)
            memories.append(CacheMemory(n_free, kv_bytes * share + mask_bytes, fixed, names))
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

    def new_context(self, memories: list[CacheMemory]) -> tuple[Any, int, bool]:
        """A context of the user's size or of a size that memory allows, its limit of one request, and is_unified."""
        options = self.options
        # On a GPU memory is scarce, and a copied prefix would cross the bus.
        is_unified = bool(self.gpus) or not self.can_truncate or self.has_window
        size = context_size(
            options,
            n_ctx_train=self.n_ctx_train,
            n_weight_bytes=self.n_bytes,
            memories=memories,
            has_streams=not is_unified,
        )
        n_least = options.n_cells or options.n_ctx or MIN_TOKENS
        n_cells, n_streams = size.n_cells, size.n_streams
        while True:
            context = L.llama_init_from_model(self.pointer, self._context_params(n_cells, n_streams))
            if context is not None:
                break
            n_streams = 0
            if n_cells <= n_least:
                raise EngineError(
                    f"llama.cpp could not create a context of {n_least} tokens ({last_errors()}): use a smaller --ctx"
                )
            n_cells = max(n_cells // 2, n_least)
        n_ctx = min(size.n_ctx, L.llama_n_ctx_seq(context))
        warn_of_context(n_ctx, options, self.n_ctx_train, memories)
        return context, n_ctx, not n_streams

    def _context_params(self, n_cells: int, n_streams: int) -> Any:
        params = L.llama_context_default_params()
        params.n_ctx = n_cells
        params.n_seq_max = n_streams or self.n_outputs
        params.n_batch = min(_BATCH, n_cells)
        params.n_ubatch = min(self.n_pass, params.n_batch)
        # A number below n_seq_max aborts the process; the default reserves logits for a whole batch.
        params.n_outputs_max = self.n_outputs
        params.n_threads = params.n_threads_batch = self.options.n_threads or default_threads(self.n_bytes)
        params.kv_unified = not n_streams
        params.type_k = params.type_v = KV_TYPES[self.options.kv_type]
        if self.options.kv_type != "f16":
            params.flash_attn_type = L.LLAMA_FLASH_ATTN_TYPE_ENABLED  # which quantised values need
        assert not vars(params), "a field that this release does not have"
        return params

    def cache_limits(self, context: Any, is_unified: bool) -> CacheLimits:
        n_parallel, n_batch, n_outputs = self.options.n_parallel, L.llama_n_batch(context), self.n_outputs // self.n_ids
        # The devices of workers may be CPUs, and a step waits for the network.
        tuning = GPU if self.is_on_gpus and not self.options.workers else CPU
        n_drafted = min(tuning.max_drafted, min(n_outputs, n_batch) - n_parallel)
        return CacheLimits(
            n_cells=L.llama_n_ctx(context),
            n_parallel=n_parallel,
            n_slots=L.llama_n_seq_max(context) // self.n_ids,
            n_batch=n_batch,
            can_truncate=self.can_truncate,
            max_drafted=n_drafted if self.can_truncate and self.options.speculates else 0,
            is_unified=is_unified,
            n_outputs=n_outputs,
            tuning=tuning,
        )

    def workers(self) -> tuple[tuple[str, int], ...]:
        """The workers, each with the number of layers on its devices."""
        endpoints = {gpu.name: gpu.description for gpu in self.gpus if gpu.is_remote}
        found = [endpoints.get(layer_devices.get(i, "")) for i in range(self.n_layers)]
        return tuple((endpoint, found.count(endpoint)) for endpoint in dict.fromkeys(endpoints.values()))

    def device(self) -> str:
        """The device that computes the layers, in words."""
        names = ", ".join(f"{gpu.name} ({gpu.description})" for gpu in self.gpus)
        cpu = next((f"CPU ({device.description})" for device in devices() if device.kind == "CPU"), "CPU")
        if self.is_on_gpus:
            return f"{names}, all {self.n_layers} layers"
        if self.n_on_gpus:
            return f"{names}, {self.n_on_gpus} of {self.n_layers} layers; {cpu} for the others"
        return cpu if supports_gpu() else f"{cpu}; llama.cpp is built for {built_for()}"


def _read_facts(
    model: _LoadedModel, context: Any, n_ctx: int, vocabulary: Vocabulary, memories: Sequence[CacheMemory]
) -> ModelFacts:
    metadata = _read_metadata(model.pointer)
    prefix, suffix, middle, file, repository = (
        getattr(L, f"llama_vocab_fim_{name}")(vocabulary.pointer) for name in ("pre", "suf", "mid", "sep", "rep")
    )
    return ModelFacts(
        # llama.cpp writes "?B" for a model whose architecture and size it has no label for.
        description=_read_text(partial(L.llama_model_desc, model.pointer)).replace(" ?B", ""),
        n_params=L.llama_model_n_params(model.pointer),
        n_bytes=model.n_bytes,
        n_vocab=vocabulary.n_tokens,
        n_ctx_train=model.n_ctx_train,
        n_ctx=n_ctx,
        n_cells=L.llama_n_ctx(context),
        n_parallel=model.options.n_parallel,
        chat_template=metadata.get("tokenizer.chat_template"),
        bos=vocabulary.bos,
        eos=vocabulary.eos,
        add_bos=vocabulary.add_bos,
        special_tokens=vocabulary.special_tokens,
        sampling=sampling_from(metadata),
        metadata=metadata,
        fim_tokens=None if min(prefix, suffix, middle) < 0 else (prefix, suffix, middle),
        fim_file=None if file < 0 else file,
        fim_repository=None if repository < 0 else repository,
        device=model.device(),
        # With all layers on GPUs threads have no effect.
        n_threads=1 if model.is_on_gpus else L.llama_n_threads(context),
        n_context_bytes=sum(memory.n_bytes(L.llama_n_ctx(context)) for memory in memories),
        n_free_bytes=free_memory(),
        n_mapped_bytes=min(mapped_memory(), model.n_bytes),
    )


def sampling_from(metadata: Mapping[str, str]) -> SamplingParams:
    """The sampling defaults, overridden by the recommendations in the model's metadata."""
    values: dict[str, Any] = {}
    for key, text in metadata.items():
        prefix, _, name = key.rpartition(".")
        name = _PARAM_NAMES.get(name, name)
        if prefix == "general.sampling" and (name in NUMBERS or name == "samplers"):
            try:
                values[name] = _read_samplers(text) if name == "samplers" else NUMBERS[name].kind(text)
            except ValueError:
                log.warning("the model's %s is %r, which is not valid: ignored", key, text)
    return SamplingParams(**values)


def _read_samplers(text: str) -> tuple[str, ...]:
    names = tuple(_SAMPLER_NAMES.get(name, name) for name in text.replace("-", "_").split(";"))
    if not set(names) <= set(SAMPLERS):
        raise ValueError(text)
    return names


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
