"""Writes a GGUF model of any size with random weights, so that a benchmark can be repeated without a download.

    python -m bench.model model.gguf --params 10M --vocab 152000

The model generates noise, at the speed of a real model of the same shape. It has the llama architecture and Q8_0
weights. The output matrix is separate: with tied embeddings the model would repeat one token for ever, which would
favour speculative decoding. The tokens are runs of letters. Needs the `gguf` package (extra `bench`).
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from itertools import count, product
from pathlib import Path

import gguf
import numpy as np

HEAD_SIZE = 64
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL_TOKENS = ("<|im_start|>", "<|im_end|>")
UNITS = {"K": 1e3, "M": 1e6, "B": 1e9}


@dataclass(frozen=True)
class Shape:
    """The sizes of a model; `n_ff` is the width of the feed-forward layers."""

    n_vocab: int
    width: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    n_ff: int
    n_ctx: int

    @property
    def n_params(self) -> int:
        """The weights that a token is multiplied with. The embedding does not count, since it is only looked up."""
        kv_width = self.n_kv_heads * HEAD_SIZE
        attention = 2 * self.width * self.width + 2 * self.width * kv_width
        return self.n_vocab * self.width + self.n_layers * (attention + 3 * self.width * self.n_ff)


def shape_for(n_params: float, n_vocab: int, n_ctx: int) -> Shape:
    """A shape of the usual proportions, at the width that comes nearest to `n_params`."""
    candidates = (proportions(n_heads, n_vocab, n_ctx) for n_heads in range(1, 129))
    return min(candidates, key=lambda shape: abs(math.log(shape.n_params / n_params)))


def proportions(n_heads: int, n_vocab: int, n_ctx: int) -> Shape:
    width = n_heads * HEAD_SIZE
    n_ff = -(-width * 8 // 3 // 256) * 256  # Q8_0 needs multiples of 32; the kernels are faster with larger ones.
    # At least four query heads share a KV head. The numbers must divide evenly, else llama.cpp aborts the process.
    n_kv_heads = next(n for n in range(max(1, n_heads // 4), 0, -1) if n_heads % n == 0)
    return Shape(n_vocab, width, max(2, width // 40), n_heads, n_kv_heads, n_ff, n_ctx)


def write_model(path: str, shape: Shape, seed: int = 1) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    write_sizes(writer, shape)
    write_vocabulary(writer, shape.n_vocab)
    random = np.random.default_rng(seed)
    for name, rows, columns in tensors(shape):
        if rows == 1:
            writer.add_tensor(name, np.ones(columns, np.float32))
            continue
        weights = random.standard_normal((rows, columns), np.float32) / math.sqrt(columns)
        data = gguf.quantize(weights, gguf.GGMLQuantizationType.Q8_0)
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_sizes(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_name(f"random {shape.n_params / 1e6:.0f}M")
    writer.add_context_length(shape.n_ctx)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.n_layers)
    writer.add_feed_forward_length(shape.n_ff)
    writer.add_head_count(shape.n_heads)
    writer.add_head_count_kv(shape.n_kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HEAD_SIZE)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)


def write_vocabulary(writer: gguf.GGUFWriter, n_vocab: int) -> None:
    """Write a vocabulary of all bytes, runs of letters, and the two markers of the chat template."""
    words = byte_texts()
    letters = "abcdefghijklmnopqrstuvwxyz"
    made_up = ("".join(word) for length in count(2) for word in product(letters, repeat=length))
    n_words = n_vocab - len(SPECIAL_TOKENS)
    runs = [next(made_up) for _ in range(n_words - len(words))]
    words += runs
    types = [gguf.TokenType.NORMAL] * n_words + [gguf.TokenType.CONTROL] * len(SPECIAL_TOKENS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*words, *SPECIAL_TOKENS])
    writer.add_token_types(types)
    writer.add_token_merges([f"{run[:-1]} {run[-1]}" for run in runs] or ["a b"])
    writer.add_eos_token_id(n_vocab - 1)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def byte_texts() -> list[str]:
    """The character that stands for each of the 256 bytes in a byte-level vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (chr(256 + i) for i in count())
    return [chr(byte) if byte in plain else next(others) for byte in range(256)]


def tensors(shape: Shape) -> list[tuple[str, int, int]]:
    """Name, rows and columns of every tensor."""
    width, kv_width = shape.width, shape.n_kv_heads * HEAD_SIZE
    block = [
        ("attn_norm", 1, width),
        ("attn_q", width, width),
        ("attn_k", kv_width, width),
        ("attn_v", kv_width, width),
        ("attn_output", width, width),
        ("ffn_norm", 1, width),
        ("ffn_gate", shape.n_ff, width),
        ("ffn_up", shape.n_ff, width),
        ("ffn_down", width, shape.n_ff),
    ]
    blocks = [(f"blk.{i}.{name}.weight", rows, columns) for i in range(shape.n_layers) for name, rows, columns in block]
    vocabulary = [(name, shape.n_vocab, width) for name in ("token_embd.weight", "output.weight")]
    return [*vocabulary, *blocks, ("output_norm.weight", 1, width)]


def number(text: str) -> float:
    return float(text[:-1]) * UNITS[text[-1].upper()] if text[-1].upper() in UNITS else float(text)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.model", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path")
    parser.add_argument("--params", type=number, default=10e6, help="about how many parameters, such as 10M or 0.5B")
    parser.add_argument("--vocab", type=int, default=32_000)
    parser.add_argument("--ctx", type=int, default=8192)
    parser.add_argument("--mmproj", type=Path, metavar="FILE", help="write a projector for images, too")
    options = parser.parse_args(arguments)
    shape = shape_for(options.params, options.vocab, options.ctx)
    write_model(options.path, shape)
    if options.mmproj:
        from tests.support.tiny_models import LARGE, write_projector

        write_projector(options.mmproj, "gemma3", width=shape.width, size=LARGE)
    print(f"{options.path}: {shape.n_params / 1e6:.1f}M parameters, {shape}")


if __name__ == "__main__":
    main()
