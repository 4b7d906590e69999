"""Reads the header of a GGUF file (metadata and tensor list) with the standard library alone.

Supports versions 2 and 3. Arrays, such as a vocabulary, are skipped. An invalid file raises GGUFError, which names the
format of a file that is not GGUF: a download often saves another one under the name of the model.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Union

Buffer = Union[mmap.mmap, bytes]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
# What is read of a header for a list of models. The values that describe a model come first, and take some kilobytes.
MAX_START_BYTES = 1 << 16
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

# Files of other formats that downloads save under the name of a model, by their first bytes.
_OTHER_FILES: Mapping[bytes, str] = {
    rb"(?s)PK\x03\x04|\x80\x02|.{8}\{\"": "weights in another format: convert them, or download the model as GGUF",
    rb"version https://git-lfs": "a Git LFS pointer, not the model: run `git lfs pull` in its folder",
    rb"(?i)\s*<(!doctype html|html|head)": "an HTML page: open the link in a browser, and download the file from there",
    rb'\s*\{"(error|message)': "the error of a download",
    rb"\Z": "an empty file: download it again",
}


class GGUFError(ValueError):
    """The file is not a GGUF file, is truncated, or has an unsupported version or type of value."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")


def read_header(path: Path) -> Mapping[str, Any]:
    """The metadata of a model file. Checks that the file has all the tensor data that the header announces."""
    with path.open("rb") as file:
        _check_magic(path, file)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            reader = _Reader(path, data)
            n_tensors, n_values = reader.counts()
            metadata = {reader.string(): reader.value() for _ in range(n_values)}
            end = max((reader.tensor_end() for _ in range(n_tensors)), default=0)
            reader.check_data(end, metadata.get("general.alignment"))
            return metadata


def read_start(path: str | Path) -> Mapping[str, Any]:
    """The metadata before that of the tokenizer. Reads at most `MAX_START_BYTES`, and checks no tensors."""
    path = Path(path)
    with path.open("rb") as file:
        _check_magic(path, file)
        file.seek(0)
        reader = _Reader(path, file.read(MAX_START_BYTES))
    found: dict[str, Any] = {}
    _, n_values = reader.counts()
    with contextlib.suppress(GGUFError):  # The values go on after what was read.
        for _ in range(n_values):
            key = reader.string()
            if key.startswith("tokenizer."):
                break
            found[key] = reader.value()
    return found


def _check_magic(path: Path, file: BinaryIO) -> None:
    start = file.read(64)
    if not start.startswith(MAGIC):
        found = f"it starts with {start[: len(MAGIC)]!r}, expected {MAGIC!r}"
        kinds = (f"it is {kind}" for pattern, kind in _OTHER_FILES.items() if re.match(pattern, start))
        raise GGUFError(path, f"not a GGUF file: {next(kinds, found)}")


class _Reader:
    """Reads values one after another. A value that extends beyond the end of the file raises GGUFError."""

    def __init__(self, path: Path, data: Buffer) -> None:
        self._path = path
        self._data = data
        self._at = len(MAGIC)

    def counts(self) -> tuple[int, int]:
        """The numbers of tensors and of values, after the version."""
        version = self.number("I")
        if version not in VERSIONS:
            known = " or ".join(map(str, VERSIONS))
            raise GGUFError(self._path, f"GGUF version {version}, expected {known}")
        return self.number("Q"), self.number("Q")

    def number(self, code: str) -> Any:
        at = self._skip(struct.calcsize(f"<{code}"))
        return struct.unpack_from(f"<{code}", self._data, at)[0]

    def string(self) -> str:
        size = self.number("Q")
        at = self._skip(size)
        return bytes(self._data[at : at + size]).decode("utf-8", "replace")

    def value(self) -> Any:
        """A value after its type; None for an array."""
        kind = self.number("I")
        if kind == _STRING:
            return self.string()
        return self._skip_array() if kind == _ARRAY else self.number(self._scalar(kind))

    def tensor_end(self) -> int:
        """The end of a tensor's data, in bytes from the start of all tensor data."""
        self.string()
        shape = [self.number("Q") for _ in range(self.number("I"))]
        kind, offset = self.number("I"), self.number("Q")
        # For an unknown type, only the start of the data is checked.
        per_block, block_bytes = _BLOCKS.get(kind, (1, 0))
        return int(offset + math.prod(shape) // per_block * block_bytes)

    def check_data(self, end: int, given: Any) -> None:
        alignment = given if isinstance(given, int) and given > 0 else _ALIGNMENT
        start = -(-self._at // alignment) * alignment
        if end and start + end > len(self._data):
            raise self._truncated(f"its tensors need {start + end}")

    def _skip_array(self) -> None:
        kind, length = self.number("I"), self.number("Q")
        if kind == _STRING:
            for _ in range(length):
                self._skip(self.number("Q"))
        else:  # Published models do not nest arrays.
            self._skip(length * struct.calcsize(f"<{self._scalar(kind)}"))

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
