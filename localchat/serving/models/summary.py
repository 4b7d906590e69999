"""What a list shows of a model file: size, quantisation, context; from the first part of its header."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .catalog import ModelFile, gigabytes
from .gguf import GGUFError, read_start

# The names of llama.cpp's file types, by number (enum llama_ftype).
_QUANTISATIONS: Mapping[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}  # fmt: skip


@dataclass(frozen=True)
class Summary:
    """What the header of a model file says."""

    architecture: str = ""
    quantisation: str = ""
    n_ctx_train: int = 0
    """The context of the training, 0 if it is not known."""
    n_params: int = 0
    """The number of parameters, 0 if it is not known."""
    is_embedding: bool = False
    """Whether the model computes vectors of texts."""
    problem: str = ""
    """Why the header cannot be read; "" if it can."""


def summary_of(model: ModelFile) -> Summary:
    """The summary of a model file, from a cache while the file does not change."""
    try:
        stat = model.path.stat()
    except OSError as error:
        return Summary(problem=f"{model.path}: {error.strerror}")
    return _summary(model.path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=20_000)
def _summary(path: Path, mtime_ns: int, n_bytes: int) -> Summary:
    try:
        found = read_start(path)
    except (GGUFError, OSError) as error:
        return Summary(problem=str(error))
    architecture = str(found.get("general.architecture", ""))
    context, n_params = found.get(f"{architecture}.context_length"), found.get("general.parameter_count")
    return Summary(
        architecture,
        quantisation_of(found.get("general.file_type")),
        context if isinstance(context, int) else 0,
        n_params if isinstance(n_params, int) else 0,
        f"{architecture}.pooling_type" in found,
    )


def quantisation_of(file_type: object) -> str:
    """The name of a file type of llama.cpp, given as a number or its text; "" if it is unknown."""
    return _QUANTISATIONS.get(int(str(file_type)), "") if str(file_type).isdecimal() else ""


def list_text(models: Iterable[ModelFile]) -> str:
    """A table of models for a terminal: name, size, quantisation, context and where each was found."""
    rows = [("NAME", "SIZE", "QUANTISATION", "CONTEXT", "FOUND IN")]
    for model in models:
        header = summary_of(model)
        context = f"{header.n_ctx_train:,}" if header.n_ctx_train else ""
        place = f"{model.source}: {header.problem or model.path}"
        rows.append((model.name, gigabytes(model.n_bytes), header.quantisation, context, place))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join("  ".join([*(cell.ljust(w) for cell, w in zip(row, widths)), row[4]]) for row in rows)
