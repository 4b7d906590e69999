"""One model file: its names, a summary of its header, and the file that a path means."""

from __future__ import annotations

import contextlib
import difflib
import functools
import glob
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.model_options import Adapter
from .gguf import TENSOR_COUNT, GGUFError, read_start
from .gguf import ModelFileError as ModelFileError
from .memory import gigabytes

# The argument for the built-in model, and its name.
DEMO = "demo"
DEMO_PATH = Path(__file__).with_name("demo.gguf")

# The end of the file name of a part of a split model. llama.cpp opens all parts if it gets the path of the first one.
_PART = re.compile(r"-(\d{5})-of-(\d{5})$")
# Projectors and other files beside a model, by the name of a file whose header cannot be read.
NO_MODEL = re.compile(r"mmproj|imatrix|-vocab|ggml-vocab", re.IGNORECASE)
# What such a file is, by its `general.type`, or else by its architecture.
_OTHER_TYPES: Mapping[str, str] = {
    "adapter": "an adapter (LoRA) for a model", "imatrix": "an importance matrix", "mmproj": "a projector for a model",
    "clip": "a projector for a model", "controlvector": "a control vector for a model",
}  # fmt: skip
# By modality: the name of its encoder in the header of a projector.
_ENCODERS: Mapping[str, str] = {"image": "vision", "audio": "audio"}
# Of several projectors, that of the first type. Quantised ones are smaller, and see less.
_PROJECTOR_TYPES = ("F16", "BF16", "Q8_0", "F32")
_PROJECTOR_WORDS = re.compile(r"(^|[-._ ])(mmproj|model|projector|ud)(?=$|[-._ ])", re.IGNORECASE)
QUANTISATION = re.compile(r"[-._]((?:IQ|Q|TQ)\d\w*|BF16|F16|F32|MXFP4\w*)$", re.IGNORECASE)
# Characters that a name cannot have: a line of the log or of a table would end there, or JSON cannot have them.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

_MAX_SHOWN_CHARS = 60  # The characters of an architecture that lists show.
# The names of llama.cpp's file types, by number (enum llama_ftype).
_QUANTISATIONS: Mapping[object, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}  # fmt: skip


@dataclass(frozen=True)
class ModelFile:
    """A model on this machine."""

    path: Path
    name: str  # The name in lists and requests.
    # Where it was found: "path", "models folder", "mapping file", "built-in", or the name of another program.
    source: str = "path"
    aliases: tuple[str, ...] = ()  # Further names in requests.
    # Settings of a mapping file, which apply where the command line sets none.
    settings: Mapping[str, Any] = field(default_factory=dict)
    # The projector that its source names; None: see `projector_of`.
    projector: Path | None = None
    # Its adapters, each of which is a model for requests. The catalog adds those beside the file.
    adapters: tuple[Adapter, ...] = ()
    # The workers that compute layers of it, by their addresses.
    workers: tuple[str, ...] = ()

    @property
    def n_bytes(self) -> int:
        """The bytes of all parts of the model; 0 if the file cannot be read."""
        with contextlib.suppress(OSError):
            return sum(part.stat().st_size for part in files_of(self.path))
        return 0

    @property
    def adapter_names(self) -> set[str]:
        return {adapter.name.casefold() for adapter in self.adapters}

    @property
    def stamp(self) -> int:
        """The modification time of the file in nanoseconds, 0 if there is none."""
        with contextlib.suppress(OSError):
            return self.path.stat().st_mtime_ns
        return 0


def model_at(argument: str) -> ModelFile:
    """The model at a path: a file, a part of a split model, or a folder with one. Raises ModelFileError or OSError."""
    if re.match(r"[a-z]+://", argument):
        problem = "is a URL, and the server downloads nothing: get the file with"
        raise ModelFileError(f"{argument} {problem} curl -LO {argument}")
    path = Path(os.path.expanduser(argument))
    path = _only_model(path) if path.is_dir() else first_part(path)
    if not path.is_file():
        shown = printable_name(str(path))
        if os.path.lexists(path):
            raise ModelFileError(
                f"{shown} is neither a file nor a link to one; --list shows the models of this machine"
            )
        raise ModelFileError(f"there is no file {shown}; {_files_beside(path)}")
    return ModelFile(path, name_of(path))


