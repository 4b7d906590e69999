"""Reads the header of a GGUF file (metadata and tensor list) with the standard library alone.

Supports versions 2 and 3. Arrays, such as a vocabulary, are skipped. An invalid file raises GGUFError, which names the
format of a file that is not GGUF: a download often saves another one under the name of the model. The counts and
lengths in a header are checked against the size of the file and against limits before they are used. The file is not
mapped into memory: a mapped file that another program cuts ends the process.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

MAGIC = b"GGUF"
VERSIONS = (2, 3)
# The key of the number of tensors beside the metadata, as in llama.cpp's gguf package.
TENSOR_COUNT = "GGUF.tensor_count"
# What is read of a header for a list of models. The values that describe a model come first, and take some kilobytes.
MAX_START_BYTES = 1 << 16
# The limits of a header: about ten times the largest of published models.
MAX_HEADER_BYTES, MAX_COUNT, MAX_TEXTS = 1 << 27, 1 << 16, 1 << 22

# The codes of the struct module for GGUF's scalar types.
_SCALARS: Mapping[int, str] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9

# Files of other formats that downloads save under the name of a model, by their first bytes.
_OTHER_FILES: Mapping[bytes, str] = {
    rb"(?s)PK\x03\x04|\x80\x02|.{8}\{\"": "weights in another format: convert them, or download the model as GGUF",
    rb"version https://git-lfs": "a Git LFS pointer, not the model: run `git lfs pull` in its folder",
    rb"(?i)\s*<(!doctype html|html|head)": "an HTML page: open the link in a browser, and download the file from there",
    rb'\s*\{"(error|message)': "the error of a download",
    rb"\Z": "an empty file: download it again",
}


class ModelFileError(ValueError):
    """An argument, a mapping file or a header does not give a model."""


class GGUFError(ModelFileError):
    """The file is not a GGUF file, is truncated, or has an unsupported version, type of value or size of header."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.problem = problem  # Without the path.


def read_header(path: Path) -> Mapping[str, Any]:
    """The metadata of a model file. Checks that the data of each tensor begins within the file."""
    with _opened(path) as file:
        reader = _Reader(path, file, MAX_HEADER_BYTES)
        metadata = {reader.string(): reader.value() for _ in range(reader.n_values)}
        if reader.n_tensors:  # llama.cpp checks the whole data.
            reader.check_size(max(reader.tensor_start() for _ in range(reader.n_tensors)) + 1 + reader.at)
        return metadata


def read_start(path: str | Path) -> Mapping[str, Any]:
    """The metadata before that of the tokenizer, and `TENSOR_COUNT`. Reads at most `MAX_START_BYTES`."""
    with _opened(Path(path)) as file:
        reader = _Reader(Path(path), file, MAX_START_BYTES)
        found: dict[str, Any] = {TENSOR_COUNT: reader.n_tensors}
        with contextlib.suppress(GGUFError):  # The values go on after what is read.
            for _ in range(reader.n_values):
                key = reader.string()
                if key.startswith("tokenizer."):
                    break
                found[key] = reader.value()
        return found


def read_bytes(path: Path, n_bytes: int) -> bytes:
    """The first bytes of a regular file. Raises GGUFError for a pipe or a device, which could block, or OSError."""
    with _opened(path) as file:
        return file.read(n_bytes)


def _opened(path: Path) -> BinaryIO:
    no_wait = getattr(os, "O_NONBLOCK", 0)  # A pipe would wait for its other end.
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | no_wait))  # noqa: SIM115  # returned
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise GGUFError(path, "it is not a regular file")
    return file


class _Reader:
    """Reads values one after another. One beyond the end of the file or beyond `limit` bytes raises GGUFError."""

    def __init__(self, path: Path, file: BinaryIO, limit: int) -> None:
        self._path = path
        self._file = file
        self._limit = limit
        self._n_bytes = os.fstat(file.fileno()).st_size
        self._data = file.read(MAX_START_BYTES)
        self.at = len(MAGIC)
        self._n_texts = 0  # In arrays.
        start = self._data[:64]
        if not start.startswith(MAGIC):
            kinds = (f"it is {kind}" for pattern, kind in _OTHER_FILES.items() if re.match(pattern, start))
            unknown = f"it starts with {start[: len(MAGIC)]!r}, expected {MAGIC!r}; download it as GGUF"
            raise GGUFError(path, f"not a GGUF file: {next(kinds, unknown)}")
        version = self.number("I")
        if version not in VERSIONS:
            raise GGUFError(path, f"GGUF version {version}, expected {' or '.join(map(str, VERSIONS))}")
        self.n_tensors, self.n_values = self.number("Q"), self.number("Q")
        # The least sizes of a tensor and of a value: two lengths, a type and an offset; a length, a type and a byte.
        self.check_size(self.at + 24 * self.n_tensors + 13 * self.n_values)
        if max(self.n_tensors, self.n_values) > MAX_COUNT:
            counts = f"{self.n_tensors} tensors and {self.n_values} values"
            raise GGUFError(path, f"{counts}, the limit is {MAX_COUNT} of each")

    def number(self, code: str) -> Any:
        at = self.skip(struct.calcsize(f"<{code}"))
        return struct.unpack_from(f"<{code}", self._data, at)[0]

    def string(self) -> str:
        size = self.number("Q")
        at = self.skip(size)
        return bytes(self._data[at : at + size]).decode("utf-8", "replace")

    def value(self) -> Any:
        """A value after its type; None for an array."""
        kind = self.number("I")
        if kind == _STRING:
            return self.string()
        return self._skip_array() if kind == _ARRAY else self.number(self._scalar(kind))

    def tensor_start(self) -> int:
        """The start of a tensor's data, in bytes from the start of all tensor data."""
        self.string()
        self.skip(8 * self.number("I") + 4)  # The shape and the type.
        return int(self.number("Q"))

    def _skip_array(self) -> None:
        kind, length = self.number("I"), self.number("Q")
        if kind == _STRING:
            self.check_size(self.at + 8 * length)
            self._n_texts += length
            if self._n_texts > MAX_TEXTS:
                raise GGUFError(self._path, f"arrays of {self._n_texts} texts, the limit is {MAX_TEXTS}")
            for _ in range(length):
                self.skip(self.number("Q"))
        else:  # Published models do not nest arrays.
            self.skip(length * struct.calcsize(f"<{self._scalar(kind)}"))

    def _scalar(self, kind: int) -> str:
        code = _SCALARS.get(kind)
        if code is None:
            raise GGUFError(
                self._path, f"metadata of an unknown type {kind}, expected one below 13: the file is damaged"
            )
        return code

    def skip(self, size: int) -> int:
        """Skip a value of `size` bytes. Returns the position of its first byte."""
        start, self.at = self.at, self.at + size
        if self.at > len(self._data):
            self.check_size(self.at)
            if self.at > self._limit:
                raise GGUFError(self._path, f"a header of {self.at} bytes or more, the limit is {self._limit}")
            self._data += self._file.read(max(self.at - len(self._data), len(self._data)))
            self.check_size(self.at, len(self._data))  # Another program may cut the file meanwhile.
        return start

    def check_size(self, n_needed: int, n_bytes: int | None = None) -> None:
        """Raise GGUFError if the file has fewer bytes than it needs."""
        n_bytes = self._n_bytes if n_bytes is None else n_bytes
        if n_needed > n_bytes:
            # The usual cause is an interrupted download.
            sizes = f"the file has {n_bytes} bytes, and needs at least {n_needed}"
            raise GGUFError(self._path, f"{sizes}: it was cut, so copy or download it again")
