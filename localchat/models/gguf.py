"""Reads the header of a GGUF file (metadata and tensor list) with the standard library alone.

Reads versions 2 and 3 in both byte orders. Long arrays (a vocabulary) are skipped, not decoded.
Raises only GGUFError, which names the file, what was expected and what was found.
"""

from __future__ import annotations

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
# Arrays up to here are decoded: all that describe a model are shorter, vocabularies are longer.
MAX_DECODED_ARRAY = 256
# Arrays of arrays are legal and unused; a file of nothing else must not exhaust the stack.
_MAX_DEPTH = 4
_ALIGNMENT = 32

_SCALARS: Mapping[int, str] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9

# ggml's tensor types: number -> (values in a block, bytes of a block).
_BLOCKS: Mapping[int, tuple[int, int]] = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110),
    22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8),
    29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17),
}  # fmt: skip


class GGUFError(ValueError):
    """The file is no model that can be loaded."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path


class NotGGUF(GGUFError):
    """The file is something else."""


class UnsupportedVersion(GGUFError):
    """The file is of a GGUF version that is not read."""


class Truncated(GGUFError):
    """The file ends before what its header announces: an interrupted download, most often."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(path, f"{problem}: it was cut, so copy or download it again")


@dataclass(frozen=True)
class SkippedArray:
    """An array too long to decode."""

    length: int


@dataclass(frozen=True)
class GGUFHeader:
    """The metadata of a model file."""

    path: Path
    version: int
    n_tensors: int
    metadata: Mapping[str, Any]

    def text(self, key: str) -> str | None:
        """A metadata value if it is text."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None

    def number(self, key: str) -> int | None:
        """A metadata value if it is an integer."""
        value = self.metadata.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def architecture(self) -> str:
        """The architecture as llama.cpp names it, such as "llama"; "" if the file has none."""
        return self.text("general.architecture") or ""

    @property
    def context_length(self) -> int | None:
        """The number of tokens that the model was trained for."""
        return self.number(f"{self.architecture}.context_length")

    @property
    def chat_template(self) -> str | None:
        """The Jinja text that turns messages into a prompt."""
        return self.text("tokenizer.chat_template")


def read_header(path: str | Path) -> GGUFHeader:
    """Read the header of a model file and check that the file is as long as it announces.

    Raises:
        GGUFError: see its subclasses.
        OSError: the file cannot be read.
    """
    path = Path(path)
    with path.open("rb") as file:
        _check_start(path, file)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parsed(path, data)


def check_start(path: str | Path) -> None:
    """Check by its first bytes that a file is a GGUF file.

    Raises:
        NotGGUF: it is another kind of file, which the message names if it is known.
        OSError: the file cannot be read.
    """
    path = Path(path)
    with path.open("rb") as file:
        _check_start(path, file)


def _check_start(path: Path, file: BinaryIO) -> None:
    start = file.read(N_BYTES_READ)
    if not start.startswith(MAGIC):
        kind = kind_of(start)
        found = f"it is {kind}" if kind else f"it starts with {start[: len(MAGIC)]!r}, expected {MAGIC!r}"
        raise NotGGUF(path, f"not a GGUF file: {found}")


def _parsed(path: Path, data: Buffer) -> GGUFHeader:
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
    return GGUFHeader(path, version, n_tensors, metadata)


class _Reader:
    """Reads values one after another; each read checks that the file holds it."""

    def __init__(self, path: Path, data: Buffer) -> None:
        self._path = path
        self._data = data
        self._at = len(MAGIC)
        self._order = "<"

    def version(self) -> int:
        number = int(self.number("I"))
        if number & 0xFFFF == 0:
            # A small number that seems huge was written in the other byte order.
            self._order = ">"
            number = int.from_bytes(number.to_bytes(4, "little"), "big")
        if number not in VERSIONS:
            known = " or ".join(map(str, VERSIONS))
            raise UnsupportedVersion(self._path, f"GGUF version {number}, expected {known}")
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
        """Where a tensor's data ends, counted from the start of all data."""
        self.string()
        shape = [self.number("Q") for _ in range(self.number("I"))]
        kind, offset = self.number("I"), self.number("Q")
        # For a type that is missing in this table only the start is checked.
        per_block, block_bytes = _BLOCKS.get(kind, (1, 0))
        size = 1
        for length in shape:
            size *= length
        return int(offset + size // per_block * block_bytes)

    def check_data(self, end: int, alignment: int) -> None:
        start = -(-self._at // alignment) * alignment
        if end and start + end > len(self._data):
            found = len(self._data)
            raise Truncated(self._path, f"the file has {found} bytes, its tensors need {start + end}")

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
        # A vocabulary has 100,000 strings and more, so this loop is written for speed.
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
        """Move on and return where the value that was skipped starts."""
        start, self._at = self._at, self._at + size
        if self._at > len(self._data):
            found = len(self._data)
            raise Truncated(self._path, f"the file has {found} bytes, its header needs at least {self._at}")
        return start