def _files_beside(path: Path) -> str:
    """What to name in place of a missing file, as the end of an error."""
    if not path.parent.is_dir():
        return f"there is no folder {printable_name(str(path.parent))}, either"
    names = [name for name in sorted(os.listdir(path.parent)) if is_model_name(name)]
    near = difflib.get_close_matches(path.name, names, n=1)
    return (
        f"did you mean {printable_name(str(path.with_name(near[0])))}?"
        if near
        else "--list shows the models of this machine"
    )


def name_of(path: Path) -> str:
    """The name of a model file: the file name without ".gguf" and without the number of a part."""
    return printable_name(_PART.sub("", path.stem)) or path.suffix


def printable_name(name: str) -> str:
    """A name with "?" in place of bytes that are not valid UTF-8 and of control characters."""
    return _UNPRINTABLE.sub("?", name).strip()


def is_model_name(file_name: str) -> bool:
    """Whether a file of this name may be a model, or the first part of one."""
    if not file_name.lower().endswith(".gguf") or file_name.startswith("._"):
        return False
    part = _PART.search(file_name[: -len(".gguf")])
    return part is None or part[1] == "00001"


def is_model(path: Path) -> bool:
    """Whether a file is a model by its header, or by its name if the header cannot be read."""
    summary = summary_of(ModelFile(path, ""))
    return summary.is_model and not (summary.problem and NO_MODEL.search(path.name))


def first_part(path: Path) -> Path:
    match = _PART.search(path.stem)
    return path.with_name(f"{path.stem[: match.start()]}-00001-of-{match[2]}{path.suffix}") if match else path


def files_of(path: Path) -> list[Path]:
    match = _PART.search(path.stem)
    if match is None:
        return [path]
    return sorted(path.parent.glob(f"{glob.escape(path.stem[: match.start()])}-*-of-{match[2]}{path.suffix}"))


def _only_model(folder: Path) -> Path:
    paths = (folder / name for name in sorted(os.listdir(folder)) if is_model_name(name))
    files = [path for path in paths if path.is_file() and is_model(path)]
    if not files:
        raise ModelFileError(f"{folder} is a folder without a model (.gguf)")
    if len(files) > 1:
        lines = (f"\n  {file}  {gigabytes(ModelFile(file, '').n_bytes)}" for file in files)
        raise ModelFileError(f"{folder} holds {len(files)} models, choose one:{''.join(lines)}")
    return files[0]


@dataclass(frozen=True)
class Summary:
    """What the start of the header of a model file has. A value that it has not is empty."""

    architecture: str = ""
    quantisation: str = ""
    n_ctx_train: int = 0  # The context of the training, 0 if it is not known.
    n_params: int = 0  # The number of parameters, 0 if it is not known.
    is_embedding: bool = False  # Whether the model computes vectors of texts.
    problem: str = ""  # Why the file cannot be loaded, as far as its header says, without its path; "" if it may be.
    is_model: bool = True  # False for projectors and other files beside a model.
    width: int = 0  # The length of the vectors of tokens: those that a model takes, or that a projector makes.
    modalities: tuple[str, ...] = ()  # Of a projector: "image", "audio".
    is_adapter: bool = False
    base: str = ""  # The name in the header; of an adapter: that of its base, if the header has it.


def summary_of(model: ModelFile) -> Summary:
    """The summary of a model file, from a cache while the file does not change."""
    try:
        stat = model.path.stat()
        return _summary(model.path, stat.st_mtime_ns, stat.st_size)
    except OSError as error:  # It is not cached, since it may be short, such as too many open files.
        return Summary(problem=error.strerror or str(error))


