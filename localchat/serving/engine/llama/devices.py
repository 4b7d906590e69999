"""The devices of llama.cpp (ggml-backend, by ctypes), and the free memory of the machine.

The Python package binds no function of ggml.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..values import LoadOptions
from .library import L

# enum ggml_backend_dev_type; other numbers are accelerators.
_KINDS = {0: "CPU", 1: "GPU", 2: "GPU"}
# The pages that macOS can give to a program that needs memory.
_MAC_FREE_PAGES = ("free", "inactive", "speculative", "purgeable")


@dataclass(frozen=True)
class Device:
    """A device of llama.cpp."""

    name: str  # Its short name, such as "CUDA0".
    description: str  # What the driver calls it.
    kind: str  # "CPU", "GPU" (integrated ones too) or "accelerator".
    n_free: int  # Free bytes; 0 if the driver does not report them.

    @property
    def is_remote(self) -> bool:
        """Whether it is that of a worker of `--rpc`, whose address is then the description."""
        return self.name.startswith("RPC")


def devices() -> list[Device]:
    """All devices with their memory at this time; none if the library lacks the functions."""
    try:
        return [_device(i) for i in range(ggml("ggml_backend_dev_count", ctypes.c_size_t)())]
    except (AttributeError, OSError):
        return []


def supports_gpu() -> bool:
    """Whether this build of llama.cpp can use a GPU."""
    return bool(L.llama_supports_gpu_offload())


def used_gpus(options: LoadOptions) -> list[Device]:
    """The GPUs that may take layers, with their memory at this time."""
    may_use = options.n_gpu_layers != 0 and supports_gpu()
    gpus = [device for device in devices() if device.kind == "GPU"] if may_use else []
    return gpus[options.main_gpu :][:1] if options.split_mode == "none" else gpus


def projector_gpu(gpus: Sequence[Device]) -> Device | None:
    """The one of these GPUs that a projector is on: the first that is not of a worker. None: it is on the machine."""
    return next((gpu for gpu in gpus if not gpu.is_remote), None)


def built_for() -> str:
    """What llama.cpp is built for, in words, if it finds no GPU."""
    names = ("cuda", "hip", "vulkan", "metal")
    backends = [name for name in names if any(Path(L._base_path).glob(f"*ggml-{name}.*"))]
    return f"{', '.join(backends)}, and finds no GPU: check its driver" if backends else "the CPU alone"


def _device(i: int) -> Device:
    pointer, size, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
    device = ggml("ggml_backend_dev_get", pointer, size)(i)
    free, total = size(), size()
    ggml("ggml_backend_dev_memory", None, pointer, ctypes.POINTER(size), ctypes.POINTER(size))(device, free, total)
    name = ggml("ggml_backend_dev_name", text, pointer)(device) or b""
    description = ggml("ggml_backend_dev_description", text, pointer)(device) or b""
    kind = ggml("ggml_backend_dev_type", ctypes.c_int, pointer)(device)
    return Device(
        name.decode("utf-8", "replace"),
        description.decode("utf-8", "replace").strip(),
        _KINDS.get(kind, "accelerator"),
        free.value,
    )


def ggml(name: str, result: Any, *arguments: Any) -> Any:
    """A function of ggml. Linux and macOS resolve it through libllama, Windows only in ggml's own files."""
    libraries = [L._lib]
    if sys.platform == "win32":
        libraries += [ctypes.CDLL(os.path.join(L._base_path, file)) for file in ("ggml.dll", "ggml-base.dll")]
    library = next((library for library in libraries if hasattr(library, name)), None)
    if library is None:
        raise AttributeError(name)
    return ctypes.CFUNCTYPE(result, *arguments)((name, library))


def free_memory(root: Path = Path("/")) -> int | None:
    """The bytes that this process may still allocate; None if the system does not report them.

    These are the free bytes of the system, or what the limits of the control groups leave. `root` is the folder that
    has /proc and /sys.
    """
    if sys.platform == "darwin":
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            return parse_vm_stat(subprocess.run(["vm_stat"], capture_output=True, text=True, timeout=5).stdout)
        return None
    if sys.platform == "win32":
        return next((device.n_free for device in devices() if device.kind == "CPU"), None)
    n_kilobytes = _table(root / "proc/meminfo").get("MemAvailable")
    of_system = [] if n_kilobytes is None else [n_kilobytes * 1024]
    return min([*of_system, *_control_group_limits(root)], default=None)


def memory_for_models() -> str:
    """A line for the process that runs this and reads what it prints: the free bytes, a space, and where they are.

    They are those of the GPUs, or of the machine without one.
    """
    gpus = used_gpus(LoadOptions())
    where = f"on {', '.join(gpu.name for gpu in gpus)}" if gpus else "on this machine"
    return f"{sum(gpu.n_free for gpu in gpus) or free_memory() or 0} {where}"


def mapped_memory() -> int:
    """The bytes of mapped files in the memory of this process, 0 if not known. The system counts them as free."""
    return _table(Path("/proc/self/status")).get("RssFile", 0) * 1024


# Both versions of control groups: their line in /proc/self/cgroup, their folder, the files with the limit and the use,
# and the name of the inactive pages of files, which the system reclaims first.
_CONTROL_GROUPS = (
    (r"^0::/(.*)", "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    (
        r"^[1-9]\d*:(?:\S*,)?memory(?:,\S*)?:/(.*)",
        "sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)


def _control_group_limits(root: Path) -> Iterator[int]:
    """What the control groups of this process leave of their limits. A container is such a group."""
    groups = ""
    with contextlib.suppress(OSError):
        groups = (root / "proc/self/cgroup").read_text()
    for pattern, mount, limit, use, inactive in _CONTROL_GROUPS:
        match = re.search(pattern, groups, re.MULTILINE)
        group = root / mount / (match[1] if match else "")
        for folder in (group, *group.parents):  # In a container the mount may be its own group.
            with contextlib.suppress(OSError, ValueError):  # no such file, or the limit "max"
                n_left = int((folder / limit).read_text()) - int((folder / use).read_text())
                yield max(n_left + _table(folder / "memory.stat").get(inactive, 0), 0)


def _table(path: Path) -> dict[str, int]:
    """The numbers of a file with a name and a number per line; empty if there is no such file."""
    try:
        rows = re.findall(r"^([^\s:]+):?\s+(\d+)", path.read_text(encoding="ascii", errors="replace"), re.MULTILINE)
    except OSError:
        return {}
    return {name: int(number) for name, number in rows}


def parse_vm_stat(text: str) -> int | None:
    """The free memory in the output of macOS's `vm_stat`; None for other text."""
    page = re.search(r"page size of (\d+) bytes", text)
    n_pages = [int(n) for n in re.findall(rf"Pages (?:{'|'.join(_MAC_FREE_PAGES)}):\s+(\d+)", text)]
    return int(page[1]) * sum(n_pages) if page and n_pages else None
