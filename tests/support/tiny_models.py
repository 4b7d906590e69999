"""Writes small models with random weights: of several architectures, projectors, and LoRA adapters."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np

from bench import model as random_model

Values = Mapping[str, Any]
Shapes = Mapping[str, tuple[int, ...]]
WIDTH, N_FF, N_CTX = 32, 64, 64
WORDS = ["a", "b", "cat", "dog", "sat", "on", "the", "mat", "what", "is"]
QWEN_PAIR = "<|im_start|>Query: {query}\nDocument: {document}<|im_end|>"
# llama.cpp marks the beginning of a word in a WordPiece vocabulary.
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"▁{word}" for word in WORDS)]
CONTROL, NORMAL = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL


def write_gguf(path: Path, architecture: str, values: Values, tensors: Values, n_vocab: int = 0) -> None:
    """Write a file. With `n_vocab` it has a vocabulary of so many tokens and a chat template."""
    writer = gguf.GGUFWriter(str(path), architecture)
    add: dict[type, Any] = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    for name, value in values.items():
        if isinstance(value, Sequence) and not isinstance(value, str):
            writer.add_array(name, value)
        else:
            add.get(type(value), writer.add_string)(name, value)
    if n_vocab:
        random_model.write_vocabulary(writer, n_vocab)
    for name, weights in tensors.items():
        writer.add_tensor(name, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _prefixed(prefix: str, values: Values) -> dict[str, Any]:
    return {f"{prefix}.{name}": value for name, value in values.items()}


def _in_layers(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    return {name: shape for i in range(SHAPE.n_layers) for name, shape in _prefixed(f"blk.{i}", shapes).items()}


def _random(shapes: Shapes) -> dict[str, Any]:
    """Tensors with random weights, and norms that change nothing."""
    chance = np.random.default_rng(1)
    tensors = {}
    for name, shape in shapes.items():
        if name.endswith("ssm_a"):  # Negative values, else the state would grow without limit.
            tensors[name] = -np.tile(np.arange(1, shape[1] + 1, dtype=np.float32), (shape[0], 1))
        elif "norm" in name or "ln" in name or name.endswith("ssm_d"):
            tensors[name] = np.full(shape, not name.endswith("bias"), np.float32)
        else:
            is_half = name.startswith("a.conv1d") and name.endswith("weight")
            weights = chance.standard_normal(shape) / np.sqrt(shape[-1])
            tensors[name] = weights.astype(np.float16 if is_half else np.float32)
    return tensors


# --- decoders ---

SHAPE = random_model.shape_for(200_000, n_vocab=2000, n_ctx=2048)
HEAD_SIZE = random_model.HEAD_SIZE
SIZES = {"context_length": SHAPE.n_ctx, "embedding_length": SHAPE.width, "block_count": SHAPE.n_layers}
QK_NORMS = {f"attn_{name}_norm.weight": (HEAD_SIZE,) for name in "qk"}


def _write_decoder(path: Path, architecture: str, values: Values, shapes: Shapes) -> None:
    """A model of SHAPE with further values and tensors."""
    attention = {
        "head_count": SHAPE.n_heads, "head_count_kv": SHAPE.n_kv_heads, "layer_norm_rms_epsilon": 1e-5,
        "key_length": HEAD_SIZE, "value_length": HEAD_SIZE,
    }  # fmt: skip
    sizes = {**SIZES, "feed_forward_length": SHAPE.n_ff, "rope.dimension_count": HEAD_SIZE}
    own = _prefixed(architecture, {**sizes, **_prefixed("attention", attention)})
    usual = {name: (columns,) if rows == 1 else (rows, columns) for name, rows, columns in random_model.tensors(SHAPE)}
    write_gguf(path, architecture, {**own, **values}, _random({**usual, **shapes}), SHAPE.n_vocab)


def write_qwen_reranker(path: Path) -> None:
    """A decoder that scores pairs by the last token."""
    values = {
        "qwen3.pooling_type": int(gguf.PoolingType.RANK), "qwen3.classifier.output_labels": ["yes", "no"],
        "tokenizer.chat_template.rerank": QWEN_PAIR,
    }  # fmt: skip
    _write_decoder(path, "qwen3", values, {**_in_layers(QK_NORMS), "cls.output.weight": (2, SHAPE.width)})


def write_sliding(path: Path, n_window: int) -> None:
    """A model with a sliding window of `n_window` tokens in every layer."""
    norms = {f"post_{name}_norm.weight": (SHAPE.width,) for name in ("attention", "ffw")}
    _write_decoder(path, "gemma3", {"gemma3.attention.sliding_window": n_window}, _in_layers({**QK_NORMS, **norms}))


def write_mrope(path: Path) -> None:
    """A model whose positions have four sections (M-RoPE), as those of Qwen-VL."""
    n_kv = SHAPE.n_kv_heads * HEAD_SIZE
    biases = {"attn_q.bias": (SHAPE.width,), "attn_k.bias": (n_kv,), "attn_v.bias": (n_kv,)}
    rope = {"qwen2vl.rope.dimension_sections": [8, 12, 12, 0], "qwen2vl.rope.freq_base": 1e6}
    _write_decoder(path, "qwen2vl", rope, _in_layers(biases))


def write_fim(path: Path) -> dict[str, int]:
    """A model with FIM tokens; returns their ids by llama.cpp's names."""
    tokens = {name: SHAPE.n_vocab - 10 + n for n, name in enumerate(("pre", "suf", "mid", "sep", "rep"))}
    _write_decoder(path, "llama", {f"tokenizer.ggml.fim_{name}_token_id": token for name, token in tokens.items()}, {})
    return tokens