@functools.lru_cache(maxsize=20_000)
def _summary(path: Path, mtime_ns: int, n_bytes: int) -> Summary:
    try:
        header = read_start(path)
    except GGUFError as error:
        return Summary(problem=printable_name(error.problem))
    # A value may have any type, or be None: an array.
    texts = {name: value for name, value in header.items() if isinstance(value, str)}
    architecture = texts.get("general.architecture", "")
    other_type = _OTHER_TYPES.get(texts.get("general.type", "")) or _OTHER_TYPES.get(architecture)
    if not header[TENSOR_COUNT] and not _PART.search(path.stem):  # The first part of a split model may have none.
        other_type = other_type or "a vocabulary without weights"
    in_name = QUANTISATION.search(name_of(path))  # Some headers have the type behind their vocabulary.
    is_adapter = texts.get("general.type") == "adapter"
    widths = (f"{architecture}.embedding_length", *(f"clip.{part}.projection_dim" for part in _ENCODERS.values()))
    return Summary(
        printable_name(architecture[:_MAX_SHOWN_CHARS]),
        _QUANTISATIONS.get(header.get("general.file_type")) or (in_name[1].upper() if in_name else ""),
        n_ctx_train=_count(header.get(f"{architecture}.context_length")),
        n_params=_count(header.get("general.parameter_count")),
        is_embedding=f"{architecture}.pooling_type" in header,
        problem=f"it is {other_type}, not a model" if other_type else "",
        is_model=other_type is None,
        width=max(_count(header.get(name)) for name in widths),
        modalities=tuple(
            modality
            for modality, part in _ENCODERS.items()
            if other_type and header.get(f"clip.has_{part}_encoder") is True
        ),
        is_adapter=is_adapter and texts.get("adapter.type", "lora") == "lora",
        base=texts.get("general.base_model.0.name" if is_adapter else "general.name", ""),
    )


def projector_of(model: ModelFile) -> Path | None:
    """The projector of a model: the one that a mapping file or the source of the model names, or the one in its folder
    whose header and name fit. None: there is none."""
    named = model.projector or model.settings.get("mmproj")
    try:
        return Path(named) if named else _found_projector(model.path)
    except OSError:
        return None


def _found_projector(model: Path) -> Path | None:
    width, model_name = summary_of(ModelFile(model, "")).width, plain_name(name_of(model))
    # Some repositories have a folder for each quantisation, and the projector beside these.
    folders = [model.parent, *([model.parent.parent] if QUANTISATION.search(f"-{model.parent.name}") else [])]
    found = [_projectors_in(folder, folder.stat().st_mtime_ns) for folder in folders]
    # The file may have the name of the model. Without one, it belongs to the only model of the folder.
    is_only = all(names <= {model_name} for _, names in found)
    fitting = []
    for path, summary in (item for projectors, _ in found for item in projectors.items()):
        name = plain_name(name_of(path))
        if summary.width == width > 0 and (name == model_name or (not name and is_only)):
            is_known = summary.quantisation in _PROJECTOR_TYPES
            rank = _PROJECTOR_TYPES.index(summary.quantisation) if is_known else len(_PROJECTOR_TYPES)
            fitting.append((rank, path))
    return min(fitting)[1] if fitting else None


@functools.lru_cache(maxsize=1000)
def _projectors_in(folder: Path, _: int) -> tuple[Mapping[Path, Summary], set[str]]:
    """The projectors in a folder, which was changed at this time, and the names of its other models."""
    files = [folder / name for name in sorted(os.listdir(folder)) if is_model_name(name)]
    projectors = {path: summary for path in files if (summary := summary_of(ModelFile(path, ""))).modalities}
    return projectors, {plain_name(name_of(path)) for path in files if path not in projectors}


def plain_name(name: str) -> str:
    """The name of a model or a projector without what tells apart the files of one model."""
    return re.sub(r"[-._ ]", "", QUANTISATION.sub("", _PROJECTOR_WORDS.sub("", name))).casefold()


def _count(value: object) -> int:
    """A number of a header, or 0 if it cannot be a count."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 63 else 0
