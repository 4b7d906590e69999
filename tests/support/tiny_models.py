"""Writes small models with random weights: embedding models, rerankers, sliding windows, recurrent models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from bench import model as random_model

WIDTH, N_FF, N_HEADS, N_CTX = 32, 64, 2, 64
RECURRENT_WIDTH, N_RECURRENT_VOCAB = 64, 2000
WORDS = ["a", "b", "cat", "dog", "sat", "on", "the", "mat", "what", "is"]
QWEN_PAIR = "<|im_start|>Query: {query}\nDocument: {document}<|im_end|>"
# llama.cpp marks the beginning of a word in a WordPiece vocabulary.
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"▁{word}" for word in WORDS)]


def _close(writer: gguf.GGUFWriter, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Write the tensors with random weights, and norms that change nothing."""
    chance = np.random.default_rng(1)
    for name, shape in shapes.items():
        if name.endswith("ssm_a"):  # Negative values, else the state would grow without limit.
            weights = -np.tile(np.arange(1, shape[1] + 1, dtype=np.float32), (shape[0], 1))
        elif "norm" in name or name.endswith("ssm_d"):
            weights = np.full(shape, not name.endswith("bias"), np.float32)
        else:
            weights = (chance.standard_normal(shape) / math.sqrt(shape[-1])).astype(np.float32)
        writer.add_tensor(name, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_vocabulary(writer: gguf.GGUFWriter, model: str, tokens: Sequence[str], types: Sequence[Any]) -> None:
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writer.add_token_types(types)


def _small(path: Path, architecture: str, n_parameters: int) -> tuple[gguf.GGUFWriter, random_model.Shape]:
    """A writer of a file that has its sizes and its vocabulary, and the shape of the model."""
    shape = random_model.shape_for(n_parameters, n_vocab=2000, n_ctx=2048)
    writer = gguf.GGUFWriter(str(path), architecture)
    random_model.write_sizes(writer, shape)
    random_model.write_vocabulary(writer, shape.n_vocab)
    writer.add_key_length(random_model.HEAD_SIZE)
    writer.add_value_length(random_model.HEAD_SIZE)
    return writer, shape


def _tensors(shape: random_model.Shape, norms: Mapping[str, int] | None = None) -> dict[str, tuple[int, ...]]:
    """The tensors of a model, with further norms in each layer, by their widths."""
    sizes = {name: (columns,) if rows == 1 else (rows, columns) for name, rows, columns in random_model.tensors(shape)}
    layers = range(shape.n_layers)
    return {**sizes, **{f"blk.{i}.{name}.weight": (n,) for i in layers for name, n in (norms or {}).items()}}


QK_NORMS = {"attn_q_norm": random_model.HEAD_SIZE, "attn_k_norm": random_model.HEAD_SIZE}


def write_bert(path: Path, pooling: gguf.PoolingType) -> None:
    """An encoder of a few kilobytes; with the pooling RANK a reranker."""
    writer = gguf.GGUFWriter(str(path), "bert")
    writer.add_name("tiny bert")
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEADS)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(pooling)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    types = [gguf.TokenType.CONTROL] * 4 + [gguf.TokenType.NORMAL] * len(WORDS)
    _add_vocabulary(writer, "bert", TOKENS, types)
    writer.add_tokenizer_pre("jina-v2-en")
    writer.add_token_type_count(2)
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_sep_token_id(3)
    writer.add_eos_token_id(3)
    square = (WIDTH, WIDTH)
    block: dict[str, tuple[int, ...]] = {f"attn_{name}": square for name in ("q", "k", "v", "output")}
    block.update(attn_output_norm=(WIDTH,), ffn_up=(N_FF, WIDTH), ffn_down=(WIDTH, N_FF), layer_output_norm=(WIDTH,))
    layers = {"token_embd_norm": (WIDTH,), **{f"blk.0.{name}": shape for name, shape in block.items()}}
    if pooling == gguf.PoolingType.RANK:
        layers.update({"cls": square, "cls.output": (1, WIDTH)})
    sizes = {"token_embd": (len(TOKENS), WIDTH), "position_embd": (N_CTX, WIDTH), "token_types": (2, WIDTH), **layers}
    biases = {f"{name}.bias": shape[:1] for name, shape in layers.items()}
    _close(writer, {**{f"{name}.weight": shape for name, shape in sizes.items()}, **biases})


