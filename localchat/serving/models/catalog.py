"""A model file and its names; finds the file that a command line argument names."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# The argument for the built-in model, and its name.
DEMO = "demo"
DEMO_PATH = Path(__file__).with_name("demo.gguf")

# The end of the file name of a part of a split model. llama.cpp opens all parts if it gets the path of the first one.
_PART = re.compile(r"-(\d{5})-of-(\d{5})$")
# Projectors and other files beside a model, which are no models.
_NO_MODEL = re.compile(r"mmproj|imatrix|-vocab|ggml-vocab", re.IGNORECASE)


@dataclass(frozen=True)
class ModelFile:
    """A model on this machine."""

    path: Path
    name: str
    """The name in lists and requests."""
    source: str = "path"
    """Where it was found: "path", "models folder", "mapping file", "built-in", or the name of another program."""
    aliases: tuple[str, ...] = ()
    """Further names in requests."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of a mapping file, which replace those of the command line for this model."""

    def is_named(self, requested: str) -> bool:
        """Whether a name in a request means this model. Case and a tag such as ":8b" are ignored. "" is any model."""
        served, name = self.name.casefold(), requested.strip().casefold()
        return name in ("", served) or name.partition(":")[0] == served

    @property
    def n_bytes(self) -> int:
        """The bytes of all parts of the model; 0 if the file cannot be read."""
        try:
            return sum(part.stat().st_size for part in parts_of(self.path))
        except OSError:
            return 0

    @property
    def stamp(self) -> int:
        """The modification time of the file in nanoseconds, 0 if there is none."""
        return modified_at(self.path)


class ModelFileError(ValueError):
    """An argument or a mapping file does not name a model file."""


def model_at(argument: str) -> ModelFile:
    """The model at a path: a file, any part of a split model, or a folder with one model.

    Raises:
        ModelFileError: There is no such file, or the folder has several models.
        OSError: The folder cannot be read.
    """
    path = first_part(_existing(argument))
    if not path.is_file():
        raise ModelFileError(f"there is no file {path}")
    return ModelFile(path, name_of(path))


def name_of(path: Path) -> str:
    """The name of a model file: the file name without ".gguf" and without the number of a part."""
    return printable(_PART.sub("", path.stem))


def printable(name: str) -> str:
    """A name with "?" in place of bytes that are not valid UTF-8, which JSON cannot have."""
    return name.encode("utf-8", "replace").decode()


def is_model_name(file_name: str) -> bool:
    """Whether a file of this name is a model, or the first part of one."""
    if not file_name.endswith(".gguf") or file_name.startswith("._") or _NO_MODEL.search(file_name):
        return False
    part = _PART.search(file_name[: -len(".gguf")])
    return part is None or part[1] == "00001"


def first_part(path: Path) -> Path:
    match = _PART.search(path.stem)
    return path.with_name(f"{path.stem[: match.start()]}-00001-of-{match[2]}{path.suffix}") if match else path


def parts_of(path: Path) -> list[Path]:
    match = _PART.search(path.stem)
    if match is None:
        return [path]
    return sorted(path.parent.glob(f"{glob.escape(path.stem[: match.start()])}-*-of-{match[2]}.gguf"))


def modified_at(path: Path) -> int:
    """The modification time of a file or folder in nanoseconds, 0 if there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def gigabytes(n_bytes: float) -> str:
    """A size for people, such as "0.7 GB" or "12 MB"."""
    return f"{n_bytes / 1e6:.0f} MB" if n_bytes < 1e8 else f"{n_bytes / 1e9:.1f} GB"


def _existing(argument: str) -> Path:
    """The path in an argument. The errors for a URL and for a name on a model hub tell the user what to do."""
    if re.match(r"[a-z]+://", argument):
        raise ModelFileError(
            f"{argument} is a URL, and the server downloads nothing: get the file with curl -LO {argument}"
        )
    path = Path(os.path.expanduser(argument))
    if path.is_dir():
        return _only_model(path)
    if not path.exists() and re.fullmatch(r"[\w.-]+/[\w.-]+(:[\w.-]+)?", argument) and path.suffix != ".gguf":
        raise ModelFileError(
            f"there is no file {path}: if it is the name of a model on a hub, download one of its .gguf files first"
        )
    return path


def _only_model(folder: Path) -> Path:
    files = sorted(path for path in folder.glob("*.gguf") if is_model_name(path.name))
    if not files:
        raise ModelFileError(f"{folder} is a folder without a model (.gguf)")
    if len(files) > 1:
        lines = (f"\n  {file}  {gigabytes(ModelFile(file, '').n_bytes)}" for file in files)
        raise ModelFileError(f"{folder} holds {len(files)} models, choose one:{''.join(lines)}")
    return files[0]
