"""Mapping files: names of models with their files and settings, as TOML (from Python 3.11 on) or JSON.

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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..core.errors import BadRequest
from ..core.params import parse_default
from .catalog import ModelFile, ModelFileError, first_part

# The keys of a model, each with the types of its value and what it must be, for errors.
_KEYS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "path": ((str,), "the path of a file"),
    "aliases": ((list,), "a list of names"),
    "ctx": ((int,), "a number of tokens"),
    "parallel": ((int,), "a number of requests"),
    "gpu_layers": ((int,), "a number of layers"),
    "draft": ((str,), "the path of a file"),
    "template": ((str,), "the path of a file with a chat template"),
    "sampling": ((dict,), "a table of sampling parameters"),
}


def read_mapping(path: Path) -> list[ModelFile]:
    """The models of a mapping file.

    Raises:
        ModelFileError: The file cannot be read, or has an error; the message names the line or the key.
    """
    models = []
    for name, value in _read(path).items():
        given = {"path": value} if isinstance(value, str) else value
        if not isinstance(given, dict):
            raise ModelFileError(
                f"{path}: {name!r} must be a path or a table, not {json.dumps(value, default=str)[:80]}"
            )
        for key, item in given.items():
            types, meaning = _KEYS.get(key, ((), ""))
            if not types:
                raise ModelFileError(f"{path}: {name!r} has the unknown key {key!r}; keys are {', '.join(_KEYS)}")
            if not isinstance(item, types) or isinstance(item, bool):
                raise ModelFileError(
                    f"{path}: {key!r} of {name!r} must be {meaning}, not {json.dumps(item, default=str)[:80]}"
                )
        if "path" not in given:
            raise ModelFileError(f"{path}: {name!r} has no 'path'")
        settings = {key: item for key, item in given.items() if key not in ("path", "aliases")}
        for key in {"draft", "template"} & settings.keys():
            settings[key] = str(_absolute(path, settings[key]))
        if "sampling" in settings:
            settings["sampling"] = _sampling(path, name, settings["sampling"])
        aliases = tuple(str(alias) for alias in given.get("aliases", ()))
        models.append(ModelFile(first_part(_absolute(path, given["path"])), name, "mapping file", aliases, settings))
    return models


def _sampling(path: Path, name: str, given: dict[str, Any]) -> dict[str, Any]:
    """The sampling defaults of a model, by the names in SamplingParams."""
    try:
        values = [parse_default(f"{key}={json.dumps(value, default=str)}") for key, value in given.items()]
    except BadRequest as error:
        raise ModelFileError(f"{path}: 'sampling' of {name!r}: {error.message}") from error
    return {key: value for found in values for key, value in found.items()}


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        data = _parse_toml(path, text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise ModelFileError(f"{path}: the mapping file cannot be read: {error.strerror}") from error
    except ModelFileError:
        raise
    except ValueError as error:
        raise ModelFileError(f"{path}: {error}") from error
    if not isinstance(data, dict):
        raise ModelFileError(f"{path}: the mapping file must be an object of names")
    return data


def _parse_toml(path: Path, text: str) -> Any:
    try:
        parse: Callable[[str], Any] = importlib.import_module("tomllib").loads
    except ImportError:
        raise ModelFileError(
            f"{path}: TOML needs Python 3.11; write {path.with_suffix('.json').name} instead"
        ) from None
    return parse(text)


def _absolute(mapping: Path, given: str) -> Path:
    return mapping.parent / os.path.expanduser(given)
