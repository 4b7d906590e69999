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
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import BadRequest
from ..core.fields import Fields
from ..core.params import read_sampling
from .model_file import ModelFile, ModelFileError, first_part, is_model_name, name_of, printable

_KEYS = "path, aliases, ctx, parallel, gpu_layers, draft, template, sampling"

# Folders deeper than this below a root are not scanned.
_MAX_DEPTH = 6
QUANTISATION = re.compile(r"[-._]((?:IQ|Q|TQ)\d\w*|BF16|F16|F32|MXFP4\w*)$", re.IGNORECASE)


def read_mapping(path: Path) -> list[ModelFile]:
    """The models of a mapping file. Raises ModelFileError, which names the file and the line or the key."""
    try:
        text = path.read_text(encoding="utf-8-sig")
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
    except (ValueError, BadRequest) as error:
        raise ModelFileError(f"{path}: {error}") from error


def _model(path: Path, body: Fields, name: str) -> ModelFile:
    value = body.raw[name]
    given = body.child({"path": value}, name) if isinstance(value, str) else body.required_object(name)
    settings: dict[str, Any] = {key: given.integer(key) for key in ("ctx", "parallel", "gpu_layers")}
    for key in ("draft", "template"):
        file = given.text(key)
        settings[key] = str(path.parent / os.path.expanduser(file)) if file else None
    sampling = given.object("sampling")
    if sampling is not None:
        settings["sampling"] = read_sampling(sampling)
        sampling.report_unknown()
    weights = path.parent / os.path.expanduser(given.required_text("path"))
    aliases = given.items("aliases", "names")
    given.report_unknown()
    unknown = given.ignored(strict=False)
    if unknown:
        raise ModelFileError(f"{path}: the key {unknown[0]!r} is unknown; the keys of a model are {_KEYS}")
    settings = {key: item for key, item in settings.items() if item is not None}
    return ModelFile(first_part(weights), name, "mapping file", tuple(map(str, aliases)), settings)


# The modification times of the folders that were read; a scan adds them. They show whether to scan again.
Stamps = dict[Path, int]


def files_below(folder: Path, stamps: Stamps, depth: int = _MAX_DEPTH) -> Iterator[Path]:
    """The files below a folder, in alphabetical order. Links to folders are not followed."""
    try:
        stamps[folder] = folder.stat().st_mtime_ns
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:  # It does not exist, or may not be read.
        stamps.setdefault(folder, 0)
        return
    for entry in entries:
        if not entry.is_dir():
            yield folder / entry.name
        elif depth and not entry.is_symlink():
            yield from files_below(folder / entry.name, stamps, depth - 1)


def models_below(root: Path, stamps: Stamps, source: str = "models folder") -> Iterator[ModelFile]:
    """The models below a folder: named after the file, or after the folders too if two files have one name."""
    by_name: dict[str, list[Path]] = {}
    for path in files_below(root, stamps):
        if is_model_name(path.name):
            by_name.setdefault(name_of(path).casefold(), []).append(path)
    for paths in by_name.values():
        for path in paths:
            whole = printable((path.parent / name_of(path)).relative_to(root).as_posix())
            is_only = len(paths) == 1
            yield ModelFile(path, name_of(path) if is_only else whole, source, (whole,) if is_only else ())


def _repository_models(
    root: Path, stamps: Stamps, source: str, repository_of: Callable[[Path], str]
) -> Iterator[ModelFile]:
    """Models in folders of repositories, named "publisher/repository", with ":quantisation" if there are several."""
    by_repository: dict[str, list[Path]] = {}
    for path in files_below(root, stamps):
        repository = repository_of(path.relative_to(root))
        if repository and is_model_name(path.name):
            by_repository.setdefault(repository, []).append(path)
    for repository, paths in by_repository.items():
        for path in paths:
            tag = QUANTISATION.search(name_of(path))
            name = f"{repository}:{tag[1] if tag else name_of(path)}"
            shown = printable(repository if len(paths) == 1 else name)
            yield ModelFile(path, shown, source, (name_of(path), printable(name)))


def _hub_repository(path: Path) -> str:
    """models--publisher--repository/snapshots/<commit>/file.gguf"""
    parts = path.parts
    is_snapshot = len(parts) >= 4 and parts[0].startswith("models--") and parts[1] == "snapshots"
    return parts[0][len("models--") :].replace("--", "/", 1) if is_snapshot else ""


def _lm_studio_repository(path: Path) -> str:
    """publisher/repository/file.gguf"""
    return "/".join(path.parts[:2]) if len(path.parts) >= 3 else ""


def _ollama_models(root: Path, stamps: Stamps) -> Iterator[ModelFile]:
    """A manifest names the layers of a model; one of them is the file with the weights."""
    for path in files_below(root / "manifests", stamps):
        host, *names, tag = path.relative_to(root / "manifests").parts
        if host == "registry.ollama.ai" and names[:1] == ["library"]:
            names = names[1:]
        elif host != "registry.ollama.ai":
            names = [host, *names]
        blob = _weights(path, root / "blobs")
        if blob is not None and names:
            name = printable("/".join(names))
            yield ModelFile(blob, f"{name}:{tag}", "Ollama", (name,) if tag == "latest" else ())


def _weights(manifest: Path, blobs: Path) -> Path | None:
    try:
        layers = json.loads(manifest.read_text(encoding="utf-8"))["layers"]
        digests = [layer["digest"] for layer in layers if layer["mediaType"] == "application/vnd.ollama.image.model"]
        if len(digests) != 1 or not re.fullmatch(r"sha256:[0-9a-f]{64}", digests[0]):
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    path = blobs / digests[0].replace(":", "-")
    return path if path.is_file() else None


@dataclass(frozen=True)
class Source:
    """The models of another program."""

    models: Callable[[Path, Stamps], Iterator[ModelFile]]
    folders: tuple[str, ...]  # Below the home directory, unless one of the variables is set.
    variables: Mapping[str, str] = field(default_factory=dict)  # Of the environment, each with the path below it.

    def roots(self, environment: Mapping[str, str]) -> list[Path]:
        for variable, below in self.variables.items():
            if environment.get(variable):
                return [Path(environment[variable]) / below]
        home = environment.get("HOME") or environment.get("USERPROFILE")
        return [Path(home) / folder for folder in self.folders] if home else []


SOURCES = (
    Source(
        lambda root, stamps: _repository_models(root, stamps, "Hugging Face", _hub_repository),
        (".cache/huggingface/hub",),
        {"HF_HUB_CACHE": "", "HUGGINGFACE_HUB_CACHE": "", "HF_HOME": "hub"},
    ),
    Source(
        lambda root, stamps: _repository_models(root, stamps, "LM Studio", _lm_studio_repository),
        (".lmstudio/models", ".cache/lm-studio/models"),
    ),
    Source(
        lambda root, stamps: models_below(root, stamps, "llama.cpp"),
        (".cache/llama.cpp", "Library/Caches/llama.cpp"),
        {"LLAMA_CACHE": ""},
    ),
    Source(_ollama_models, (".ollama/models",), {"OLLAMA_MODELS": ""}),
)
