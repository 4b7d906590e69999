"""The library itself, started, with its log in ours. The package's other modules take `L` from here."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import weakref
from collections import deque
from typing import Any

# An abort inside the library would otherwise start a debugger, where one is installed, for seconds.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")

# How often a thread of the graph checks whether the others have reached the barrier before it sleeps (GNU OpenMP, which
# reads this when it is loaded). Ratios of tokens/s on 2 cores, 0.5B parameters and 10M: 2000 checks give 1.0 and 0.9 of
# what 50000 give on a quiet machine, and beside a busy process 3 and 3.5 times as many. 10000 cost nothing measurable
# on a quiet machine, and beside a busy one they matter only until there are fewer threads (`thread_count.py`).
# `python -m bench.threads` measures it.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")

import llama_cpp.llama_cpp as L

__all__ = ["L", "Model", "problems"]

log = logging.getLogger("localchat.engine.llama")


class _Problems(threading.local):
    """The library's errors on this thread, on which it was called: other threads may fail at the same time."""

    def __init__(self) -> None:
        self.recent: deque[str] = deque(maxlen=8)


_problems = _Problems()
# ggml's levels: 1 debug, 2 info, 3 warning, 4 error, 5 continues the line before. Its errors become part of ours,
# and its warnings are for developers: one is that our cells are more than one sequence may use.
_LOG_LEVELS = {3: logging.INFO, 4: logging.INFO}
_ERROR_LEVEL = 4


@L.llama_log_callback  # type: ignore[untyped-decorator]  # ctypes
def _on_log(level: int, text: bytes, _: ctypes.c_void_p) -> None:
    line = text.decode("utf-8", "replace").rstrip()
    if level == _ERROR_LEVEL:
        _problems.recent.append(line)
    log.log(_LOG_LEVELS.get(level, logging.DEBUG), "%s", line)


def _load_backends() -> None:
    """Load the backends of a build that keeps them in files of their own (GGML_BACKEND_DL), as portable builds do.

    ggml takes of each backend the file that suits this machine, of the CPU's the newest instructions that it has.
    """
    # Looked up through libllama, which is linked to ggml: a wheel has no symbolic links, so libggml.so, loaded by its
    # name, would be a second copy beside libggml.so.0, with backends of its own. Windows does not look up in this way.
    library = L._lib
    if not hasattr(library, "ggml_backend_reg_count") or library.ggml_backend_reg_count():
        return
    library.ggml_backend_load_all_from_path(os.fsencode(os.path.dirname(library._name)))


def _start_library() -> None:
    L.llama_log_set(_on_log, ctypes.c_void_p(0))
    _load_backends()
    L.llama_backend_init()


_start_library()


def problems() -> str:
    """The errors that the library logged on this thread since the last call."""
    problems = "; ".join(_problems.recent)
    _problems.recent.clear()
    return problems or "it gave no reason"


def quick(function: Any) -> Any:
    """A function of the library that takes a microsecond, called without releasing the GIL: in half of the time."""
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return ctypes.PYFUNCTYPE(function.restype, *function.argtypes)(address)


class Model:
    """A loaded model, freed with the last reference to it.

    Readers may still turn tokens into text when the engine has been closed; each holds the model by
    its vocabulary.
    """

    def __init__(self, pointer: Any):
        self.pointer = pointer
        weakref.finalize(self, L.llama_model_free, pointer)
