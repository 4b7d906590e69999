"""Finds models in the folders of this program and of others: Hugging Face, LM Studio, llama.cpp, Ollama. Reads only."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .catalog import ModelFile, is_model_name, name_of, printable

# Folders deeper than this below a root are not scanned.
_MAX_DEPTH = 6
QUANTISATION = re.compile(r"[-._]((?:IQ|Q|TQ)\d\w*|BF16|F16|F32|MXFP4\w*)$", re.IGNORECASE)


@dataclass(frozen=True)
class Found:
    """A root to scan, and the modification times of all folders below it, which the scan adds."""

    root: Path
    stamps: dict[Path, int]

    def files(self) -> Iterator[Path]:
        """The files below the root, in alphabetical order. Links to folders outside of the root are not followed."""
        return self._below(self.root, os.path.realpath(self.root), _MAX_DEPTH)

    def _below(self, folder: Path, real_root: str, depth: int) -> Iterator[Path]:
        try:
            self.stamps[folder] = folder.stat().st_mtime_ns
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:  # It does not exist, or may not be read.
            self.stamps.setdefault(folder, 0)
            return
        for entry in entries:
            if not entry.is_dir():
                yield folder / entry.name
            elif depth and not (entry.is_symlink() and not _is_inside(entry.path, real_root)):
                yield from self._below(folder / entry.name, real_root, depth - 1)


def models_below(found: Found, source: str = "models folder") -> Iterator[ModelFile]:
    """The models below a folder: named after the file, or after the folders too if two files have one name."""
    by_name: dict[str, list[Path]] = {}
    for path in found.files():
        if is_model_name(path.name):
            by_name.setdefault(name_of(path).casefold(), []).append(path)
    for paths in by_name.values():
        for path in paths:
            whole = printable((path.parent / name_of(path)).relative_to(found.root).as_posix())
            is_only = len(paths) == 1
            yield ModelFile(path, name_of(path) if is_only else whole, source, (whole,) if is_only else ())


def _repository_models(found: Found, source: str, repository_of: Callable[[Path], str]) -> Iterator[ModelFile]:
    """Models in folders of repositories, named "publisher/repository", with ":quantisation" if there are several."""
    by_repository: dict[str, list[Path]] = {}
    for path in found.files():
        repository = repository_of(path.relative_to(found.root))
        if repository and is_model_name(path.name):
            by_repository.setdefault(repository, []).append(path)
    for repository, paths in by_repository.items():
        for path in paths:
            tag = QUANTISATION.search(name_of(path))
            name = f"{repository}:{tag[1] if tag else name_of(path)}"
            yield ModelFile(
                path, printable(repository if len(paths) == 1 else name), source, (name_of(path), printable(name))
            )


def _hub_repository(path: Path) -> str:
    """models--publisher--repository/snapshots/<commit>/file.gguf"""
    parts = path.parts
    is_snapshot = len(parts) >= 4 and parts[0].startswith("models--") and parts[1] == "snapshots"
    return parts[0][len("models--") :].replace("--", "/", 1) if is_snapshot else ""


def _lm_studio_repository(path: Path) -> str:
    """publisher/repository/file.gguf"""
    return "/".join(path.parts[:2]) if len(path.parts) >= 3 else ""


def _ollama_models(found: Found) -> Iterator[ModelFile]:
    """A manifest names the layers of a model; one of them is the file with the weights."""
    manifests = Found(found.root / "manifests", found.stamps)
    for path in manifests.files():
        host, *names, tag = path.relative_to(manifests.root).parts
        if host == "registry.ollama.ai" and names[:1] == ["library"]:
            names = names[1:]
        elif host != "registry.ollama.ai":
            names = [host, *names]
        blob = _weights(path, found.root / "blobs")
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

    models: Callable[[Found], Iterator[ModelFile]]
    variables: tuple[tuple[str, str], ...]
    """Environment variables with the program's folder, each with the path below it."""
    folders: tuple[str, ...]
    """The folders without such a variable, below the home directory."""

    def roots(self, environment: Mapping[str, str]) -> list[Path]:
        for variable, below in self.variables:
            if environment.get(variable):
                return [Path(environment[variable]) / below]
        home = environment.get("HOME") or environment.get("USERPROFILE")
        return [Path(home) / folder for folder in self.folders] if home else []


SOURCES = (
    Source(
        lambda found: _repository_models(found, "Hugging Face", _hub_repository),
        (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub")),
        (".cache/huggingface/hub",),
    ),
    Source(
        lambda found: _repository_models(found, "LM Studio", _lm_studio_repository),
        (),
        (".lmstudio/models", ".cache/lm-studio/models"),
    ),
    Source(
        lambda found: models_below(found, "llama.cpp"),
        (("LLAMA_CACHE", ""),),
        (".cache/llama.cpp", "Library/Caches/llama.cpp"),
    ),
    Source(_ollama_models, (("OLLAMA_MODELS", ""),), (".ollama/models",)),
)


def _is_inside(path: str, real_root: str) -> bool:
    real = os.path.realpath(path)
    return real.startswith(os.path.join(real_root, ""))
