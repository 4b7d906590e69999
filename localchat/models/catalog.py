"""Finds the model file of a command line argument, and the model that a request names."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from .sizes import gigabytes

DEMO = "demo"
DEMO_PATH = Path(__file__).with_name("demo.gguf")

# A split model: llama.cpp opens all parts when it gets the name of the first.
_PART = re.compile(r"-(\d{5})-of-(\d{5})$")


@dataclass(frozen=True)
class ModelFile:
    """A model to serve, and its name in lists and requests."""

    path: Path
    name: str


class ModelFileError(ValueError):
    """The model argument of the command line names no model file."""


class ModelNotFound(LookupError):
    """A request names a model that is not served; `names` are those that are."""

    status = 404
    code = "model_not_found"

    def __init__(self, requested: str, names: Sequence[str]) -> None:
        offered = ", ".join(map(repr, names))
        hint = "; started with --any-name, the server accepts every name" if len(names) == 1 else ""
        super().__init__(f"there is no model {requested!r} here; on offer: {offered}{hint}")
        self.names = tuple(names)


def model_file(argument: str | None = None, *, alias: str | None = None) -> ModelFile:
    """The file that a model argument means: a path, a folder with one model, or the built-in one.

    Raises:
        ModelFileError: there is no such file; the message says what was found instead.
        OSError: it cannot be read.
    """
    if argument is None or argument == DEMO:
        path, name = DEMO_PATH, DEMO
    else:
        path = _first_part(_existing(argument))
        name = _PART.sub("", path.stem)
    if not path.is_file():
        raise ModelFileError(f"there is no file {path}")
    # Bytes that are no UTF-8 cannot be sent, and clients must be able to send the listed name back.
    return ModelFile(path, (alias or name).encode("utf-8", "replace").decode())


def _existing(argument: str) -> Path:
    """The path of the model; for what is none, such as a name on Hugging Face, an error that says what to do."""
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
    """Bytes of a model, in all its parts."""
    match = _PART.search(path.stem)
    parts = path.parent.glob(f"{glob.escape(path.stem[: match.start()])}-*-of-{match[2]}.gguf") if match else [path]
    return sum(part.stat().st_size for part in parts)


def _model_files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.gguf"))
    return [file for file in files if _first_part(file) == file]


def _first_part(path: Path) -> Path:
    match = _PART.search(path.stem)
    return path.with_name(f"{path.stem[: match.start()]}-00001-of-{match[2]}{path.suffix}") if match else path


class Catalog:
    """The models on offer, found by name."""

    def __init__(self, models: Sequence[ModelFile], *, any_name: bool = False) -> None:
        """Offer these models. With `any_name` and a single model, every name means that model."""
        self.models: tuple[ModelFile, ...] = tuple(models)
        self._any_name = any_name

    @property
    def names(self) -> tuple[str, ...]:
        """The names on offer, in order."""
        return tuple(model.name for model in self.models)

    def find(self, requested: str | None = None) -> ModelFile:
        """The model that a request's `model` means.

        The name as it is, then in any case, then without its `:tag`; nothing or a blank means the
        only model there is.

        Raises:
            ModelNotFound: no model has that name, or several would do.
        """
        name = (requested or "").strip()
        if len(self.models) == 1 and (not name or self._any_name):
            return self.models[0]
        found = self._named(name)
        if len(found) != 1:
            raise ModelNotFound(name, self.names)
        return found[0]

    def _named(self, name: str) -> list[ModelFile]:
        folded = name.casefold()
        family = folded.partition(":")[0]
        rules: tuple[Callable[[str], bool], ...] = (
            lambda known: known == name,
            lambda known: known.casefold() == folded,
            # "llama:8b" may stand for the only model of the family "llama", but not for one of several.
            lambda known: ":" in folded and known.casefold() == family,
        )
        matches = ([model for model in self.models if rule(model.name)] for rule in rules)
        return next(filter(None, matches), [])
