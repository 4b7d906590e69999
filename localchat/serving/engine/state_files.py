"""Files of the disk cache: prefixes of the KV cache that survive a restart. Any thread.

A file has the tokens of a prefix, the state of their cells, and a digest of both. Its header has the key of the model,
library and settings; a file with another key is ignored. The files of a folder have a size limit; the least recently
used are removed first.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, Union

from .prefix import n_common_of

log = logging.getLogger("localchat.engine")

_MAGIC = b"localchat state 1\n"
_NAME = re.compile(r"[0-9a-f]{32}\.state")
_PART = "localchat-part-"
# An older partial file was left by a server that was killed.
_MAX_WRITE_S = 3600
_DIGEST_BYTES = 32
# The limit of bytes in a header, which has the key and two numbers.
_MAX_HEADER = 1 << 16

Data = Union[bytes, bytearray, memoryview]


@dataclass(frozen=True)
class SavedPrefix:
    """A prefix in a file. The state of its tokens is not in memory."""

    path: Path
    tokens: list[int]


class StateFiles:
    """The saved prefixes in a folder of one model and its settings (`key`).

    With `can_truncate` the beginning of a saved prefix can be used as well.

    Files of other models count towards the limit and are removed in the same order; files of other kinds are left
    alone. A file that cannot be read is ignored, with a line in the log.
    """

    def __init__(self, folder: Path, key: str, max_bytes: int, *, can_truncate: bool):
        """Reads the headers of all files.

        Raises:
            OSError: The folder cannot be created or read.
        """
        self._folder = folder
        self._key = key
        self._max_bytes = max_bytes
        self._can_truncate = can_truncate
        self._lock = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)
        self._sweep()
        self._saved = {path: prefix for path in self._files() if (prefix := self._prefix_in(path)) is not None}

    def find(self, tokens: list[int]) -> SavedPrefix | None:
        """The saved prefix with the most first tokens in common with `tokens`."""
        with self._lock:
            saved = list(self._saved.values())
        best, n_best = None, 0
        for prefix in saved:
            n = n_common_of(prefix.tokens, tokens)
            if n > n_best and (self._can_truncate or n == len(prefix.tokens)):
                best, n_best = prefix, n
        return best

    def read(self, prefix: SavedPrefix) -> memoryview | None:
        """The state of a saved prefix; None if the file has been removed or changed."""
        try:
            data = _content(prefix.path.read_bytes(), self._key, prefix.tokens)
            os.utime(prefix.path)
            return data
        except FileNotFoundError:
            pass  # Another server with the same folder needed the space.
        except (OSError, ValueError) as error:
            log.warning("the saved prefix %s is ignored: %s", prefix.path.name, error)
        with self._lock:
            self._saved.pop(prefix.path, None)
        return None

    def write(self, tokens: list[int], data: Data) -> None:
        """Saves a prefix, unless it is larger than the limit. With `can_truncate`, removes the prefixes of it."""
        head = _head(self._key, tokens, len(data))
        n_bytes = len(head) + len(data) + _DIGEST_BYTES
        if n_bytes > self._max_bytes:
            return
        path = self._folder / (hashlib.blake2b(head, digest_size=16).hexdigest() + ".state")
        try:
            self._free_space(n_bytes)
            # Another server reads the whole file or none.
            with tempfile.NamedTemporaryFile(dir=self._folder, prefix=_PART, delete=False) as file:
                try:
                    _write_all(file, head, data)
                except BaseException:
                    file.close()
                    os.unlink(file.name)
                    raise
            os.replace(file.name, path)
        except OSError as error:
            log.warning("a prefix of %d tokens could not be saved: %s", len(tokens), error)
            return
        with self._lock:
            shorter = [saved for saved in self._saved.values() if saved.tokens == tokens[: len(saved.tokens)]]
            self._saved[path] = SavedPrefix(path, list(tokens))
        if self._can_truncate:
            self._remove(saved.path for saved in shorter if saved.path != path)

    def _files(self) -> Iterator[Path]:
        return (path for path in self._folder.iterdir() if _NAME.fullmatch(path.name))

    def _sweep(self) -> None:
        """Removes the partial files of servers that were killed."""
        for path in self._folder.glob(f"{_PART}*"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _MAX_WRITE_S:
                    path.unlink()

    def _prefix_in(self, path: Path) -> SavedPrefix | None:
        """The prefix in a file; None if the file has another key or is damaged."""
        try:
            with path.open("rb") as file:
                key, n_tokens, n_bytes = _read_header(file)
                n_left = os.fstat(file.fileno()).st_size - file.tell()
                if n_left != 4 * n_tokens + n_bytes + _DIGEST_BYTES:
                    raise ValueError("it is cut off")
                return SavedPrefix(path, _tokens(file.read(4 * n_tokens), n_tokens)) if key == self._key else None
        except (OSError, ValueError) as error:
            log.warning("the file %s is no saved prefix and is ignored: %s", path.name, error)
            return None

    def _free_space(self, n_bytes: int) -> None:
        """Removes the least recently used files until there is space for one more."""
        found = []
        for path in self._files():
            with contextlib.suppress(OSError):
                status = path.stat()
                found.append((status.st_mtime_ns, status.st_size, path))
        n_too_many = sum(size for _, size, _ in found) + n_bytes - self._max_bytes
        for _, size, path in sorted(found):
            if n_too_many <= 0:
                return
            self._remove([path])
            n_too_many -= size

    def _remove(self, paths: Iterable[Path]) -> None:
        for path in paths:
            with self._lock:
                self._saved.pop(path, None)
            with contextlib.suppress(OSError):
                path.unlink()


def _head(key: str, tokens: Sequence[int], n_bytes: int) -> bytes:
    header = json.dumps({"key": key, "n_tokens": len(tokens), "n_bytes": n_bytes})
    return _MAGIC + header.encode() + b"\n" + _little(array("i", tokens)).tobytes()


def _write_all(file: IO[bytes], head: bytes, data: Data) -> None:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in (head, data):
        digest.update(part)
        file.write(part)
    file.write(digest.digest())


def _read_header(file: BinaryIO) -> tuple[str, int, int]:
    """The key, the number of tokens, and the number of bytes of the state.

    Raises:
        ValueError: There is no valid header.
    """
    if file.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("it has another beginning")
    try:
        header = json.loads(file.readline(_MAX_HEADER))
        key, n_tokens, n_bytes = header["key"], header["n_tokens"], header["n_bytes"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ValueError("its header cannot be read") from error
    if not isinstance(key, str) or not all(isinstance(n, int) and n > 0 for n in (n_tokens, n_bytes)):
        raise ValueError("its header is not valid")
    return key, n_tokens, n_bytes


def _tokens(data: bytes, n_tokens: int) -> list[int]:
    if len(data) != 4 * n_tokens:
        raise ValueError("it was cut off while it was read")
    return _little(array("i", data)).tolist()


def _content(content: bytes, key: str, tokens: list[int]) -> memoryview:
    """The state in the content of a file.

    Raises:
        ValueError: The file is damaged, or was written for other tokens.
    """
    whole = memoryview(content)
    body, digest = whole[:-_DIGEST_BYTES], whole[-_DIGEST_BYTES:]
    if hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != digest:
        raise ValueError("it is damaged")
    n_head = content.index(b"\n", len(_MAGIC)) + 1 + 4 * len(tokens)
    data = body[n_head:]
    if body[:n_head] != _head(key, tokens, len(data)):
        raise ValueError("it has been replaced since the start")
    return data


def _little(numbers: array[int]) -> array[int]:
    """Converts numbers to the byte order of the files, little-endian, or back."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
