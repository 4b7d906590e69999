"""Finds the installed Pythons."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path


@functools.cache
def interpreter(version: str) -> str | None:
    """An interpreter of this version: this one, one in PATH, or one of pyenv."""
    homes = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    program = f"import sys; sys.exit(sys.version_info[:2] != {tuple(map(int, version.split('.')))})"
    for python in (sys.executable, shutil.which(f"python{version}"), *map(str, homes.glob(f"{version}.*/bin/python"))):
        if python and subprocess.run([python, "-c", program], capture_output=True, timeout=60).returncode == 0:
            return python
    return None
