"""Wheels of one module. A copy of this file is a build backend, so it imports only Python's standard library."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path


def write_wheel(folder: Path, name: str, version: str, module: str, code: str = "", requires: str = "") -> str:
    """Write a wheel whose module has this code. Returns the name of its file."""
    information, file_name = f"{name}-{version}.dist-info", f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(Path(folder, file_name), "w") as file:
        file.writestr(f"{module}.py", code)
        file.writestr(f"{information}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}")
        file.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{information}/RECORD", "")
    return file_name


def write_sources(folder: Path, name: str, version: str, module: str, more: str = "", requires: str = "") -> None:
    """Write a project that this module builds. `more` is of its pyproject.toml."""
    folder.mkdir()
    (folder / "backend.py").write_bytes(Path(__file__).read_bytes())
    (folder / "arguments").write_text("\0".join((name, version, module, requires)))
    head = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (folder / "pyproject.toml").write_text(head + more)


def build_wheel(folder: Path, settings: object = None, metadata: object = None) -> str:
    """Build the project in this folder. Its module has the CMAKE_ARGS of the build."""
    name, version, module, requires = Path("arguments").read_text().split("\0")
    return write_wheel(folder, name, version, module, f"KIND = {os.environ.get('CMAKE_ARGS', '')!r}", requires)


build_editable = build_wheel
