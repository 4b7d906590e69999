"""The adapters (LoRA) of a model: those that the user names, and those beside its file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..core.model_options import Adapter
from .model_file import ModelFile, Summary, is_model_name, name_of, plain_name, summary_of

# The adapters in a folder with the summaries of their headers, and whether the folder has only one model.
FolderAdapters = tuple[dict[Path, Summary], bool]


def adapter_problem(adapter: Adapter, model: Path) -> str:
    """Why an adapter cannot be used with this model, as far as the headers of both say; "" if it may be."""
    summary, base = summary_of(ModelFile(Path(adapter.path), "")), summary_of(ModelFile(model, ""))
    if not summary.is_adapter:
        return f"{adapter.path}: {(summary.is_model and summary.problem) or 'it is no LoRA adapter'}"
    if summary.architecture != base.architecture:
        architectures = f"for the architecture {summary.architecture!r}, the model has {base.architecture!r}"
        return f"{adapter.path}: it is {architectures}"
    return ""


def adapters_in(folder: Path) -> FolderAdapters:
    summaries: dict[Path, Summary] = {}
    with contextlib.suppress(OSError):
        files = [folder / name for name in sorted(os.listdir(folder)) if is_model_name(name)]
        summaries = {path: summary_of(ModelFile(path, "")) for path in files}
    has_one_model = sum(summary.is_model for summary in summaries.values()) == 1
    return {path: summary for path, summary in summaries.items() if summary.is_adapter}, has_one_model


def with_adapters(
    model: ModelFile, taken_names: set[str], folder_adapters: FolderAdapters, further: Sequence[Adapter] = ()
) -> ModelFile:
    """The model with further adapters, those that it has already, and those in its folder.

    An adapter in the folder belongs to the model that its header names, or, if it names none, to the only model there.
    Each adapter has a name that is not in `taken_names`, to which it is added.
    """
    named = (*further, *model.adapters)
    beside, has_one_model = folder_adapters
    if not named and not beside:
        return model
    named_paths, base = {os.path.realpath(adapter.path) for adapter in named}, summary_of(model)
    base_names = {plain_name(base.base), plain_name(name_of(model.path))}
    beside_adapters = (
        Adapter(name_of(path), str(path))
        for path, summary in beside.items()
        if summary.architecture == base.architecture and os.path.realpath(path) not in named_paths
        if (plain_name(summary.base) in base_names if summary.base else has_one_model)
    )
    # Of several adapters with one name, the first one is kept.
    by_name = {adapter.name.casefold(): adapter for adapter in reversed((*named, *beside_adapters))}
    kept = tuple(adapter for name, adapter in reversed(by_name.items()) if name not in taken_names)
    taken_names.update(by_name)
    return replace(model, adapters=kept)
