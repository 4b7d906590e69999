"""Writes LoRA adapters with random weights."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.support.media_files import write_gguf

# The matrices that an adapter changes, by the ends of their names.
ADAPTED = ("attn_q.weight", "attn_v.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight")


def write_adapter(
    path: Path, model: str, seed: int, *, rank: int = 4, n_more: int = 0, architecture: str = "llama"
) -> str:
    """An adapter for a model, which changes its logits by several units; returns its path. Its matrices are `n_more`
    wider than those of the model."""
    chance = np.random.default_rng(seed)
    tensors: dict[str, Any] = {}
    for tensor in gguf.GGUFReader(model).tensors:
        if tensor.name.endswith(ADAPTED):
            n_in, n_out = map(int, tensor.shape[:2])
            for letter, shape in (("a", (rank, n_in + n_more)), ("b", (n_out, rank))):
                weights = chance.standard_normal(shape) * shape[1] ** -0.5
                tensors[f"{tensor.name}.lora_{letter}"] = weights.astype(np.float32)
    values = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": 16.0}
    write_gguf(path, architecture, values, tensors)
    return str(path)


if __name__ == "__main__":  # python -m tests.support.adapter_files FILE MODEL SEED
    print(write_adapter(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), rank=16))
