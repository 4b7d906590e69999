"""Writes the trained weights as a GGUF file: quantized matrices, F32 norms, vocabulary, chat template."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch

from .config import MAX_FILE_BYTES
from .template import template_source
from .tokenizer import CONTROL_TOKENS, SPECIAL_TOKENS, Tokenizer
from .training import Trainer

NAME = "localchat demo"
DESCRIPTION = "A tiny chat model to test and show localchat, trained from nothing on generated text."
# The temperature that the file recommends. Programs that read GGUF files use it if the user sets none.
TEMPERATURE = 0.0
# llama.cpp computes these types in the same way for any batch; with k-quants the text of a sequence would depend on the
# rest of the batch. Eight bits are for the embedding, which is also the output matrix, and for the output of attention:
# this fills the file to its limit.
_FIVE_BITS = gguf.GGMLQuantizationType.Q5_1
_EIGHT_BITS = gguf.GGMLQuantizationType.Q8_0


def _token_type(token: str) -> gguf.TokenType:
    if token in CONTROL_TOKENS:
        return gguf.TokenType.CONTROL
    if token in SPECIAL_TOKENS:
        return gguf.TokenType.USER_DEFINED
    return gguf.TokenType.UNUSED if token.startswith("<|unused") else gguf.TokenType.NORMAL


def _add_metadata(writer: gguf.GGUFWriter, trainer: Trainer) -> None:
    c = trainer.model_config
    writer.add_name(NAME)
    writer.add_description(DESCRIPTION)
    writer.add_license("MIT")
    writer.add_context_length(c.context)
    writer.add_embedding_length(c.width)
    writer.add_block_count(c.layers)
    writer.add_feed_forward_length(c.feed_forward)
    writer.add_head_count(c.heads)
    writer.add_head_count_kv(c.kv_heads)
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_rope_dimension_count(c.head_dim)
    writer.add_rope_freq_base(c.rope_base)
    writer.add_layer_norm_rms_eps(c.norm_eps)
    writer.add_vocab_size(c.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q5_1)
    writer.add_float32("general.sampling.temp", TEMPERATURE)


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokenizer.tokens)
    writer.add_token_types([_token_type(token) for token in tokenizer.tokens])
    writer.add_token_merges([f"{a} {b}" for a, b in tokenizer.merges])
    writer.add_eos_token_id(tokenizer.ids["<|im_end|>"])
    writer.add_eot_token_id(tokenizer.ids["<|im_end|>"])
    writer.add_bos_token_id(tokenizer.ids["<|endoftext|>"])
    writer.add_pad_token_id(tokenizer.ids["<|endoftext|>"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(template_source())


def _add_weights(writer: gguf.GGUFWriter, trainer: Trainer) -> None:
    c, model = trainer.model_config, trainer.model
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim

    def matrix(name: str, tensor: torch.Tensor, kind: gguf.GGMLQuantizationType) -> None:
        array = np.ascontiguousarray(tensor.detach().float().cpu().numpy())
        writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)

    def vector(name: str, tensor: torch.Tensor) -> None:
        writer.add_tensor(name, np.ascontiguousarray(tensor.detach().float().cpu().numpy()))

    matrix("token_embd.weight", model.embedding, _EIGHT_BITS)
    vector("output_norm.weight", model.output_norm)
    for i in range(c.layers):
        block = f"blk.{i}"
        for name, part in zip("qkv", model.qkv[i].split((q, kv, kv))):
            matrix(f"{block}.attn_{name}.weight", part, _FIVE_BITS)
        matrix(f"{block}.attn_output.weight", model.attention_out[i], _EIGHT_BITS)
        for name, part in zip(("gate", "up"), model.gate_up[i].chunk(2)):
            matrix(f"{block}.ffn_{name}.weight", part, _FIVE_BITS)
        matrix(f"{block}.ffn_down.weight", model.down[i], _FIVE_BITS)
        vector(f"{block}.attn_norm.weight", model.attention_norm[i])
        vector(f"{block}.ffn_norm.weight", model.feed_forward_norm[i])


def export(trainer: Trainer, path: Path) -> None:
    """Write the file. An interrupted write leaves the earlier file unchanged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    writer = gguf.GGUFWriter(unfinished, "llama")
    _add_metadata(writer, trainer)
    _add_tokenizer(writer, trainer.tokenizer)
    _add_weights(writer, trainer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    size = unfinished.stat().st_size
    if size > MAX_FILE_BYTES:
        raise SystemExit(f"the file has {size} bytes, at most {MAX_FILE_BYTES} are allowed: make ModelConfig smaller")
    unfinished.replace(path)
