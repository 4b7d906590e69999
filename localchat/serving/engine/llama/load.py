"""Loads a GGUF file and creates its context: sizes, memory, threads and metadata.

Struct layouts change between releases of llama.cpp, so fields are set by name on its default structs.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.model_options import Adapter
from ...core.params import NUMBERS, SAMPLERS, SamplingParams
from ...models.adapters import adapter_problem
from ..values import EngineError, LoadOptions, ModelFacts
from .backend import LlamaBackend
from .context_factory import ContextFactory
from .devices import built_for, devices, free_memory, mapped_memory, supports_gpu, used_gpus
from .library import L, LlamaModel, last_errors, layer_devices
from .placement import projector_bytes, set_placement, weight_bytes, with_gpu_layers
from .rpc import NewWatchdog, add_workers, watchdog
from .threads import default_threads
from .vocabulary import Vocabulary

if TYPE_CHECKING:
    from ..media.projector import LlamaProjector

log = logging.getLogger("localchat.engine")

# The metadata of a model may recommend sampling values, in keys that begin with "general.sampling.". These are the
# names of values and of samplers in it that SamplingParams has under other names.
_PARAM_NAMES = {"temp": "temperature", "penalty_repeat": "repeat_penalty", "sequence": "samplers"}
_SAMPLER_NAMES = {"typ_p": "typical_p", "temp": "temperature"}


def load_backend(path: str, options: LoadOptions, progress: Callable[[float], None] | None = None) -> LlamaBackend:
    """Load a GGUF file and create a context for it.

    `progress` is called with the loaded share of the weights, 0 to 1. Raises EngineError if the file cannot be loaded
    or does not generate text; NotEnoughMemory if it does not fit, or would fit better without the idle models.
    """
    if not os.path.isfile(path):
        raise EngineError(f"there is no model file {path!r}: check the path")
    if options.workers:
        add_workers(options.workers)
    new_watchdog = partial(watchdog, options.rpc_timeout) if options.workers else contextlib.nullcontext
    with new_watchdog():
        return _load_within_watchdog(path, options, progress, new_watchdog)


def _load_within_watchdog(
    path: str, options: LoadOptions, progress: Callable[[float], None] | None, new_watchdog: NewWatchdog
) -> LlamaBackend:
    """See `load_backend`. Runs within a watchdog; `new_watchdog` makes further ones, for the steps of the engine."""
    # The weights of other models that are mapped from files count as free memory.
    n_free = _less(free_memory(), options.others.n_mapped)
    gpus = used_gpus(options)
    options = with_gpu_layers(path, options, n_free, gpus)
    model = _load_model(path, options, progress)
    factory = ContextFactory(model.pointer, options, gpus)
    _check_model(factory, path)
    projector = _load_projector(model, factory) if options.mmproj else None
    pointers, adapters = _load_adapters(model, path, options)
    n_adapter_bytes = sum(weight_bytes(adapter.path) for adapter in adapters)
    n_projector_bytes = projector_bytes(options.mmproj) if options.mmproj else 0
    n_beside = n_adapter_bytes + (0 if factory.projector_is_on_gpu else n_projector_bytes)
    # The factory subtracts the weights of the model, since it knows which of them are on the machine.
    pools = factory.cache_pools(_less(n_free, n_beside))
    context, n_ctx, limits = factory.new_context(pools)
    if projector is not None:
        projector.limit_pass(L.llama_n_ubatch(context))
    n_context_bytes = sum(pool.n_bytes(limits.n_cells) for pool in pools)
    n_gpu_bytes = factory.n_weight_bytes_on_gpus + sum(pool.n_bytes(limits.n_cells) for pool in pools if pool.gpus)
    vocabulary = Vocabulary(model)  # after what may be refused, since reading it takes longer
    facts = _read_facts(
        factory,
        vocabulary,
        n_ctx=n_ctx,
        n_cells=limits.n_cells,
        # With everything on GPUs threads have no effect.
        n_threads=1 if factory.is_on_gpus and not options.cpu_moe else L.llama_n_threads(context),
        n_context_bytes=n_context_bytes + n_adapter_bytes + n_projector_bytes,
        n_gpu_bytes=n_gpu_bytes + (n_projector_bytes if factory.projector_is_on_gpu else 0),
        modalities=projector.modalities if projector else (),
        projector=options.mmproj or "",
        adapters=adapters,
    )
    adapts_threads = not factory.n_on_gpus
    return LlamaBackend(
        model,
        context,
        vocabulary,
        facts,
        limits,
        factory.n_ids,
        projector,
        pointers,
        adapts_threads=adapts_threads,
        new_watchdog=new_watchdog,
        vector_pools=factory.vector_pools,
    )


def _less(n_free: int | None, n_bytes: int) -> int | None:
    """What is left of free memory; None if that is not known."""
    return None if n_free is None else max(n_free - n_bytes, 0)


def _check_model(factory: ContextFactory, path: str) -> None:
    pointer = factory.pointer
    is_encoder = L.llama_model_has_encoder(pointer) or not L.llama_model_has_decoder(pointer)
    if is_encoder or L.llama_model_is_diffusion(pointer):
        raise EngineError(f"{path!r} is not a model that generates text token by token: use a chat model")
    n_most = L.llama_max_parallel_sequences() // factory.n_ids - 1  # One slot is for idle prefixes.
    if factory.options.n_parallel > n_most:
        message = f"--parallel {factory.options.n_parallel} is more than llama.cpp can run at once"
        raise EngineError(f"{message}: the limit of this model is {n_most}")


def _load_model(path: str, options: LoadOptions, progress: Callable[[float], None] | None) -> LlamaModel:
    params = L.llama_model_default_params()
    referenced = set_placement(params, options)

    @L.llama_progress_callback  # type: ignore[untyped-decorator]  # ctypes
    def on_progress(done: float, _: ctypes.c_void_p) -> bool:
        if progress is not None:
            progress(done)
        if options.workers:  # The time limit is for each part of the load.
            faulthandler.dump_traceback_later(options.rpc_timeout, exit=True)
        return True

    params.progress_callback = on_progress
    assert not vars(params), "ctypes takes a field that this release does not have as an attribute"
    pointer = L.llama_model_load_from_file(os.fsencode(path), params)
    if pointer is None:
        raise EngineError(f"llama.cpp cannot load {path!r}: {last_errors()}")
    return LlamaModel(pointer, referenced)


def _load_projector(model: LlamaModel, factory: ContextFactory) -> LlamaProjector:
    from ..media.projector import LlamaProjector

    projector = LlamaProjector(
        str(factory.options.mmproj),
        model,
        n_threads=factory.options.n_threads or default_threads(),
        use_gpu=factory.projector_is_on_gpu,
    )
    factory.widen_pass(projector.max_cells_in_one_pass)
    return projector


def _load_adapters(model: LlamaModel, path: str, options: LoadOptions) -> tuple[list[Any], tuple[Adapter, ...]]:
    """llama.cpp's adapters, and their descriptions. One that cannot be loaded has the reason as its `problem`.

    Only the requests that name such an adapter fail.
    """
    pointers, adapters = [], []
    for adapter in options.adapters:
        problem = adapter_problem(adapter, Path(path))
        pointer = None if problem else L.llama_adapter_lora_init(model.pointer, os.fsencode(adapter.path))
        if not (problem or pointer):
            problem = f"{adapter.path}: llama.cpp cannot load it: {last_errors()}"
        elif pointer and L.llama_adapter_get_alora_n_invocation_tokens(pointer):
            problem = f"{adapter.path}: it is activated by tokens (aLoRA), which is not supported"
        if problem:
            log.error("the adapter %s cannot be used: %s", adapter.name, problem)
        pointers.append(pointer)
        adapters.append(replace(adapter, problem=problem))
    return pointers, tuple(adapters)


def _workers(factory: ContextFactory) -> tuple[tuple[str, int], ...]:
    """The workers, each with the number of layers on its devices."""
    endpoints = {gpu.name: gpu.description for gpu in factory.gpus if gpu.is_remote}
    layer_endpoints = [endpoints.get(layer_devices.get(i, "")) for i in range(factory.n_layers)]
    return tuple((endpoint, layer_endpoints.count(endpoint)) for endpoint in dict.fromkeys(endpoints.values()))


def _device(factory: ContextFactory) -> str:
    """The device that computes the layers, in words."""
    names = ", ".join(f"{gpu.name} ({gpu.description})" for gpu in factory.gpus)
    cpu = next((f"CPU ({device.description})" for device in devices() if device.kind == "CPU"), "CPU")
    if factory.is_on_gpus:
        return f"{names}, all {factory.n_layers} layers"
    if factory.n_on_gpus:
        return f"{names}, {factory.n_on_gpus} of {factory.n_layers} layers; {cpu} for the others"
    return cpu if supports_gpu() else f"{cpu}; llama.cpp is built for {built_for()}"


def _read_facts(factory: ContextFactory, vocabulary: Vocabulary, **others: Any) -> ModelFacts:
    metadata = _read_metadata(factory.pointer)
    prefix, suffix, middle, file, repository = (
        getattr(L, f"llama_vocab_fim_{name}")(vocabulary.pointer) for name in ("pre", "suf", "mid", "sep", "rep")
    )
    return ModelFacts(
        # llama.cpp writes "?B" for a model whose architecture and size it has no label for.
        description=_read_text(partial(L.llama_model_desc, factory.pointer)).replace(" ?B", ""),
        n_params=L.llama_model_n_params(factory.pointer),
        n_bytes=factory.n_bytes,
        n_vocab=vocabulary.n_tokens,
        n_ctx_train=factory.n_ctx_train,
        n_parallel=factory.options.n_parallel,
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
        device=_device(factory),
        workers=_workers(factory),
        n_free_bytes=free_memory(),
        n_mapped_bytes=min(mapped_memory(), factory.n_bytes),
        **others,
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
