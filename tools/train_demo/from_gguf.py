"""Continues the training from an exported file: its weights and its vocabulary.

A checkpoint continues exactly, but it is large and stays on the machine that wrote it. The weights of the exported file
are the rounded weights of the checkpoint. A model with more layers than the file begins with copies of the file's
layers, and its output is the same as that of the file.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch

from .config import ModelConfig, TrainConfig
from .model import DemoModel
from .tokenizer import Tokenizer
from .training import Trainer

# The factor by which the values of a silent layer are made larger; see `_silence`.
_SILENT_VALUES = 3.0
# The factor by which averaged weights make the logits larger. The loss on new dialogues is the same with it, and wrong
# tokens have a tenth less of the probability.
_LOGITS = 1.15


def _weights(reader: gguf.GGUFReader) -> dict[str, torch.Tensor]:
    return {
        tensor.name: torch.from_numpy(np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type)))
        for tensor in reader.tensors
    }


def _tokenizer(reader: gguf.GGUFReader) -> Tokenizer:
    merges = [merge.split(" ") for merge in reader.fields["tokenizer.ggml.merges"].contents()]
    return Tokenizer(reader.fields["tokenizer.ggml.tokens"].contents(), [(a, b) for a, b in merges])


def _spread(n_old: int, n_new: int) -> tuple[list[int], list[bool]]:
    """For each layer of a deeper model the layer that it copies, and whether it is the second copy of that layer.

    Second copies begin silent, so that the output of the model is that of the file.
    """
    sources = [round(i * (n_old - 1) / max(1, n_new - 1)) for i in range(n_new)]
    return sources, [i > 0 and sources[i] == sources[i - 1] for i in range(n_new)]


def _silence(model: DemoModel, layers: list[bool]) -> None:
    """Make the layers add nothing to the residual stream, by output matrices of zero.

    All updates have the same size, so the inputs of these matrices are made larger: the layers then contribute sooner.
    """
    c = model.config
    model.attention_out[layers] = 0
    model.down[layers] = 0
    model.qkv[layers, -c.kv_heads * c.head_dim :] *= _SILENT_VALUES
    model.gate_up[layers, c.feed_forward :] *= _SILENT_VALUES


@torch.no_grad()
def from_gguf(path: Path, model_config: ModelConfig, config: TrainConfig) -> Trainer:
    """A trainer with the file's weights, which need no warm start.

    Raises:
        SystemExit: The sizes of the file are not those of `model_config`.
    """
    reader = gguf.GGUFReader(path)
    trainer = Trainer(model_config, config, _tokenizer(reader))
    model, weights = trainer.model, _weights(reader)

    n_layers = int(reader.fields["llama.block_count"].contents())
    if n_layers > model_config.layers:
        raise SystemExit(f"{path} has {n_layers} layers, config.py {model_config.layers}: it can only get more")
    sources, is_new = _spread(n_layers, model_config.layers)

    def joined(*names: str) -> torch.Tensor:
        layers = [torch.cat([weights[f"blk.{i}.{name}.weight"] for name in names]) for i in range(n_layers)]
        return torch.stack([layers[i] for i in sources])

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
        _silence(model, is_new)
    except (KeyError, RuntimeError) as error:
        raise SystemExit(f"{path} does not have a model of the sizes in config.py: {error}") from None
    trainer.warm = True
    return trainer


@torch.no_grad()
def keep(trainer: Trainer, path: Path, share: float) -> None:
    """Average the weights of the trainer with those of the file: `share` of the file, 1 - `share` of the trainer.

    The average is often better than both (Wortsman et al. 2022, Robust fine-tuning of zero-shot models). Its logits are
    too small, so they are made larger.
    """
    before = from_gguf(path, trainer.model_config, trainer.config).model
    for weights, old in zip(trainer.model.parameters(), before.parameters()):
        weights.lerp_(old, share)
    trainer.model.output_norm *= _LOGITS
