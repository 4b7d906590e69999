"""Finds models in mapping files and in the folders of this program, Hugging Face, LM Studio, llama.cpp and Ollama.

A mapping file gives names of models with their files and settings, as TOML (from Python 3.11 on) or JSON:

    [qwen]                      # the name in requests
    path = "qwen2.5-7b-q4.gguf" # relative to the mapping file
    aliases = ["gpt-4o"]
    ctx = 16384
    parallel = 4

`name = "file.gguf"` is short for a table with only a path.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import re
from argparse import ArgumentTypeError
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import BadRequest
from ..core.fields import Fields
from ..core.model_options import SETTINGS, Whole, read_adapter
from ..core.params import read_sampling
from .gguf import read_bytes
from .model_file import (
    QUANTISATION,
    ModelFile,
    ModelFileError,
    first_part,
    is_model,
    is_model_name,
    name_of,
    printable_name,
)

log = logging.getLogger("localchat.server")

# The limits of the folders below a root: deeper ones and further ones are not scanned.
_MAX_DEPTH, _MAX_FOLDERS = 6, 10_000
_MAX_BYTES = 1 << 20  # The limit of a mapping file, and of a file of another program that names a model.
_DYNAMIC = "UD-"  # Before the quantisation of a file in which it differs from layer to layer.
# The folders of Ollama's registry, and of the models without a publisher in it.
_OLLAMA_REGISTRY = re.compile(r"^registry\.ollama\.ai/(library/)?")


def read_mapping(path: Path) -> list[ModelFile]:
    """The models of a mapping file. Raises ModelFileError, which names the file and the line or the key."""
    try:
        text = read_bytes(path, _MAX_BYTES).decode("utf-8-sig")
        data = importlib.import_module("tomllib").loads(text) if path.suffix == ".toml" else json.loads(text)
        if not isinstance(data, dict):
            raise ModelFileError(f"{path}: the mapping file must be an object of names")
        body = Fields(data)
        return [_model(path, body, name) for name in data]
    except ImportError:
        other = path.with_suffix(".json").name
        raise ModelFileError(f"{path}: TOML needs Python 3.11; write {other} instead") from None
    except OSError as error:
        raise ModelFileError(f"{path}: the mapping file cannot be read: {error.strerror}") from error
    except ModelFileError:
        raise
    except (ValueError, RecursionError, BadRequest, ArgumentTypeError) as error:
        raise ModelFileError(f"{path}: {error}") from error


def _model(path: Path, body: Fields, name: str) -> ModelFile:
    value = body.raw[name]
    given = body.child({"path": value}, name) if isinstance(value, str) else body.required_object(name)
    weights = _beside(path, given.nonempty_text("path"))
    aliases = given.items("aliases", "names")
    settings: dict[str, Any] = {}
    readers = {**{key: option.metadata["read"] for key, option in SETTINGS.items()}, "template": str}
    for key, read in readers.items():
        if isinstance(read, Whole):
            settings[key] = read.setting(given, key)
        elif file := given.text(key):  # The others are files.
            settings[key] = str(_beside(path, file))
    listed = given.object_or_empty("adapters")
    adapters = tuple(read_adapter(f"{key}={_beside(path, listed.nonempty_text(key))}") for key in listed.raw)
    sampling = given.object("sampling")
    if sampling is not None:
        settings["sampling"] = read_sampling(sampling)
        sampling.report_unknown()
    given.report_unknown()
    unknown = given.ignored(strict=False)
    if unknown:
        known = f"path, aliases, {', '.join(readers)}, adapters, sampling"
        raise ModelFileError(f"{path}: the key {unknown[0]!r} is unknown; the keys of a model are {known}")
    settings = {key: item for key, item in settings.items() if item is not None}
    return ModelFile(first_part(weights), name, "mapping file", tuple(map(str, aliases)), settings, adapters=adapters)


def _beside(mapping: Path, file: str) -> Path:
    path = mapping.parent / os.path.expanduser(file)
    if b"\0" in os.fsencode(path):  # Half of a surrogate pair is a ValueError here.
        raise ValueError(f"the path {file!r} has a null character")
    return path


@dataclass(eq=False)
class Scan:
    reported: set[str]  # What earlier scans have logged, which is not logged again.
    stamps: dict[Path, int] = field(default_factory=dict)  # When what it read was changed: whether to scan again.

    def skip(self, path: Path, problem: str) -> None:
        self.report(f"{path} is skipped: {problem}")

    def report(self, text: str) -> None:
        text = printable_name(text)
        if text not in self.reported:
            self.reported.add(text)
            log.warning("%s", text)

    def entries(self, folder: Path) -> list[os.DirEntry[str]]:
        """The files and folders in a folder, in alphabetical order, without those whose kind cannot be read."""
        self.stamps[folder] = changed_at(folder)
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except FileNotFoundError:
            return []
        except OSError as error:
            self.skip(folder, str(error.strerror))
            return []
        usable = []
        for entry in entries:
            try:
                if entry.is_dir() or entry.is_file():
                    usable.append(entry)
                elif is_model_name(entry.name):
                    self.skip(folder / entry.name, "it is neither a file nor a link to one")
            except OSError as error:  # Such as a loop of links.
                self.skip(folder / entry.name, str(error.strerror))
        return usable


def changed_at(path: Path) -> int:
    """When a file or folder or its permissions were changed, in nanoseconds; 0 if there is none."""
    try:
        found = path.stat()
    except OSError:
        return 0
    return max(found.st_mtime_ns, found.st_ctime_ns)


def files_below(root: Path, scan: Scan) -> Iterator[Path]:
    """The files below a folder, by folder and name, last those behind links to folders. Each folder is read once."""
    seen: set[str] = set()
    todo = deque([(root, _MAX_DEPTH)])
    while todo:
        folder, depth = todo.popleft()
        real = os.path.realpath(folder)
        if real in seen:
            continue
        if len(seen) == _MAX_FOLDERS:
            scan.skip(root, f"it has more than {_MAX_FOLDERS} folders, of which the others are not read")
            return
        seen.add(real)
        below: list[tuple[Path, int]] = []
        for entry in scan.entries(folder):
            if not entry.is_dir():
                yield folder / entry.name
            elif depth:
                (todo if entry.is_symlink() else below).append((folder / entry.name, depth - 1))
        todo.extendleft(reversed(below))


def model_files_below(root: Path, scan: Scan) -> Iterator[Path]:
    """The files below a folder that are models by their headers."""
    for path in files_below(root, scan):
        if is_model_name(path.name):
            if is_model(path):
                yield path
            else:
                scan.stamps[path] = changed_at(path)  # It may become one, such as a download.


def models_below(root: Path, scan: Scan, source: str = "models folder") -> Iterator[ModelFile]:
    """The models below a folder: named after the file, or after the folders too if two files have one name."""
    by_name: dict[str, list[Path]] = {}
    for path in model_files_below(root, scan):
        by_name.setdefault(name_of(path).casefold(), []).append(path)
    for paths in by_name.values():
        for path in paths:
            whole = (path.parent / name_of(path)).relative_to(root).as_posix()
            is_only = len(paths) == 1
            yield ModelFile(path, name_of(path) if is_only else whole, source, (whole,) if is_only else ())


def _repository_models(files: Iterable[tuple[str, Path]], source: str) -> Iterator[ModelFile]:
    """Models in folders of repositories, named "publisher/repository", with ":quantisation" if there are several.
    `files` are the files with the names of their repositories. Of files with one name, the first one counts."""
    by_repository: dict[str, dict[tuple[str, str], Path]] = {}
    for repository, path in files:
        by_repository.setdefault(repository, {}).setdefault((name_of(path), quantisation_of(path)), path)
    for repository, paths in by_repository.items():
        tags = {tag for _, tag in paths}
        for (short, tag), path in paths.items():
            name = f"{repository}:{tag or short}"
            aliases = [short, name]
            plain = tag.removeprefix(_DYNAMIC)
            if plain not in tags:  # The repository has no other file with this quantisation.
                aliases.append(f"{repository}:{plain}")
            yield ModelFile(path, repository if len(paths) == 1 else name, source, tuple(aliases))


def quantisation_of(path: Path) -> str:
    """The quantisation in the name of a file, or else in that of its folder; "" if there is none.

    It begins with "UD-" for a dynamic one, under which llama.cpp and Ollama know the file, too.
    """
    for name in (name_of(path), f"-{path.parent.name}"):
        found = QUANTISATION.search(name)
        if found:
            is_dynamic = name[: found.start() + 1].upper().endswith(("-" + _DYNAMIC, "." + _DYNAMIC, "_" + _DYNAMIC))
            return (_DYNAMIC if is_dynamic else "") + found[1].upper()
    return ""


def _hub_files(root: Path, scan: Scan) -> Iterator[tuple[str, Path]]:
    """models--publisher--repository/snapshots/<commit>/file.gguf; the file refs/main has the commit in use."""
    for repository in scan.entries(root):
        if repository.name.startswith("models--") and repository.is_dir():
            folder = root / repository.name
            main = folder / "refs" / "main"
            scan.stamps[main] = changed_at(main)
            try:
                commit = read_bytes(main, _MAX_BYTES).decode("utf-8", "replace").strip()
            except (ModelFileError, OSError) as error:
                commit = ""
                if not isinstance(error, FileNotFoundError):
                    scan.skip(main, str(error))
            for snapshot in sorted(scan.entries(folder / "snapshots"), key=lambda entry: entry.name != commit):
                for path in model_files_below(folder / "snapshots" / snapshot.name, scan) if snapshot.is_dir() else ():
                    yield repository.name.removeprefix("models--").replace("--", "/", 1), path


def _lm_studio_files(root: Path, scan: Scan) -> Iterator[tuple[str, Path]]:
    """publisher/repository/file.gguf"""
    for path in model_files_below(root, scan):
        parts = path.relative_to(root).parts
        if len(parts) >= 3:
            yield "/".join(parts[:2]), path


def _ollama_models(root: Path, scan: Scan) -> Iterator[ModelFile]:
    """A manifest names the layers of a model; one of them is the file with the weights."""
    for path in files_below(root / "manifests", scan):
        folders = path.relative_to(root / "manifests").parts[:-1]
        name = _OLLAMA_REGISTRY.sub("", "/".join((*folders, ""))).rstrip("/")
        if path.name.startswith(".") or not name:  # Such as .DS_Store.
            continue
        blob = _layer(path, root / "blobs", scan)
        if blob is not None:
            projector = _layer(path, root / "blobs", scan, "projector")
            aliases = (name,) if path.name == "latest" else ()
            yield ModelFile(blob, f"{name}:{path.name}", "Ollama", aliases, projector=projector)


def _layer(manifest: Path, blobs: Path, scan: Scan, kind: str = "model") -> Path | None:
    """The file of a layer of a model; None if there is none, as for the weights of a model that runs elsewhere."""
    scan.stamps[manifest] = changed_at(manifest)
    try:
        layers = json.loads(read_bytes(manifest, _MAX_BYTES).decode("utf-8"))["layers"] or ()
        digests = [layer["digest"] for layer in layers if layer["mediaType"] == f"application/vnd.ollama.image.{kind}"]
        is_digest = [re.fullmatch(r"sha256:[0-9a-f]{64}", digest) is not None for digest in digests]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        scan.skip(manifest, f"the manifest cannot be read: {type(error).__name__}: {error}")
        return None
    if is_digest != [True]:
        return None
    path = blobs / digests[0].replace(":", "-")
    if not os.path.isfile(path):
        scan.stamps[path] = changed_at(path)
        scan.skip(manifest, f"there is no file {path}")
        return None
    return path if kind != "model" or is_model(path) else None


def home_in(environment: Mapping[str, str]) -> Path | None:
    home = environment.get("HOME") or environment.get("USERPROFILE")
    return Path(home) if home else None


@dataclass(frozen=True)
class Source:
    """The models of another program."""

    models: Callable[[Path, Scan], Iterator[ModelFile]]
    folders: tuple[str, ...]  # Below the home directory, unless one of the variables is set.
    variables: Mapping[str, str] = field(default_factory=dict)  # Of the environment, each with the path below it.

    def roots(self, environment: Mapping[str, str]) -> list[Path]:
        for variable, below in self.variables.items():
            if environment.get(variable):
                return [Path(environment[variable]) / below]
        home = home_in(environment)
        return [home / folder for folder in self.folders] if home else []


SOURCES = (
    Source(
        lambda root, scan: _repository_models(_hub_files(root, scan), "Hugging Face"),
        (".cache/huggingface/hub",),
        {"HF_HUB_CACHE": "", "HUGGINGFACE_HUB_CACHE": "", "HF_HOME": "hub", "XDG_CACHE_HOME": "huggingface/hub"},
    ),
    Source(
        lambda root, scan: _repository_models(_lm_studio_files(root, scan), "LM Studio"),
        (".lmstudio/models", ".cache/lm-studio/models"),
    ),
    Source(
        lambda root, scan: models_below(root, scan, "llama.cpp"),
        (".cache/llama.cpp", "Library/Caches/llama.cpp"),
        {"LLAMA_CACHE": "", "XDG_CACHE_HOME": "llama.cpp", "LOCALAPPDATA": "llama.cpp"},
    ),
    Source(_ollama_models, (".ollama/models",), {"OLLAMA_MODELS": ""}),
)