def write_qwen_reranker(path: Path) -> None:
    """A decoder that scores pairs by the last token."""
    writer, shape = _small(path, "qwen3", 200_000)
    writer.add_pooling_type(gguf.PoolingType.RANK)
    writer.add_array("qwen3.classifier.output_labels", ["yes", "no"])
    writer.add_string("tokenizer.chat_template.rerank", QWEN_PAIR)
    _close(writer, {**_tensors(shape, QK_NORMS), "cls.output.weight": (2, shape.width)})


def write_sliding(path: Path, n_window: int) -> None:
    """A model with a sliding window of `n_window` tokens in every layer."""
    writer, shape = _small(path, "gemma3", 300_000)
    writer.add_sliding_window(n_window)
    _close(writer, _tensors(shape, {**QK_NORMS, "post_attention_norm": shape.width, "post_ffw_norm": shape.width}))


def write_mrope(path: Path) -> None:
    """A model whose positions have four sections (M-RoPE), as those of Qwen-VL."""
    writer, shape = _small(path, "qwen2vl", 300_000)
    writer.add_rope_dimension_sections([8, 12, 12, 0])
    writer.add_rope_freq_base(1e6)
    tensors, n_kv = _tensors(shape), shape.n_kv_heads * random_model.HEAD_SIZE
    widths = {"attn_q": shape.width, "attn_k": n_kv, "attn_v": n_kv}
    biases = {f"blk.{i}.{name}.bias": (n,) for i in range(shape.n_layers) for name, n in widths.items()}
    _close(writer, {**tensors, **biases})


def write_fim(path: Path) -> dict[str, int]:
    """A model with FIM tokens; returns their ids by llama.cpp's names."""
    writer, shape = _small(path, "llama", 200_000)
    tokens = {name: shape.n_vocab - 10 + n for n, name in enumerate(("pre", "suf", "mid", "sep", "rep"))}
    for name, token in tokens.items():
        writer.add_uint32(f"tokenizer.ggml.fim_{name}_token_id", token)
    _close(writer, _tensors(shape))
    return tokens


def write_sentencepiece(path: Path) -> None:
    """A vocabulary without weights, of the kind that puts a space before every text."""
    words = ["▁", "▁<", "▁{", "▁see", *map(chr, range(33, 127))]
    others = ["<unk>", "<s>", "</s>", "[CALL]", *(f"<0x{byte:02X}>" for byte in range(256))]
    writer = gguf.GGUFWriter(str(path), "llama")
    types = [gguf.TokenType.UNKNOWN] + [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.BYTE] * 256
    _add_vocabulary(writer, "llama", [*others, *words], [*types, *[gguf.TokenType.NORMAL] * len(words)])
    writer.add_token_scores([0.0] * len(others) + [float(len(word)) for word in words])
    _close(writer, {})


def write_mamba(path: Path) -> None:
    """A recurrent model, whose state cannot be truncated."""
    n_layers, n_inner, n_state, n_rank, n_conv = 2, 2 * RECURRENT_WIDTH, 16, 4, 4
    writer = gguf.GGUFWriter(str(path), "mamba")
    writer.add_name("tiny mamba")
    writer.add_context_length(2048)
    writer.add_embedding_length(RECURRENT_WIDTH)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_block_count(n_layers)
    writer.add_ssm_conv_kernel(n_conv)
    writer.add_ssm_inner_size(n_inner)
    writer.add_ssm_state_size(n_state)
    writer.add_ssm_time_step_rank(n_rank)
    writer.add_layer_norm_rms_eps(1e-5)
    random_model.write_vocabulary(writer, N_RECURRENT_VOCAB)
    block: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (RECURRENT_WIDTH,),
        "ssm_in.weight": (2 * n_inner, RECURRENT_WIDTH),
        "ssm_conv1d.weight": (n_inner, n_conv),
        "ssm_conv1d.bias": (n_inner,),
        "ssm_x.weight": (n_rank + 2 * n_state, n_inner),
        "ssm_dt.weight": (n_inner, n_rank),
        "ssm_dt.bias": (n_inner,),
        "ssm_a": (n_inner, n_state),
        "ssm_d": (n_inner,),
        "ssm_out.weight": (RECURRENT_WIDTH, n_inner),
    }
    layers = {f"blk.{i}.{name}": shape for i in range(n_layers) for name, shape in block.items()}
    vocabulary = {"token_embd.weight": (N_RECURRENT_VOCAB, RECURRENT_WIDTH), "output_norm.weight": (RECURRENT_WIDTH,)}
    _close(writer, {**vocabulary, **layers})
