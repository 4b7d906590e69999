"""The memory that this process may still allocate: free memory of the system, limits of control groups and `ulimit`.

Linux, macOS and Windows; the memory of GPUs is in llama/devices.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..models.sizes import gigabytes

# `vm_stat` takes a few milliseconds.
_VM_STAT_TIMEOUT_S = 5
# The pages that macOS can give to a program that needs memory.
_MAC_FREE_PAGES = ("free", "inactive", "speculative", "purgeable")


@dataclass(frozen=True)
class FreeMemory:
    """The memory that this process may still allocate."""

    n_bytes: int
    limit: str = ""
    """The limit that applies, such as that of a control group; "" if it is the memory of the machine."""

    def __str__(self) -> str:
        return f"{gigabytes(self.n_bytes)} are free{f' ({self.limit})' if self.limit else ''}"


def free_memory(root: Path = Path("/")) -> FreeMemory | None:
    """The free memory of the system, or what limits leave of it; None if the system does not report it.

    `root` is the folder that has /proc and /sys.
    """
    if sys.platform == "win32":
        return _windows_memory()
    if sys.platform == "darwin":
        return _mac_memory()
    found = [*_system_memory(root), *_control_group_limits(root), *_process_limits(root)]
    return min(found, key=lambda memory: memory.n_bytes, default=None)


def _system_memory(root: Path) -> Iterator[FreeMemory]:
    n_kilobytes = _table(root / "proc/meminfo").get("MemAvailable")
    if n_kilobytes is not None:
        yield FreeMemory(n_kilobytes * 1024)


def _control_group_limits(root: Path) -> Iterator[FreeMemory]:
    """The memory that the control group of this process and its parents leave. A container is such a group."""
    with contextlib.suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:  # version 2
                for mount in ("sys/fs/cgroup", "sys/fs/cgroup/unified"):
                    yield from _limits_of(root / mount, path, "memory.max", "memory.current", "inactive_file")
            elif "memory" in controllers.split(","):
                files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
                yield from _limits_of(root / "sys/fs/cgroup/memory", path, *files)


def _limits_of(mount: Path, path: str, limit: str, usage: str, inactive: str) -> Iterator[FreeMemory]:
    group = PurePosixPath(path)
    for folder in (group, *group.parents):  # In a container the mount may be its own group.
        base = mount.joinpath(*folder.parts[1:])
        most, used = _number(base / limit), _number(base / usage)
        if most is not None and used is not None:
            # The system reclaims inactive pages of files first.
            cached = _table(base / "memory.stat").get(inactive, 0)
            yield FreeMemory(max(most - used + cached, 0), "limit of the control group")


def _process_limits(root: Path) -> Iterator[FreeMemory]:
    import resource

    status = _table(root / "proc/self/status")
    for kind, name, command in ((resource.RLIMIT_AS, "VmSize", "-v"), (resource.RLIMIT_DATA, "VmData", "-d")):
        most = resource.getrlimit(kind)[0]
        if most != resource.RLIM_INFINITY and name in status:
            yield FreeMemory(max(most - status[name] * 1024, 0), f"limit of ulimit {command}")


def _table(path: Path) -> dict[str, int]:
    """The numbers of a file with a name and a number per line; empty if there is no such file."""
    try:
        lines = path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    found = (re.match(r"([^\s:]+):?\s+(\d+)", line) for line in lines)
    return {match[1]: int(match[2]) for match in found if match}


def _number(path: Path) -> int | None:
    """The number in a file; None if there is none, as in "max"."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _mac_memory() -> FreeMemory | None:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        out = subprocess.run(["vm_stat"], capture_output=True, text=True, timeout=_VM_STAT_TIMEOUT_S, check=True)
        return parse_vm_stat(out.stdout)
    return None


def parse_vm_stat(text: str) -> FreeMemory | None:
    """The free memory in the output of macOS's `vm_stat`; None for other text."""
    page = re.search(r"page size of (\d+) bytes", text)
    n_pages = [re.search(rf"Pages {name}:\s+(\d+)", text) for name in _MAC_FREE_PAGES]
    if page is None or n_pages[0] is None:
        return None
    return FreeMemory(int(page[1]) * sum(int(match[1]) for match in n_pages if match))


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX of Windows."""

    _fields_ = (
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        ("total_physical", ctypes.c_uint64),
        ("free_physical", ctypes.c_uint64),
        ("total_commit", ctypes.c_uint64),
        ("free_commit", ctypes.c_uint64),
        ("total_virtual", ctypes.c_uint64),
        ("free_virtual", ctypes.c_uint64),
        ("free_extended", ctypes.c_uint64),
    )


def _windows_memory() -> FreeMemory | None:
    status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
    if not ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):  # type: ignore[attr-defined,unused-ignore]
        return None
    return FreeMemory(min(status.free_physical, status.free_commit))
