"""llama.cpp's RPC (ggml-rpc, by ctypes): uses the devices of workers, or offers those of this machine."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..values import EngineError, WorkerMissing
from ..workers import worker_problems
from .devices import devices, ggml

# How long a worker that has responded to the hello may take for the next connection.
_CONNECT_S = 5
NewWatchdog = Callable[[], "contextlib.AbstractContextManager[None]"]
"""Makes a context that ends this process if its block takes too long; see `watchdog`."""
# One call of workers at a time: a process has one timer, and ggml-rpc keeps the last graph of a device without a lock.
_calls = threading.Lock()
NO_RPC = "this build of llama.cpp has no RPC: build it with CMAKE_ARGS=-DGGML_RPC=ON (docs/machines.md)"


def add_workers(endpoints: Sequence[str]) -> None:
    """Make the devices of workers those of this process. Raises WorkerMissing, or EngineError without RPC."""
    pointer = ctypes.c_void_p
    add = _function(b"ggml_backend_rpc_add_server", pointer, ctypes.c_char_p)
    if problems := worker_problems(endpoints):
        raise WorkerMissing("; ".join(problems))
    for endpoint in endpoints:
        with watchdog(_CONNECT_S):  # Another server may have taken the worker meanwhile.
            registry = add(endpoint.encode())
        if not registry:
            raise WorkerMissing(f"the worker {endpoint} of --rpc has no devices")
        ggml("ggml_backend_register", None, pointer)(registry)


def server(host: str, port: int, n_threads: int) -> Callable[[], None]:
    """A function that offers the GPUs of this machine, or the CPU if there are none, at an IPv4 address.

    It returns only after a failure. Raises EngineError if llama.cpp is built without RPC.
    """
    pointer, size, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
    start = _function(b"ggml_backend_rpc_start_server", None, text, text, size, size, ctypes.POINTER(pointer))
    kinds = [device.kind for device in devices()]
    get = ggml("ggml_backend_dev_get", pointer, size)
    offered_kind = "GPU" if "GPU" in kinds else "CPU"
    offered = [get(i) for i, kind in enumerate(kinds) if kind == offered_kind]
    endpoint, pointers = f"{host}:{port}".encode(), (pointer * len(offered))(*offered)
    return lambda: start(endpoint, None, n_threads, len(offered), pointers)


@contextlib.contextmanager
def watchdog(seconds: float) -> Iterator[None]:
    """End this process if the `with` block takes longer: calls of llama.cpp wait for a worker without a limit."""
    with _calls:
        faulthandler.dump_traceback_later(seconds, exit=True)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


def _function(name: bytes, result: Any, *arguments: Any) -> Any:
    """A function of ggml-rpc. Raises EngineError if llama.cpp is built without it."""
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    registry = ggml("ggml_backend_reg_by_name", pointer, text)(b"RPC")
    if not registry:
        raise EngineError(NO_RPC)
    address = ggml("ggml_backend_reg_get_proc_address", pointer, pointer, text)(registry, name)
    return ctypes.CFUNCTYPE(result, *arguments)(address)
