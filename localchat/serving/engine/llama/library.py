"""Imports and starts llama.cpp, and sends its log to ours. The other modules of the package import `L` from here."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import importlib.util
import logging
import os
import re
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

from ..tuning import set_environment

set_environment()


# The package itself imports its high-level API, which is not used here and takes half of the time. An empty package in
# its place leaves that out, unless the package has been imported already.
@contextlib.contextmanager
def _without_package() -> Iterator[None]:
    is_new = "llama_cpp" not in sys.modules
    if is_new and (spec := importlib.util.find_spec("llama_cpp")) is not None:
        sys.modules["llama_cpp"] = importlib.util.module_from_spec(spec)
    try:
        yield
    finally:
        if is_new:
            sys.modules.pop("llama_cpp", None)  # A program that imports the package later gets all of it.


with _without_package():
    import llama_cpp.llama_cpp as L

__all__ = ["BatchRows", "L", "LlamaModel", "last_errors", "call_for_each", "layer_devices", "mtmd", "pointer_to"]

log = logging.getLogger("localchat.engine.llama")

# Has the last errors that llama.cpp logged on this thread, for our error messages: other threads may fail meanwhile.
_recent = threading.local()
# ggml's levels: 1 debug, 2 info, 3 warning, 4 error, 5 continues the previous line. Warnings are for developers; an
# example is that the KV cache has more cells than one sequence may use.
_WARNING, _ERROR = 3, 4
_LAYER = re.compile(r"load_tensors: layer +(\d+) assigned to device ([^,]+)")


# By layer of the model that was loaded last: its device. No function of llama.cpp returns it.
layer_devices: dict[int, str] = {}


@L.llama_log_callback  # type: ignore[untyped-decorator]  # ctypes
def _on_log(level: int, text: bytes, _: ctypes.c_void_p) -> None:
    line = text.decode("utf-8", "replace").rstrip()
    if match := _LAYER.match(line):
        layer_devices[int(match[1])] = match[2]
    if level == _ERROR:
        vars(_recent).setdefault("errors", deque(maxlen=8)).append(line.replace("\n", "; "))
    log.log(logging.INFO if level in (_WARNING, _ERROR) else logging.DEBUG, "%s", line)


L.llama_log_set(_on_log, ctypes.c_void_p(0))
# A portable build has its backends in separate files (GGML_BACKEND_DL). ggml chooses the file of each backend that
# suits this machine; for the CPU, the file with the most instructions. The functions are resolved through libllama,
# which is linked to ggml. A wheel has no symbolic links, so libggml.so loaded by its name would be a second copy beside
# libggml.so.0. Windows does not resolve them in this way.
if hasattr(L._lib, "ggml_backend_reg_count") and not L._lib.ggml_backend_reg_count():
    L._lib.ggml_backend_load_all_from_path(os.fsencode(os.path.dirname(L._lib._name)))
L.llama_backend_init()


@functools.lru_cache(maxsize=1)
def mtmd() -> Any:
    """The bindings of libmtmd, which encodes images and sounds."""
    # Its library is in the folder of libllama, also if the user names another one.
    if folder := os.environ.get("LLAMA_CPP_LIB_PATH"):
        os.environ.setdefault("MTMD_CPP_LIB", folder)
    with _without_package():
        library = importlib.import_module("llama_cpp.mtmd_cpp")
    library.mtmd_helper_log_set(_on_log, ctypes.c_void_p(0))
    return library


def last_errors() -> str:
    """The errors that the library logged on this thread since the last call."""
    return "; ".join(vars(_recent).pop("errors", ())) or "it gave no reason"


def call_for_each(function: Any, pointer: int, *arguments: Iterable[Any]) -> Iterable[Any]:
    """The results of a function of llama.cpp for a pointer and each of the arguments, as `map` has them.

    The calls hold the GIL, and the arguments are not converted: each must be an int, or an object of ctypes. A function
    of a tenth of a microsecond then takes a third of the time.
    """
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return map(ctypes.PYFUNCTYPE(function.restype)(address), repeat(ctypes.c_void_p(pointer)), *arguments)


def pointer_to(array: Any, kind: Any) -> Any:
    """A pointer to the data of a numpy array, which must outlive it. `kind` is the C type of the elements."""
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))


class LlamaModel:
    """llama.cpp's model, freed with the last reference to this object.

    A request may convert tokens to text after the engine has been closed, so it refers to the vocabulary, and the
    vocabulary refers to the model.
    """

    def __init__(self, pointer: Any, referenced: object = None):
        """`referenced` is what the parameters of the model point to, which must live as long."""
        self.pointer = pointer
        self._referenced = referenced
        weakref.finalize(self, L.llama_model_free, pointer)


class BatchRows:
    """The input of `llama_decode`: arrays that are allocated once. A step clears them, adds rows, decodes `batch`."""

    def __init__(self, n_rows: int, n_ids: int):
        """Allocate the arrays for `n_rows` tokens, each of which belongs to `n_ids` sequences of llama.cpp."""
        self._n_ids = n_ids
        self._tokens = (L.llama_token * n_rows)()
        self._positions = (L.llama_pos * n_rows)()
        self._ids = (L.llama_seq_id * (n_rows * n_ids))()
        self._outputs = (ctypes.c_int8 * n_rows)()
        self._counts = (ctypes.c_int32 * n_rows)(*[n_ids] * n_rows)
        pointer = ctypes.POINTER(L.llama_seq_id)
        size = ctypes.sizeof(L.llama_seq_id) * n_ids
        start = ctypes.addressof(self._ids)
        # The list of row i begins at _ids[i * n_ids].
        self._id_lists = (pointer * n_rows)(*[ctypes.cast(start + row * size, pointer) for row in range(n_rows)])
        self.batch = L.llama_batch(
            n_tokens=0,
            token=self._tokens,
            embd=None,
            pos=self._positions,
            n_seq_id=self._counts,
            seq_id=self._id_lists,
            logits=self._outputs,
        )

    def clear(self) -> None:
        self.batch.n_tokens = 0

    def add(self, ids: Sequence[int], position: int, tokens: Sequence[int], with_output: Iterable[int] = ()) -> None:
        """Add a row for each token, at consecutive positions of the sequences `ids`.

        `with_output` are the indexes of the tokens whose logits or vectors are computed.
        """
        first, n_tokens = self.batch.n_tokens, len(tokens)
        end = first + n_tokens
        self._tokens[first:end] = tokens
        self._positions[first:end] = range(position, position + n_tokens)
        self._ids[first * self._n_ids : end * self._n_ids] = [*ids] * n_tokens
        self._outputs[first:end] = [0] * n_tokens
        for i in with_output:
            self._outputs[first + i] = 1
        self.batch.n_tokens = end
