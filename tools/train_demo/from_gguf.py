"""Go on from a file that this program exported: its weights and its vocabulary.

A checkpoint goes on exactly; it is large and stays on the machine that wrote it. The exported file
is always at hand, and its weights differ from the checkpoint's by their rounding to eight bits only.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch

from .config import ModelConfig, TrainConfig
from .tokenizer import Tokenizer
from .training import Trainer


def _weights(reader: gguf.GGUFReader) -> dict[str, torch.Tensor]:
    return {
        tensor.name: torch.from_numpy(np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type)))
        for tensor in reader.tensors
    }


def _tokenizer(reader: gguf.GGUFReader) -> Tokenizer:
    merges = [merge.split(" ") for merge in reader.fields["tokenizer.ggml.merges"].contents()]
    return Tokenizer(reader.fields["tokenizer.ggml.tokens"].contents(), [(a, b) for a, b in merges])


@torch.no_grad()
def from_gguf(path: Path, model_config: ModelConfig, config: TrainConfig) -> Trainer:
    """A trainer with the file's weights, which need no warm start.

    Raises:
        SystemExit: the file's sizes are not those of `model_config`.
    """
    reader = gguf.GGUFReader(path)
    trainer = Trainer(model_config, config, _tokenizer(reader))
    model, weights = trainer.model, _weights(reader)

    def joined(*names: str) -> torch.Tensor:
        layers = range(model_config.layers)
        return torch.stack([torch.cat([weights[f"blk.{i}.{name}.weight"] for name in names]) for i in layers])

    try:
        for parameter, values in (
            (model.embedding, weights["token_embd.weight"]),
            (model.qkv, joined("attn_q", "attn_k", "attn_v")),
            (model.attention_out, joined("attn_output")),
            (model.gate_up, joined("ffn_gate", "ffn_up")),
            (model.down, joined("ffn_down")),
            (model.attention_norm, joined("attn_norm")),
            (model.feed_forward_norm, joined("ffn_norm")),
            (model.output_norm, weights["output_norm.weight"]),
        ):
            parameter.copy_(values.view(parameter.shape))
    except (KeyError, RuntimeError) as error:
        raise SystemExit(f"{path} does not hold a model of the sizes in config.py: {error}") from None
    trainer.warm = True
    return trainer
