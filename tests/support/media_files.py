"""Writes small files of images and sounds of all formats, with the standard library."""

import random
import struct
import zlib


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
