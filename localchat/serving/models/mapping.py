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
from pathlib import Path
from typing import Any

from ..core.errors import BadRequest
from ..core.fields import Fields
from ..core.params import read_sampling
from .catalog import ModelFile, ModelFileError, first_part

_KEYS = "path, aliases, ctx, parallel, gpu_layers, draft, template, sampling"


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
        settings[key] = str(_absolute(path, file)) if file else None
    sampling = given.object("sampling")
    if sampling is not None:
        settings["sampling"] = read_sampling(sampling)
        sampling.report_unknown()
    weights, aliases = _absolute(path, given.required_text("path")), given.items("aliases", "names")
    given.report_unknown()
    unknown = given.ignored(strict=False)
    if unknown:
        raise ModelFileError(f"{path}: the key {unknown[0]!r} is unknown; the keys of a model are {_KEYS}")
    settings = {key: item for key, item in settings.items() if item is not None}
    return ModelFile(first_part(weights), name, "mapping file", tuple(map(str, aliases)), settings)


def _absolute(mapping: Path, given: str) -> Path:
    return mapping.parent / os.path.expanduser(given)
