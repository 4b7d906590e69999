"""The installed build of llama.cpp, the devices that it computes on, and their free memory (ggml-backend, by ctypes).

The Python package binds no function of ggml.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import re
import sys
from dataclasses import dataclass
from typing import Any

from ..values import LoadOptions
from .library import L

# enum ggml_backend_dev_type
_KINDS = ("CPU", "GPU", "GPU", "accelerator")


@dataclass(frozen=True)
class Device:
    """A device of llama.cpp."""

    name: str
    """Its short name, such as "CUDA0"."""
    description: str
    """What the driver calls it."""
    kind: str
    """"CPU", "GPU" (integrated ones too) or "accelerator"."""
    n_free: int
    """Free bytes; 0 if the driver does not report them."""
    n_total: int


def devices() -> list[Device]:
    """All devices with their memory at this time; none if the library lacks the functions."""
    try:
        return [_device(i) for i in range(_ggml("ggml_backend_dev_count", ctypes.c_size_t)())]
    except (AttributeError, OSError):
        return []


def supports_gpu() -> bool:
    """Whether this build of llama.cpp can use a GPU."""
    return bool(L.llama_supports_gpu_offload())


def uses_gpu(options: LoadOptions) -> bool:
    """Whether llama.cpp puts layers on a GPU if there is one."""
    return options.n_gpu_layers != 0 and supports_gpu()


def _device(i: int) -> Device:
    pointer = ctypes.c_void_p
    device = _ggml("ggml_backend_dev_get", pointer, ctypes.c_size_t)(i)
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    sizes = ctypes.POINTER(ctypes.c_size_t)
    _ggml("ggml_backend_dev_memory", None, pointer, sizes, sizes)(device, free, total)
    name = _ggml("ggml_backend_dev_name", ctypes.c_char_p, pointer)(device) or b""
    description = _ggml("ggml_backend_dev_description", ctypes.c_char_p, pointer)(device) or b""
    kind = _ggml("ggml_backend_dev_type", ctypes.c_int, pointer)(device)
    return Device(
        name.decode("utf-8", "replace"),
        description.decode("utf-8", "replace").strip(),
        _KINDS[kind] if kind < len(_KINDS) else "accelerator",
        free.value,
        total.value,
    )


def _ggml(name: str, result: Any, *arguments: Any) -> Any:
    """A function of ggml. Linux and macOS resolve it through libllama, Windows only in ggml's own files."""
    libraries = [L._lib]
    if sys.platform == "win32":
        libraries += [ctypes.CDLL(os.path.join(L._base_path, file)) for file in ("ggml.dll", "ggml-base.dll")]
    library = next((library for library in libraries if hasattr(library, name)), None)
    if library is None:
        raise AttributeError(name)
    return ctypes.CFUNCTYPE(result, *arguments)((name, library))


@dataclass(frozen=True)
class Build:
    """A build of llama.cpp."""

    package: str
    """The version of llama-cpp-python; "" if it is not installed as a package."""
    version: str
    """The version of llama.cpp."""
    features: tuple[str, ...]
    """The CPU features that it was compiled for, such as "AVX2"."""
    supports_gpu: bool
    devices: tuple[Device, ...]


def read_build() -> Build:
    try:
        package = importlib.metadata.version("llama-cpp-python")
    except importlib.metadata.PackageNotFoundError:
        package = ""
    return Build(
        package,
        L.llama_version().decode("utf-8", "replace"),
        tuple(re.findall(r"(\w+) = 1\b", L.llama_print_system_info().decode("utf-8", "replace"))),
        supports_gpu(),
        tuple(devices()),
    )
