"""The memory that the KV cache and the buffers of a model take, on the machine and on its GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...models.gguf import read_header
from ..context_size import CacheMemory
from ..memory import FreeMemory, free_memory
from ..values import LoadOptions, Resources
from .devices import Device, devices, supports_gpu, uses_gpu
from .library import L

# Keys and values have 16 bits each.
_VALUE_BYTES = 2
# The buffers of one pass through the layers have about this many vectors of 32-bit numbers for each row.
_WIDTHS_PER_ROW = 8


def cache_memories(
    model: Any,
    path: str,
    metadata: Mapping[str, str],
    options: LoadOptions,
    free: FreeMemory | None,
    *,
    n_rows: int,
    n_outputs: int,
) -> list[CacheMemory]:
    """The memory in which the KV cache of a loaded model is allocated: that of the machine, of the GPUs, or both.

    Args:
        free: The free memory of the machine before the model was loaded.
        n_rows: The number of tokens of one pass through the layers.
        n_outputs: The number of tokens of a pass that have logits.
    """
    used_gpus, n_on_gpu, n_layers = _layers_on_gpus(model, options)
    gpu_share = n_on_gpu / n_layers
    kv_bytes = kv_bytes_per_token(model, path, metadata)
    # The attention mask has 16 bits for each row and token, in each memory.
    mask_bytes = n_rows * _VALUE_BYTES if kv_bytes else 0
    pass_bytes = n_rows * L.llama_model_n_embd(model) * _WIDTHS_PER_ROW * 4
    logits_bytes = n_outputs * L.llama_vocab_n_tokens(L.llama_model_get_vocab(model)) * 4
    state_bytes = n_outputs * recurrent_state_bytes(model, metadata)  # A state for each sequence.
    memories = []
    if gpu_share < 1:
        weights = int(L.llama_model_size(model) * (1 - gpu_share))
        n_free = None if free is None else max(free.n_bytes - weights, 0)
        limit = f", {free.limit}" if free is not None and free.limit else ""
        note = f"of memory are free beside the weights{limit}"
        fixed = pass_bytes + 2 * logits_bytes + int(state_bytes * (1 - gpu_share))
        memories.append(CacheMemory(n_free, kv_bytes * (1 - gpu_share) + mask_bytes, fixed, note))
    if gpu_share:
        # The free memory excludes the weights, which are loaded. Some drivers report 0, which means that it is unknown.
        n_free = sum(device.n_free for device in used_gpus) or None
        fixed = pass_bytes + logits_bytes + int(state_bytes * gpu_share)
        note = f"are free on {', '.join(device.name for device in used_gpus)} beside the weights"
        memories.append(CacheMemory(n_free, kv_bytes * gpu_share + mask_bytes, fixed, note, is_gpu=True))
    return memories


def resources_of(
    model: Any, options: LoadOptions, memories: Sequence[CacheMemory], n_cells: int, n_threads: int
) -> Resources:
    """The device, threads and memory of a loaded model with a KV cache of `n_cells` tokens."""
    used_gpus, n_on_gpu, n_layers = _layers_on_gpus(model, options)
    names = [f"{device.name} ({device.description})" for device in used_gpus]
    cpu = next((f"CPU ({device.description})" for device in devices() if device.kind == "CPU"), "CPU")
    if not n_on_gpu:
        device = cpu if supports_gpu() else f"{cpu}; llama.cpp is built for the CPU alone"
    elif n_on_gpu == n_layers:
        device = f"{', '.join(names)}, all {n_layers} layers"
    else:
        device = f"{', '.join(names)}, {n_on_gpu} of {n_layers} layers; {cpu} for the others"
    n_bytes = sum(int(memory.per_token * n_cells) + memory.fixed for memory in memories)
    return Resources(device, n_on_gpu, n_threads, n_bytes, free_memory(), options.use_extra_bufts)


def _layers_on_gpus(model: Any, options: LoadOptions) -> tuple[list[Device], int, int]:
    """The GPUs, the number of layers on them, and the number of all layers."""
    n_layers = max(L.llama_model_n_layer(model), 1)
    gpus = [device for device in devices() if device.kind == "GPU"] if uses_gpu(options) else []
    n_on_gpu = n_layers if options.n_gpu_layers < 0 else min(options.n_gpu_layers, n_layers)
    return gpus, n_on_gpu if gpus else 0, n_layers


def kv_bytes_per_token(model: Any, path: str, metadata: Mapping[str, str]) -> float:
    """Bytes of the keys and values of a token, in all attention layers."""
    if L.llama_model_is_recurrent(model):
        return 0
    prefix = metadata.get("general.architecture", "")
    n_kv_heads: float = L.llama_model_n_layer(model) * L.llama_model_n_head_kv(model)
    if L.llama_model_is_hybrid(model):
        # llama.cpp reports only the heads of the first layer.
        per_layer = read_header(path).metadata.get(f"{prefix}.attention.head_count_kv")
        n_kv_heads = sum(per_layer) if isinstance(per_layer, tuple) else n_kv_heads
        # In other models one of every `full_attention_interval` layers has attention.
        n_kv_heads /= int(metadata.get(f"{prefix}.full_attention_interval", 1))
    head_size = L.llama_model_n_embd(model) // max(L.llama_model_n_head(model), 1)
    sizes = (int(metadata.get(f"{prefix}.attention.{name}_length", head_size)) for name in ("key", "value"))
    return n_kv_heads * sum(sizes) * _VALUE_BYTES


def recurrent_state_bytes(model: Any, metadata: Mapping[str, str]) -> int:
    """Bytes of the state of a sequence in the layers of a state space model, which have no KV cache.

    All layers of a hybrid model are counted, which is a little too much.
    """
    if not (L.llama_model_is_recurrent(model) or L.llama_model_is_hybrid(model)):
        return 0
    prefix = metadata.get("general.architecture", "")
    names = ("conv_kernel", "inner_size", "state_size", "group_count")
    n_kernel, n_inner, n_state, n_groups = (int(metadata.get(f"{prefix}.ssm.{name}", 0)) for name in names)
    n_convolved = max(n_kernel - 1, 0) * (n_inner + 2 * n_groups * n_state)
    n_layers: int = L.llama_model_n_layer(model)
    return n_layers * (n_convolved + n_inner * n_state) * 4