# --- other models ---


def write_bert(path: Path, pooling: gguf.PoolingType) -> None:
    """An encoder of a few kilobytes; with the pooling RANK a reranker."""
    sizes = {
        "context_length": N_CTX, "embedding_length": WIDTH, "block_count": 1, "feed_forward_length": N_FF,
        "attention.head_count": 2, "attention.layer_norm_epsilon": 1e-12, "attention.causal": False,
        "pooling_type": int(pooling),
    }  # fmt: skip
    vocabulary = {
        "model": "bert", "pre": "jina-v2-en", "tokens": TOKENS, "token_type": [CONTROL] * 4 + [NORMAL] * len(WORDS),
        "token_type_count": 2, "padding_token_id": 0, "unknown_token_id": 1, "bos_token_id": 2,
        "seperator_token_id": 3, "eos_token_id": 3,
    }  # fmt: skip
    square = (WIDTH, WIDTH)
    block: dict[str, tuple[int, ...]] = {f"attn_{name}": square for name in ("q", "k", "v", "output")}
    block.update(attn_output_norm=(WIDTH,), ffn_up=(N_FF, WIDTH), ffn_down=(WIDTH, N_FF), layer_output_norm=(WIDTH,))
    layers = {"token_embd_norm": (WIDTH,), **_prefixed("blk.0", block)}
    if pooling == gguf.PoolingType.RANK:
        layers.update({"cls": square, "cls.output": (1, WIDTH)})
    shapes = {"token_embd": (len(TOKENS), WIDTH), "position_embd": (N_CTX, WIDTH), "token_types": (2, WIDTH), **layers}
    weights = {f"{name}.weight": shape for name, shape in shapes.items()}
    biases = {f"{name}.bias": shape[:1] for name, shape in layers.items()}
    values = {**_prefixed("bert", sizes), **_prefixed("tokenizer.ggml", vocabulary)}
    write_gguf(path, "bert", values, _random({**weights, **biases}))


