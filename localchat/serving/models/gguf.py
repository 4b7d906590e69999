"""Reads the header of a GGUF file (metadata and tensor list) with the standard library alone.

Supports versions 2 and 3 in both byte orders. Long arrays, such as a vocabulary, are skipped and not decoded.
An invalid file raises GGUFError.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Callable, Union

from .other_files import N_BYTES_READ, kind_of

Buffer = Union[mmap.mmap, bytes]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
# Arrays of up to this many items are decoded. Arrays that describe a model are shorter; vocabularies are longer.
MAX_DECODED_ARRAY = 256
# What is read of a header for a list of models. The values that describe a model come first, and take some kilobytes.
MAX_START_BYTES = 1 << 16
# The limit of nested arrays, so that a malicious file cannot exhaust the stack. Published models do not nest arrays.
_MAX_DEPTH = 4
# The default alignment of the tensor data, in bytes.
_ALIGNMENT = 32

# The codes of the struct module for GGUF's scalar types.
_SCALARS: Mapping[int, str] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9

# For the number of each tensor type of ggml: the values in a block, and the bytes of a block.
_BLOCKS: Mapping[int, tuple[int, int]] = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110),
    22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8),
    29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip


class GGUFError(ValueError):
    """The file is not a GGUF file, is truncated, or has an unsupported version or type of value."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")


@dataclass(frozen=True)
class SkippedArray:
    """Stands for an array that is too long to decode."""

    length: int


@dataclass(frozen=True)
class GGUFHeader:
    """The header of a model file."""

    version: int
    n_tensors: int
    metadata: Mapping[str, Any]


def read_header(path: str | Path) -> GGUFHeader:
    """Read the header of a model file, and check that the file has all the tensor data that the header announces.

    Raises:
        GGUFError: The file is invalid.
        OSError: The file cannot be read.
    """
    path = Path(path)
    with path.open("rb") as file:
        _check_start(path, file)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(path, data)


def read_start(path: str | Path) -> Mapping[str, Any]:
    """The values of a header before those of the tokenizer. Reads at most `MAX_START_BYTES`, and checks no tensors.

    Raises:
        GGUFError: The file is invalid.
        OSError: The file cannot be read.
    """
    path = Path(path)
    with path.open("rb") as file:
        _check_start(path, file)
        file.seek(0)
        reader = _Reader(path, file.read(MAX_START_BYTES))
    reader.version()
    reader.number("Q")
    found: dict[str, Any] = {}
    with contextlib.suppress(GGUFError):  # The values go on after what was read.
        for _ in range(reader.number("Q")):
            key = reader.string()
            if key.startswith("tokenizer."):
                break
            found[key] = reader.value(reader.number("I"))
    return found


def check_start(path: str | Path) -> None:
    """Check that a file begins as a GGUF file does.

    Raises:
        GGUFError: The file has another format, which the message names if it is known.
        OSError: The file cannot be read.
    """
    path = Path(path)
    with path.open("rb") as file:
        _check_start(path, file)


def _check_start(path: Path, file: BinaryIO) -> None:
    start = file.read(N_BYTES_READ)
    if not start.startswith(MAGIC):
        kind = kind_of(start)
        found = f"it is {kind}" if kind else f"it starts with {start[: len(MAGIC)]!r}, expected {MAGIC!r}"
        raise GGUFError(path, f"not a GGUF file: {found}")


def _parse(path: Path, data: Buffer) -> GGUFHeader:
    reader = _Reader(path, data)
    version = reader.version()
    n_tensors, n_values = reader.number("Q"), reader.number("Q")
    metadata: dict[str, Any] = {}
    for _ in range(n_values):
        key = reader.string()
        metadata[key] = reader.value(reader.number("I"))
    end = max((reader.tensor_end() for _ in range(n_tensors)), default=0)
    alignment = metadata.get("general.alignment")
    reader.check_data(end, alignment if isinstance(alignment, int) and alignment > 0 else _ALIGNMENT)
    return GGUFHeader(version, n_tensors, metadata)


class _Reader:
    """Reads values one after another. A value that extends beyond the end of the file raises GGUFError."""

    def __init__(self, path: Path, data: Buffer) -> None:
        self._path = path
        self._data = data
        self._at = len(MAGIC)
        # The byte order, in the notation of the struct module.
        self._order = "<"

    def version(self) -> int:
        number = int(self.number("I"))
        if number & 0xFFFF == 0:
            # A version has only low bytes. If only the high bytes are set, the file has the other byte order.
            self._order = ">"
            number = int.from_bytes(number.to_bytes(4, "little"), "big")
        if number not in VERSIONS:
            known = " or ".join(map(str, VERSIONS))
            raise GGUFError(self._path, f"GGUF version {number}, expected {known}")
        return number

    def number(self, code: str) -> Any:
        at = self._skip(struct.calcsize(f"={code}"))
        return struct.unpack_from(self._order + code, self._data, at)[0]

    def string(self) -> str:
        size = self.number("Q")
        at = self._skip(size)
        return bytes(self._data[at : at + size]).decode("utf-8", "replace")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY and depth < _MAX_DEPTH:
            return self._array(depth + 1)
        return self.number(self._scalar(kind))

    def tensor_end(self) -> int:
        """The end of a tensor's data, in bytes from the start of all tensor data."""
        self.string()
        shape = [self.number("Q") for _ in range(self.number("I"))]
        kind, offset = self.number("I"), self.number("Q")
        # For an unknown type, only the start of the data is checked.
        per_block, block_bytes = _BLOCKS.get(kind, (1, 0))
        size = 1
        for length in shape:
            size *= length
        return int(offset + size // per_block * block_bytes)

    def check_data(self, end: int, alignment: int) -> None:
        start = -(-self._at // alignment) * alignment
        if end and start + end > len(self._data):
            raise self._truncated(f"its tensors need {start + end}")

    def _array(self, depth: int) -> Any:
        kind, length = self.number("I"), self.number("Q")
        if length <= MAX_DECODED_ARRAY:
            return tuple(self.value(kind, depth) for _ in range(length))
        if kind == _STRING:
            self._skip_strings(length)
        elif kind == _ARRAY:
            for _ in range(length):
                self.value(kind, depth)
        else:
            self._skip(length * struct.calcsize(f"={self._scalar(kind)}"))
        return SkippedArray(length)

    def _skip_strings(self, length: int) -> None:
        # A vocabulary has 100,000 strings or more, so this loop is optimized for speed.
        unpack: Callable[..., tuple[int]] = struct.Struct(f"{self._order}Q").unpack_from
        data, at = self._data, self._at
        try:
            for _ in range(length):
                at += 8 + unpack(data, at)[0]
        except (struct.error, OverflowError):
            at = len(data) + 1
        self._skip(at - self._at)

    def _scalar(self, kind: int) -> str:
        code = _SCALARS.get(kind)
        if code is None:
            raise GGUFError(self._path, f"metadata of an unknown type {kind}, expected one below 13")
        return code

    def _skip(self, size: int) -> int:
        """Skip a value of `size` bytes. Returns the position of its first byte."""
        start, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise self._truncated(f"its header needs at least {self._at}")
        return start

    def _truncated(self, needed: str) -> GGUFError:
        # The usual cause is an interrupted download.
        problem = f"the file has {len(self._data)} bytes, {needed}: it was cut, so copy or download it again"
        return GGUFError(self._path, problem)
