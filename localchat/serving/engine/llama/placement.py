"""Where the weights of a model go, and whether they fit, by the header of its file; llama.cpp would only fail."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...models.gguf import GGUFError, read_start
from ...models.memory import NotEnoughMemory, gigabytes
from ...models.model_file import ModelFile
from ..values import LIKELY_TOKENS, EngineError, LoadOptions
from .context_size import GPU_SHARE
from .devices import Device, ggml, projector_gpu
from .library import L

_SPLIT_MODES: Mapping[str, int] = {"none": 0, "layer": 1, "row": 2}
# By whether the file is mapped into memory, and whether its memory is locked.
_LOAD_MODES: Mapping[tuple[bool, bool], int] = {
    (True, False): L.LLAMA_LOAD_MODE_AUTO,
    (False, False): L.LLAMA_LOAD_MODE_NONE,
    (True, True): L.LLAMA_LOAD_MODE_MMAP_MLOCK,
    (False, True): L.LLAMA_LOAD_MODE_MLOCK,
}
# The weights of the experts of a mixture-of-experts model.
_EXPERTS = rb"\.ffn_(up|down|gate|gate_up)_(ch|)exps"


def with_gpu_layers(path: str, options: LoadOptions, free: int | None, gpus: Sequence[Device]) -> LoadOptions:
    """The options with the number of layers on the GPUs.

    `gpus` are those that may take layers, `free` are the free bytes of the machine, None if not known. Raises
    NotEnoughMemory if the weights do not fit, or if more layers would be on the GPUs without the idle models.
    """
    n_bytes, beside = weight_bytes(path), ""
    if options.mmproj:  # It is loaded after the weights.
        beside = " beside its projector"
        gpus, free = _free_beside(projector_bytes(options.mmproj), gpus, free)
    try:
        header = read_start(path)
    except (GGUFError, OSError):  # llama.cpp says what is wrong.
        header = {}
    n_on_gpus = options.n_gpu_layers
    if n_on_gpus is None:
        n_on_gpus = _fitting_layers(header, n_bytes, options, gpus)
    if not options.cpu_moe:  # With it, the header does not tell how many bytes are on the GPUs.
        share = 0.0 if not gpus else 1.0 if n_on_gpus < 0 else min(n_on_gpus / _layers_with_output(header), 1)
        n_free_on_gpus = sum(gpu.n_free for gpu in gpus)
        if n_free_on_gpus:
            _check(n_bytes * share, n_free_on_gpus, f" on {_names(gpus)}{beside}", "use --gpu-layers auto")
        if free is not None:
            _check(n_bytes * (1 - share), free, beside, "use a smaller model or quantisation")
    return replace(options, n_gpu_layers=n_on_gpus)


def _free_beside(n_bytes: int, gpus: Sequence[Device], free: int | None) -> tuple[Sequence[Device], int | None]:
    """What is free beside a projector of this size: on the GPUs, and on the machine."""
    projector_on = projector_gpu(gpus)
    if projector_on is None:
        return gpus, None if free is None else max(free - n_bytes, 0)
    return [replace(gpu, n_free=max(gpu.n_free - n_bytes, 0)) if gpu is projector_on else gpu for gpu in gpus], free


def _fitting_layers(header: Mapping[str, Any], n_bytes: int, options: LoadOptions, gpus: Sequence[Device]) -> int:
    """How many layers of a model, whose weights have so many bytes, fit on the GPUs; -1, as for llama.cpp: all."""
    n_free = sum(gpu.n_free for gpu in gpus)
    if not (n_bytes and n_free) or options.cpu_moe:  # Some drivers do not report their memory.
        return -1
    n_layers = _layers_with_output(header)
    n_tokens = options.n_parallel * min(options.n_ctx or LIKELY_TOKENS, LIKELY_TOKENS)
    n_layer_bytes = (n_bytes / n_layers + n_tokens * _cache_bytes(header)) / GPU_SHARE
    n_fitting = int(n_free / n_layer_bytes)
    if n_fitting < min(n_layers, int((n_free + options.others.n_idle_on_gpus) / n_layer_bytes)):
        raise NotEnoughMemory(f"{n_fitting} of {n_layers} layers fit into the free memory of {_names(gpus)}")
    return n_fitting if n_fitting < n_layers else -1


def _names(gpus: Sequence[Device]) -> str:
    return ", ".join(gpu.name for gpu in gpus)


def _layers_with_output(header: Mapping[str, Any]) -> int:
    """The number of layers by the header of a file, with the output layer."""
    return max(_number(header, "block_count", 1), 1) + 1


def _cache_bytes(header: Mapping[str, Any]) -> float:
    """The bytes that a token takes in one layer of an f16 KV cache, by the header of a file."""
    n_heads = max(_number(header, "attention.head_count", 1), 1)
    width = _number(header, "attention.key_length", _number(header, "embedding_length", 0) // n_heads)
    return 4.0 * _number(header, "attention.head_count_kv", n_heads) * width


def _number(header: Mapping[str, Any], name: str, otherwise: int) -> int:
    value = header.get(f"{header.get('general.architecture', '')}.{name}")  # None for an array, which is not read.
    return value if isinstance(value, int) else otherwise


def weight_bytes(path: str) -> int:
    """The bytes of a model in all its parts, or of an adapter; 0 if the file cannot be read."""
    return ModelFile(Path(path), "").n_bytes


def projector_bytes(path: str) -> int:
    """The memory of a projector: its weights, and a fifth more for what it computes."""
    return weight_bytes(path) * 6 // 5


def _check(n_bytes: float, n_free: int, where: str, advice: str) -> None:
    if n_bytes > n_free:
        sizes = f"the weights take {gigabytes(n_bytes)}, and {gigabytes(n_free)} are free{where}"
        raise NotEnoughMemory(f"{sizes}: {advice}", n_bytes - n_free)


def set_placement(params: Any, options: LoadOptions) -> list[Any]:
    """Set the fields of llama.cpp's model parameters. Keep the returned objects as long as the model."""
    params.n_gpu_layers = options.n_gpu_layers
    params.use_extra_bufts = options.use_extra_bufts
    params.load_mode = _LOAD_MODES[options.use_mmap, options.use_mlock]
    params.main_gpu = options.main_gpu
    if options.split_mode is not None:
        params.split_mode = _SPLIT_MODES[options.split_mode]
    kept: list[Any] = []
    if options.tensor_split:
        n_devices = int(L.llama_max_devices())
        if len(options.tensor_split) > n_devices:
            n_shares = len(options.tensor_split)
            raise EngineError(f"--tensor-split has {n_shares} shares, and llama.cpp can use {n_devices} devices")
        kept.append((ctypes.c_float * n_devices)(*options.tensor_split))
        params.tensor_split = kept[0]
    if options.cpu_moe:
        buffer = ggml("ggml_backend_cpu_buffer_type", ctypes.c_void_p)()
        # An array of (pattern, type of buffer), which ends with an empty pair.
        overrides = (ctypes.c_void_p * 4)(ctypes.cast(ctypes.c_char_p(_EXPERTS), ctypes.c_void_p), buffer)
        kept += [overrides, _EXPERTS]
        params.tensor_buft_overrides = ctypes.addressof(overrides)
    return kept