def write_sentencepiece(path: Path) -> None:
    """A vocabulary without weights, of the kind that puts a space before every text."""
    words = ["▁", "▁<", "▁{", "▁see", *map(chr, range(33, 127))]
    others = ["<unk>", "<s>", "</s>", "[CALL]", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [gguf.TokenType.UNKNOWN] + [CONTROL] * 3 + [gguf.TokenType.BYTE] * 256 + [NORMAL] * len(words)
    scores = [0.0] * len(others) + [float(len(word)) for word in words]
    vocabulary = {"model": "llama", "tokens": [*others, *words], "token_type": types, "scores": scores}
    write_gguf(path, "llama", _prefixed("tokenizer.ggml", vocabulary), {})


def write_mamba(path: Path) -> None:
    """A recurrent model, whose state cannot be truncated."""
    width, n_inner, n_state, n_rank, n_conv = SHAPE.width, 2 * SHAPE.width, 16, 4, 4
    sizes = {
        **SIZES, "feed_forward_length": 0, "attention.head_count": 0, "attention.layer_norm_rms_epsilon": 1e-5,
        "ssm.conv_kernel": n_conv, "ssm.inner_size": n_inner, "ssm.state_size": n_state, "ssm.time_step_rank": n_rank,
    }  # fmt: skip
    layer = {
        "attn_norm.weight": (width,), "ssm_in.weight": (2 * n_inner, width), "ssm_conv1d.weight": (n_inner, n_conv),
        "ssm_conv1d.bias": (n_inner,), "ssm_x.weight": (n_rank + 2 * n_state, n_inner),
        "ssm_dt.weight": (n_inner, n_rank), "ssm_dt.bias": (n_inner,), "ssm_a": (n_inner, n_state), "ssm_d": (n_inner,),
        "ssm_out.weight": (width, n_inner),
    }  # fmt: skip
    shapes = {"token_embd.weight": (SHAPE.n_vocab, width), "output_norm.weight": (width,), **_in_layers(layer)}
    write_gguf(path, "mamba", _prefixed("mamba", sizes), _random(shapes), SHAPE.n_vocab)


# --- projectors ---


class Size(NamedTuple):
    """The sizes of an encoder, and the side of an image."""

    width: int
    n_ff: int
    n_layers: int
    n_heads: int
    image: int


SMALL, LARGE = Size(32, 48, 2, 2, 56), Size(768, 3072, 8, 12, 224)
# A sound has a cell for each `_STACKED` rows of its encoder.
_PATCH, _N_MEL, _STACKED = 14, 80, 10


def write_projector(path: Path, *kinds: str, width: int, size: Size = SMALL) -> None:
    """A projector with random weights for models of a width: of gemma3 (not causal), qwen2vl_merger (for M-RoPE) or
    ultravox (audio), or of an image and a sound."""
    n, n_ff = size.width, size.n_ff
    values: dict[str, Any] = {"clip.use_gelu": True, "general.type": "mmproj", "general.file_type": 0}
    # The matrices, those of them that have no bias, and tensors that are named as a whole.
    layers: dict[str, tuple[int, ...]] = {}
    without_bias: dict[str, tuple[int, ...]] = {}
    tensors: dict[str, tuple[int, ...]] = {}
    for kind in kinds:
        part = "audio" if kind == "ultravox" else "vision"
        sizes = {
            "embedding_length": n, "feed_forward_length": n_ff, "block_count": size.n_layers, "projection_dim": width,
            "attention.head_count": size.n_heads, "attention.layer_norm_epsilon": 1e-6,
        }  # fmt: skip
        values.update(_prefixed(f"clip.{part}", sizes))
        values["clip.projector_type" if len(kinds) == 1 else f"clip.{part}.projector_type"] = kind
        values[f"clip.has_{part}_encoder"] = True
        block: dict[str, tuple[int, ...]] = {f"attn_{name}": (n, n) for name in ("q", "v", "out")}
        block.update(ln1=(n,), ln2=(n,), ffn_up=(n_ff, n), ffn_down=(n, n_ff))
        for i in range(size.n_layers):
            layers.update(_prefixed(f"{part[0]}.blk.{i}", block))
            (without_bias if part == "audio" else layers)[f"{part[0]}.blk.{i}.attn_k"] = (n, n)
        layers[f"{part[0]}.post_ln"] = (n,)
        if part == "audio":
            values.update({"clip.audio.num_mel_bins": _N_MEL, "clip.audio.projector.stack_factor": _STACKED})
            n_stacked = _STACKED * n
            without_bias.update({"a.position_embd": (1500, n), "mm.a.norm_pre": (n_stacked,), "mm.a.norm_mid": (n_ff,)})
            without_bias.update({"mm.a.mlp.1": (2 * n_ff, n_stacked), "mm.a.mlp.2": (width, n_ff)})
            for i, n_in in ((1, _N_MEL), (2, n)):
                tensors.update({f"a.conv1d.{i}.weight": (n, n_in, 3), f"a.conv1d.{i}.bias": (n, 1)})
            continue
        values.update({"clip.vision.image_size": size.image, "clip.vision.patch_size": _PATCH})
        values.update({f"clip.vision.image_{name}": [0.5, 0.5, 0.5] for name in ("mean", "std")})
        patch = (n, 3, _PATCH, _PATCH)
        if kind == "gemma3":
            values["clip.vision.projector.scale_factor"] = 2
            layers["v.patch_embd"] = patch
            without_bias["v.position_embd"] = ((size.image // _PATCH) ** 2, n)
            without_bias.update({"mm.input_projection": (n, width), "mm.soft_emb_norm": (n,)})
        else:
            tensors.update({"v.patch_embd.weight": patch, "v.patch_embd.weight.1": patch})
            layers.update({"mm.0": (4 * n, 4 * n), "mm.2": (width, 4 * n)})
    tensors.update({f"{name}.weight": shape for name, shape in (*layers.items(), *without_bias.items())})
    tensors.update({f"{name}.bias": shape[:1] for name, shape in layers.items()})
    write_gguf(path, "clip", values, _random(tensors))


# --- adapters ---

# The matrices that an adapter changes, by the ends of their names.
ADAPTED = ("attn_q.weight", "attn_v.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight")


def write_adapter(path: Path, model: str, seed: int, rank: int = 4, more: int = 0, architecture: str = "llama") -> str:
    """An adapter for a model, which changes its logits by several units; returns its path. Its matrices are `more`
    wider than those of the model."""
    chance = np.random.default_rng(seed)
    tensors: dict[str, Any] = {}
    for tensor in gguf.GGUFReader(model).tensors:
        if tensor.name.endswith(ADAPTED):
            n_in, n_out = map(int, tensor.shape[:2])
            for letter, shape in (("a", (rank, n_in + more)), ("b", (n_out, rank))):
                weights = chance.standard_normal(shape) * shape[1] ** -0.5
                tensors[f"{tensor.name}.lora_{letter}"] = weights.astype(np.float32)
    values = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": 16.0}
    write_gguf(path, architecture, values, tensors)
    return str(path)


if __name__ == "__main__":  # python -m tests.support.tiny_models FILE MODEL SEED
    print(write_adapter(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), rank=16))
