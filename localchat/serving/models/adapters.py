"""The adapters (LoRA) of a model: those that the user names, and those beside its file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..core.options import Adapter
from .model_file import ModelFile, is_model_name, name_of, plain_name, summary_of


def adapter_problem(adapter: Adapter, model: Path) -> str:
    """Why an adapter cannot be one of this model, as far as the headers of both say; "" if it may be."""
    own, base = summary_of(ModelFile(Path(adapter.path), "")), summary_of(ModelFile(model, ""))
    if not own.is_adapter:
        return own.problem if own.is_model and own.problem else f"{adapter.path}: it is no LoRA adapter"
    if own.architecture != base.architecture:
        return f"{adapter.path}: it is for the architecture {own.architecture!r}, the model has {base.architecture!r}"
    return ""


def with_adapters(model: ModelFile, taken: set[str], further: Sequence[Adapter] = ()) -> ModelFile:
    """The model with further adapters, its own, and those in its folder whose headers name it, or name no model if
    there is only this one in the folder. Each has a name that is not in `taken`, to which it is added."""
    named = (*further, *model.adapters)
    paths = {os.path.realpath(adapter.path) for adapter in named}
    found = (adapter for adapter in _adapters_beside(model.path) if os.path.realpath(adapter.path) not in paths)
    adapters = {adapter.name.casefold(): adapter for adapter in reversed((*named, *found))}
    kept = tuple(adapter for name, adapter in reversed(adapters.items()) if name not in taken)
    taken.update(adapters)
    return replace(model, adapters=kept)


def _adapters_beside(model: Path) -> list[Adapter]:
    with contextlib.suppress(OSError):
        files = [model.with_name(name) for name in sorted(os.listdir(model.parent)) if is_model_name(name)]
        found = {path: summary_of(ModelFile(path, "")) for path in files}
        own = summary_of(ModelFile(model, ""))
        names = {plain_name(own.base), plain_name(name_of(model))}
        is_only = sum(summary.is_model for summary in found.values()) == 1
        return [
            Adapter(name_of(path), str(path))
            for path, summary in found.items()
            if summary.is_adapter and summary.architecture == own.architecture
            if (plain_name(summary.base) in names if summary.base else is_only)
        ]
    return []
