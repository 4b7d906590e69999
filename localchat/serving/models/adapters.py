"""The adapters (LoRA) of a model: those that the user names, and those beside its file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..core.model_options import Adapter
from .model_file import ModelFile, Summary, is_model_name, name_of, plain_name, summary_of

Found = tuple[dict[Path, Summary], bool]


def adapter_problem(adapter: Adapter, model: Path) -> str:
    """Why an adapter cannot be one of this model, as far as the headers of both say; "" if it may be."""
    own, base = summary_of(ModelFile(Path(adapter.path), "")), summary_of(ModelFile(model, ""))
    if not own.is_adapter:
        return f"{adapter.path}: {(own.is_model and own.problem) or 'it is no LoRA adapter'}"
    if own.architecture != base.architecture:
        return f"{adapter.path}: it is for the architecture {own.architecture!r}, the model has {base.architecture!r}"
    return ""


def adapters_in(folder: Path) -> Found:
    """The adapters in a folder, with what their headers say, and whether it has only one model."""
    found: dict[Path, Summary] = {}
    with contextlib.suppress(OSError):
        files = [folder / name for name in sorted(os.listdir(folder)) if is_model_name(name)]
        found = {path: summary_of(ModelFile(path, "")) for path in files}
    is_only = sum(summary.is_model for summary in found.values()) == 1
    return {path: summary for path, summary in found.items() if summary.is_adapter}, is_only


def with_adapters(model: ModelFile, taken: set[str], found: Found, further: Sequence[Adapter] = ()) -> ModelFile:
    """The model with further adapters, its own, and those `found` in its folder whose headers name it, or name no model
    if it is the only one there. Each has a name that is not in `taken`, to which it is added."""
    named = (*further, *model.adapters)
    beside, is_only = found
    if not named and not beside:
        return model
    paths, own = {os.path.realpath(adapter.path) for adapter in named}, summary_of(model)
    names = {plain_name(own.base), plain_name(name_of(model.path))}
    own_ones = (
        Adapter(name_of(path), str(path))
        for path, summary in beside.items()
        if summary.architecture == own.architecture and os.path.realpath(path) not in paths
        if (plain_name(summary.base) in names if summary.base else is_only)
    )
    adapters = {adapter.name.casefold(): adapter for adapter in reversed((*named, *own_ones))}
    kept = tuple(adapter for name, adapter in reversed(adapters.items()) if name not in taken)
    taken.update(adapters)
    return replace(model, adapters=kept)
