"""Child processes of this package: their environment, and the signals that kill them."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def child_environment() -> dict[str, str]:
    """The environment variables of a child process that imports this copy of the package, wherever it is."""
    package_parent = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join(filter(None, [package_parent, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


def signal_name(returncode: int) -> str | None:
    """The name of the signal that killed a process, by its return code; None if it ended by itself."""
    if returncode < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-returncode).name
        return f"signal {-returncode}"
    # Windows ends a crashed process with an NTSTATUS, which starts with binary 11.
    return f"exception 0x{returncode:08X}" if returncode >= 0xC0000000 else None
