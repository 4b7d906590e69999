"""Finds the model file that a command line argument names; compares its name with the one in a request."""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass
from pathlib import Path

from .sizes import gigabytes

# The argument for the built-in model, and its name.
DEMO = "demo"
DEMO_PATH = Path(__file__).with_name("demo.gguf")

# The end of the file name of a part of a split model. llama.cpp opens all parts if it gets the path of the first one.
_PART = re.compile(r"-(\d{5})-of-(\d{5})$")


@dataclass(frozen=True)
class ModelFile:
    """A model to serve."""

    path: Path
    name: str
    """The name in lists and requests."""

    def is_named(self, requested: str) -> bool:
        """Whether a name in a request means this model. Case and a tag such as ":8b" are ignored. "" is any model."""
        served, name = self.name.casefold(), requested.strip().casefold()
        return name in ("", served) or name.partition(":")[0] == served


class ModelFileError(ValueError):
    """The model argument of the command line does not name a model file."""


def model_file(argument: str | None = None, *, alias: str | None = None) -> ModelFile:
    """The model that an argument names: the path of a file, a folder with one model, or the built-in model.

    Raises:
        ModelFileError: There is no such file.
        OSError: The folder cannot be read.
    """
    if argument is None or argument == DEMO:
        path, name = DEMO_PATH, DEMO
    else:
        path = _first_part(_existing(argument))
        name = _PART.sub("", path.stem)
    if not path.is_file():
        raise ModelFileError(f"there is no file {path}")
    # A name that is not valid UTF-8 cannot be sent in JSON, so the listed name has "?" in place of such bytes.
    return ModelFile(path, (alias or name).encode("utf-8", "replace").decode())


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
    files = _model_files(folder)
    if not files:
        raise ModelFileError(f"{folder} is a folder without a model (.gguf)")
    if len(files) > 1:
        lines = (f"\n  {file}  {gigabytes(_size(file))}" for file in files)
        raise ModelFileError(f"{folder} holds {len(files)} models, choose one:{''.join(lines)}")
    return files[0]


def _size(path: Path) -> int:
    """The bytes of all parts of a model."""
    match = _PART.search(path.stem)
    parts = path.parent.glob(f"{glob.escape(path.stem[: match.start()])}-*-of-{match[2]}.gguf") if match else [path]
    return sum(part.stat().st_size for part in parts)


def _model_files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.gguf"))
    return [file for file in files if _first_part(file) == file]


def _first_part(path: Path) -> Path:
    match = _PART.search(path.stem)
    return path.with_name(f"{path.stem[: match.start()]}-00001-of-{match[2]}{path.suffix}") if match else path
