"""Writes small files of images and sounds of all formats, with the standard library, and small projectors."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np


def png(width: int = 100, height: int = 80, seed: int = 0, data: bytes | None = None) -> bytes:
    """`data` replaces the data of the pixels, before it is compressed."""
    chance = random.Random(seed)
    raw = b"".join(b"\0" + chance.randbytes(3 * width) for _ in range(height)) if data is None else data

    def part(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = part(b"IHDR", header) + part(b"IDAT", zlib.compress(raw)) + part(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def bmp(width: int = 20, height: int = 10, seed: int = 0) -> bytes:
    n_row = (3 * width + 3) // 4 * 4
    rows = random.Random(seed).randbytes(n_row * height)
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, len(rows), 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + len(rows), 0, 0, 54) + header + rows


def gif(width: int = 20, height: int = 10, seed: int = 0) -> bytes:
    """With 128 colours. The table of codes is cleared before a code could get another length."""
    chance = random.Random(seed)
    bits = "".join(
        ("" if i % 100 else f"{128:08b}"[::-1]) + f"{chance.randrange(128):08b}"[::-1] for i in range(width * height)
    )
    bits += f"{129:08b}"[::-1]
    data = bytes(int(bits[i : i + 8][::-1], 2) for i in range(0, len(bits), 8))
    blocks = b"".join(bytes([len(data[i : i + 255])]) + data[i : i + 255] for i in range(0, len(data), 255))
    head = b"GIF89a" + struct.pack("<HHBBB", width, height, 0xF6, 0, 0) + chance.randbytes(3 * 128)
    return head + b"," + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x07" + blocks + b"\0;"


def jpeg(width: int = 16, height: int = 16, level: int = 0) -> bytes:
    """A grey image. The brightness of its first block is `level`, 0 or 1; the others are as bright."""

    def part(kind: int, body: bytes) -> bytes:
        return bytes([0xFF, kind]) + struct.pack(">H", 2 + len(body)) + body

    n_blocks = -(-width // 8) * -(-height // 8)
    # A code for "no difference", one for a difference of 4 bits, and one for the end of the block.
    bits = ("100100" if level else "00") + "00" * (n_blocks - 1)
    bits += "1" * (-len(bits) % 8)
    data = bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8))
    tables = part(0xC4, bytes([0, 1, 1, *[0] * 14, 0, 4])) + part(0xC4, bytes([0x10, 1, *[0] * 15, 0]))
    frame = part(0xC0, struct.pack(">BHHB", 8, height, width, 1) + bytes([1, 0x11, 0]))
    head = b"\xff\xd8" + part(0xDB, bytes([0, *[16] * 64])) + frame + tables
    return head + part(0xDA, bytes([1, 1, 0, 0, 63, 0])) + data.replace(b"\xff", b"\xff\0") + b"\xff\xd9"


def wav(seconds: float = 0.5, seed: int = 0, *, rate: int = 16_000, n_channels: int = 1, n_samples: int = -1) -> bytes:
    n = int(seconds * rate) if n_samples < 0 else n_samples
    samples = random.Random(seed).randbytes(2 * n * n_channels)
    form = struct.pack("<HHIIHH", 1, n_channels, rate, 2 * n_channels * rate, 2 * n_channels, 16)
    parts = b"fmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", len(samples)) + samples
    return b"RIFF" + struct.pack("<I", 4 + len(parts)) + b"WAVE" + parts


def mp3(n_frames: int = 20, tag: bytes = b"") -> bytes:
    """Silence: frames of MPEG 1, layer III, with 32 kilobits and 44,100 samples a second. The first one has a tag."""
    frame = b"\xff\xfb\x10\xc4" + bytes(100)
    first = frame[:36] + tag + frame[36 + len(tag) :]
    return first + frame * (n_frames - 1)


def _checksum(data: bytes, polynomial: int, n_bits: int) -> int:
    value = 0
    for byte in data:
        value ^= byte << (n_bits - 8)
        for _ in range(8):
            value = (value << 1 ^ polynomial if value >> (n_bits - 1) else value << 1) & ((1 << n_bits) - 1)
    return value


def flac(n_blocks: int = 10, n_samples: int | None = None, level: int = 0) -> bytes:
    """Blocks of 4,096 equal samples, 16,000 a second. `n_samples` is what the header says."""
    n = 4096 * n_blocks if n_samples is None else n_samples
    info = struct.pack(">HHIHQ", 4096, 4096, 0, 0, 16_000 << 44 | 15 << 36 | n) + bytes(16)
    blocks = b""
    for i in range(n_blocks):
        head = b"\xff\xf8\xc5\x08" + bytes([i])
        head += bytes([_checksum(head, 0x07, 8)])
        block = head + b"\0" + struct.pack(">h", level)
        blocks += block + struct.pack(">H", _checksum(block, 0x8005, 16))
    return b"fLaC" + b"\x80" + len(info).to_bytes(3, "big") + info + blocks


# --- projectors ---


class Size(NamedTuple):
    """The sizes of an encoder, and the side of an image."""

    width: int
    n_ff: int
    n_layers: int
    n_heads: int
    image: int


SMALL, LARGE = Size(32, 48, 2, 2, 56), Size(768, 3072, 8, 12, 224)
_PATCH, _N_MEL = 14, 80


def write_projector(path: Path, *kinds: str, width: int, seed: int = 0, size: Size = SMALL) -> None:
    """A projector with random weights for models of a width: of gemma3 (not causal), qwen2vl_merger (for M-RoPE) or
    ultravox (audio), or of an image and a sound."""
    chance = np.random.default_rng(seed)
    tensors: dict[str, Any] = {}

    def random_weights(*shape: int) -> Any:
        return (chance.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    def add(name: str, *shape: int, bias: int | None = None) -> None:
        tensors[f"{name}.weight"] = random_weights(*shape)
        if bias is not None:
            tensors[f"{name}.bias"] = np.zeros(bias, np.float32)

    def add_norm(name: str, n: int, has_bias: bool = True) -> None:
        tensors[f"{name}.weight"] = np.ones(n, np.float32)
        if has_bias:
            tensors[f"{name}.bias"] = np.zeros(n, np.float32)

    values: dict[str, Any] = {"clip.use_gelu": True, "general.type": "mmproj", "general.file_type": 0}
    for kind in kinds:
        part = "audio" if kind == "ultravox" else "vision"
        letter = part[0]
        values["clip.projector_type" if len(kinds) == 1 else f"clip.{part}.projector_type"] = kind
        values[f"clip.has_{part}_encoder"] = True
        sizes = {
            "embedding_length": size.width, "feed_forward_length": size.n_ff, "block_count": size.n_layers,
            "projection_dim": width, "attention.head_count": size.n_heads, "attention.layer_norm_epsilon": 1e-6,
        }  # fmt: skip
        values.update({f"clip.{part}.{name}": value for name, value in sizes.items()})
        for i in range(size.n_layers):
            block = f"{letter}.blk.{i}"
            for name in ("q", "k", "v", "out"):
                has_bias = not (name == "k" and part == "audio")
                add(f"{block}.attn_{name}", size.width, size.width, bias=size.width if has_bias else None)
            for name in ("ln1", "ln2"):
                add_norm(f"{block}.{name}", size.width)
            add(f"{block}.ffn_up", size.n_ff, size.width, bias=size.n_ff)
            add(f"{block}.ffn_down", size.width, size.n_ff, bias=size.width)
        add_norm(f"{letter}.post_ln", size.width)
        if part == "audio":
            values.update({"clip.audio.num_mel_bins": _N_MEL, "clip.audio.projector.stack_factor": 4})
            for i, n in ((1, _N_MEL), (2, size.width)):
                tensors[f"a.conv1d.{i}.weight"] = random_weights(size.width, n, 3).astype(np.float16)
                tensors[f"a.conv1d.{i}.bias"] = np.zeros((size.width, 1), np.float32)
            add("a.position_embd", 1500, size.width)
            add_norm("mm.a.norm_pre", 4 * size.width, has_bias=False)
            add_norm("mm.a.norm_mid", size.n_ff, has_bias=False)
            add("mm.a.mlp.1", 2 * size.n_ff, 4 * size.width)
            add("mm.a.mlp.2", width, size.n_ff)
            continue
        values.update({"clip.vision.image_size": size.image, "clip.vision.patch_size": _PATCH})
        values.update({f"clip.vision.image_{name}": [0.5, 0.5, 0.5] for name in ("mean", "std")})
        add("v.patch_embd", size.width, 3, _PATCH, _PATCH)
        if kind == "gemma3":
            values["clip.vision.projector.scale_factor"] = 2
            tensors["v.patch_embd.bias"] = np.zeros(size.width, np.float32)
            add("v.position_embd", (size.image // _PATCH) ** 2, size.width)
            add("mm.input_projection", size.width, width)
            add_norm("mm.soft_emb_norm", size.width, has_bias=False)
        else:
            tensors["v.patch_embd.weight.1"] = random_weights(size.width, 3, _PATCH, _PATCH)
            add("mm.0", 4 * size.width, 4 * size.width, bias=4 * size.width)
            add("mm.2", width, 4 * size.width, bias=width)
    write_gguf(path, "clip", values, tensors)


def write_gguf(path: Path, architecture: str, values: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    writer = gguf.GGUFWriter(str(path), architecture)
    add: dict[type, Any] = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    for name, value in values.items():
        if isinstance(value, Sequence) and not isinstance(value, str):
            writer.add_array(name, value)
        else:
            add.get(type(value), writer.add_string)(name, value)
    for name, weights in tensors.items():
        writer.add_tensor(name, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
