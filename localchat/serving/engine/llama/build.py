"""The installed build of llama.cpp: its versions, what it was compiled for, and its devices."""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass

from .devices import Device, devices, supports_gpu
from .library import L


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
