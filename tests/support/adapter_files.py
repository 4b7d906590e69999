"""Writes LoRA adapters with random weights."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np

# The matrices that an adapter changes, by the ends of their names.
ADAPTED = ("attn_q.weight", "attn_v.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight")


def write_adapter(
    path: Path, model: str, seed: int, *, rank: int = 4, n_more: int = 0, architecture: str = "", **texts: str
) -> str:
    """An adapter for a model, which changes its logits by several units; returns its path.

    Args:
        n_more: How much wider its matrices are than those of the model.
        architecture: That in its header; "": that of the model.
        texts: Further texts of its header, with underscores for dots.
    """
    reader = gguf.GGUFReader(model)
    chance = np.random.default_rng(seed)
    own = bytes(reader.fields["general.architecture"].parts[-1]).decode()
    writer = gguf.GGUFWriter(str(path), architecture or own)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 16.0)
    for name, text in texts.items():
        writer.add_string(name.replace("_", "."), text)

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(name, (chance.standard_normal(shape) * shape[1] ** -0.5).astype(np.float32))

    tensors: list[Any] = [tensor for tensor in reader.tensors if tensor.name.endswith(ADAPTED)]
    for tensor in tensors:
        n_in, n_out = map(int, tensor.shape[:2])
        add(f"{tensor.name}.lora_a", rank, n_in + n_more)
        add(f"{tensor.name}.lora_b", n_out, rank)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


if __name__ == "__main__":  # python -m tests.support.adapter_files FILE MODEL SEED
    print(write_adapter(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), rank=16))
