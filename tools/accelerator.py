"""Finds the GPU of this machine by the tools of its driver and by device files, and what llama.cpp can be built for."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# The compiler for each kind of GPU, the folder where it usually is if not in PATH, and the package that contains it.
COMPILERS = {
    "cuda": ("nvcc", "/usr/local/cuda/bin", "NVIDIA's CUDA toolkit, with its development files"),
    "vulkan": (
        "glslc",
        "",
        "the Vulkan SDK 1.3.272 or newer; on Debian 13, Ubuntu 24.04 and newer: sudo apt install glslc libvulkan-dev "
        "spirv-headers",
    ),
    "hip": ("hipcc", "/opt/rocm/bin", "AMD's ROCm, with its development files"),
    "metal": ("xcrun", "", "Apple's command line tools, on a Mac: xcode-select --install"),
}

# CMake options of llama.cpp, by the values of ACCEL.
ACCELERATORS = {"": "", "cpu": "", **{name: f"-DGGML_{name.upper()}=on" for name in COMPILERS}}
# By the number of the vendor on the PCI bus: its name, and what to build for, the fastest first.
VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
BACKENDS = {"NVIDIA": ("cuda", "vulkan"), "AMD": ("hip", "vulkan")}

# The CUDA versions that the index of prebuilt wheels has, newest first. A wheel needs a toolkit of its major version.
CUDA_WHEELS = ((13, 2), (13, 0), (12, 5), (12, 4), (12, 3), (12, 2), (12, 1), (11, 8))


class GPU(NamedTuple):
    vendor: str  # "NVIDIA", "AMD", "Intel" or "other".
    name: str
    has_driver: bool = True


def compiler(accelerator: str, path: str) -> str | None:
    """The path of the compiler for a graphics card, or None. `path` is the value of PATH."""
    program, folder, _ = COMPILERS[accelerator]
    return shutil.which(program, path=path) or (shutil.which(program, path=folder) if folder else None)


def find_gpu(path: str, root: Path = Path("/")) -> GPU | None:
    """The fastest GPU, or None. Software devices are none. `root` is the folder that has /sys and /dev."""
    if found := re.search(r"Product Name\s*: (.+)", _output(path, "nvidia-smi", "-q")):
        return GPU("NVIDIA", found[1].strip())
    order = (*VENDORS.values(), "other").index
    return min(_gpus(path, root), key=lambda gpu: (not gpu.has_driver, order(gpu.vendor)), default=None)


def _gpus(path: str, root: Path) -> Iterator[GPU]:
    for text in re.split(r"\nGPU\d+:", _output(path, "vulkaninfo", "--summary"))[1:]:
        values = dict(re.findall(r"(\w+)\s*= (.+)", text))
        if values.get("deviceType", "").endswith("_GPU"):
            yield GPU(VENDORS.get(values.get("vendorID", ""), "other"), values.get("deviceName", "GPU"))
    for device in sorted(root.glob("sys/bus/pci/devices/*")):
        kind, number = ((device / name).read_text(encoding="ascii").strip() for name in ("class", "vendor"))
        vendor = VENDORS.get(number) if kind.startswith("0x03") else None  # A display controller.
        has_file = any((root / "dev/dri" / node.name).exists() for node in device.glob("drm/renderD*"))
        if vendor == "NVIDIA" or (vendor and has_file):  # `nvidia-smi` has found no driver. A container may lack files.
            yield GPU(vendor, f"{vendor} GPU", vendor != "NVIDIA")


def backend_for(gpu: GPU, named: str, path: str) -> tuple[str, str]:
    """The accelerator to install for, unless one is named, and what is missing for the fastest one; "" if nothing."""
    backends = (named,) if named else BACKENDS.get(gpu.vendor, ("vulkan",))
    backend = next((name for name in backends if compiler(name, path)), backends[-1])
    program, _, package = COMPILERS[backends[0]]
    return backend, "" if compiler(backends[0], path) else f"install {package} ({program} was not found)"


def wheel_index(backend: str, path: str) -> str:
    """The name of the index with prebuilt wheels, or "". Their libraries for CUDA and HIP are parts of the toolkits."""
    program = compiler(backend, path)
    if backend in ("vulkan", "metal"):
        return backend
    if program is None or backend == "hip":
        return "rocm72" if program else ""
    found = re.search(r"release (\d+)\.(\d+)", _output(path, program, "--version"))
    newest = (int(found[1]), int(found[2])) if found else (0, 0)
    return next((f"cu{major}{minor}" for major, minor in CUDA_WHEELS if (newest[0], 0) <= (major, minor) <= newest), "")


def _output(path: str, program: str, *arguments: str) -> str:
    """What a program prints; "" if it is not in PATH, fails, or takes too long, as with a driver that hangs."""
    command = shutil.which(program, path=path)
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
        if command:
            return subprocess.run([command, *arguments], capture_output=True, text=True, timeout=20, check=True).stdout
    return ""
