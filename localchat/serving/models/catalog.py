"""The catalog of models, which finds the one that a name means. `sources.py` finds the files and their names.

A name is a path, one in a mapping file, that of a file in a models folder, or of a model of another program. The
catalog never reads weights. It scans a folder again once the folder has changed.
"""

from __future__ import annotations

import difflib
import functools
import logging
import os
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from .adapters import adapters_in, with_adapters
from .model_file import DEMO, DEMO_PATH, QUANTISATION, ModelFile, ModelFileError, model_at, printable_name, summary_of
from .sources import SOURCES, Scan, changed_at, home_in, models_below, read_mapping

log = logging.getLogger("localchat.server")

# Where models are looked for without --models-dir.
DEFAULT_FOLDER = ".localchat/models"  # In the home directory.
KIT_FOLDER = "share/localchat/models"  # In the installation that `make wheelhouse` has made.
MAPPING_FILES = ("models.toml", "models.json")  # The mapping files that a models folder may have.
MAX_SHOWN_NAMES = 8  # An error shows at most this many names.
# Its second name is the first one if a file of the user has the name "demo".
_BUILT_IN = ModelFile(DEMO_PATH, DEMO, "built-in", ("built-in/demo",))


class Catalog:
    """The models of this machine. Thread-safe: a scan replaces what an earlier scan found as a whole."""

    def __init__(
        self, folders: Sequence[Path] = (), mapping: Path | None = None, environment: Mapping[str, str] = os.environ
    ) -> None:
        """Without `folders` the default one is scanned; without a `mapping` file those in the folders apply."""
        home = home_in(environment)
        self._folders = tuple(folders) or (*((home / DEFAULT_FOLDER,) if home else ()), Path(sys.prefix, KIT_FOLDER))
        self._mapping = mapping
        self._environment = environment
        # What has been logged, and the models of each mapping file when it was last valid.
        self._reported: set[str] = set()
        self._mapped: dict[Path, list[ModelFile]] = {}
        # When the scanned folders and mapping files were changed, and the models that were found in them.
        self._scanned: tuple[dict[Path, int], tuple[ModelFile, ...]] | None = None

    def models(self) -> tuple[ModelFile, ...]:
        """All models, each under a name that no other one has, in the order in which names are resolved."""
        if self._scanned is not None and all(changed_at(path) == stamp for path, stamp in self._scanned[0].items()):
            return self._scanned[1]
        scan = Scan(self._reported)
        named: dict[str, ModelFile] = {}  # By their names in lower case.
        by_real_path: dict[str, str] = {}  # The keys of `named`, by the files without links.
        for source in (*self._sources(scan), [_BUILT_IN]):
            # A name that an earlier source has keeps its meaning.
            taken_names = {name for model in named.values() for name in _names(model)}
            for model in source:
                names = [printable_name(name) for name in (model.name, *model.aliases)]
                names = [name for name in names if name and _key(name) not in taken_names]
                real_path = os.path.realpath(model.path)
                first_name = by_real_path.get(real_path)
                if first_name is not None and not model.settings:  # One file under several names is one model.
                    first = named[first_name]
                    named[first_name] = replace(first, aliases=(*first.aliases, *names))
                elif names and _key(names[0]) not in named:
                    key = _key(names[0])
                    named[key] = replace(model, name=names[0], aliases=tuple(names[1:]))
                    by_real_path.setdefault(real_path, key)
        taken_names = {name for model in named.values() for name in _names(model)}
        adapters_beside = functools.lru_cache(maxsize=None)(adapters_in)  # It reads each folder once.
        models = tuple(
            with_adapters(model, taken_names, adapters_beside(model.path.parent)) for model in named.values()
        )
        self._scanned = (scan.stamps, models)
        return models

    def find(self, name: str, *, takes_paths: bool = False, default: str = "") -> ModelFile:
        """The model that a name means, or the base of the adapter that it means.

        Case is ignored; "name:tag" means the file of this name with this quantisation. The name may be a path
        (`takes_paths`) on the command line, but not in a request: a client could open any file. Raises ModelFileError
        if no model has this name or several have, and if a mapping file is invalid. Its message also offers the model
        `default`, which the server may have beside those of the catalog.
        """
        name = name.strip()
        if takes_paths and name == DEMO:
            return _BUILT_IN
        is_written_as_path = name.endswith(".gguf") or name.startswith((".", "/", "~")) or "://" in name
        if takes_paths and (is_written_as_path or os.path.exists(name)):
            return model_at(name)
        models = self.models()
        whole_name = _key(name)
        wanted = whole_name.removesuffix(".gguf")
        rules: tuple[Callable[[ModelFile], bool], ...] = (
            lambda model: whole_name in _names(model),
            lambda model: whole_name in model.adapter_names,
            lambda model: wanted in _names(model),
            lambda model: _has_tag(model, wanted),
            lambda model: _is_base(model, wanted),
        )
        for is_match in rules:  # The first rule that any model meets decides.
            matches = [model for model in models if is_match(model)]
            if len(matches) == 1:
                return matches[0]
            if matches:
                names = ", ".join(repr(model.name) for model in matches[:MAX_SHOWN_NAMES])
                raise ModelFileError(f"the name {name!r} means {len(matches)} models: use one of {names}")
        hint = f"; to fetch it: python -m localchat.server --get {name}" if "/" in name else ""
        raise ModelFileError(
            f"there is no model {name!r} here; {_on_offer(wanted, [default, *(model.name for model in models)])}{hint}"
        )

    def default(self) -> ModelFile:
        """The model of a server that is started without one: LOCALCHAT_MODEL, the only one, or the built-in one."""
        name = self._environment.get("LOCALCHAT_MODEL")
        if name:
            return self.find(name, takes_paths=True)
        models = [model for model in self.models() if model.source != _BUILT_IN.source]
        # A damaged file beside the only model changes nothing.
        models = [model for model in models if not summary_of(model).problem] or models
        if len(models) > 1:
            names = ", ".join(repr(model.name) for model in models[:MAX_SHOWN_NAMES])
            log.info("%d models were found: requests that name none get the built-in one", len(models))
            log.info("to serve one of them, name it at the start: %s", names)
        return models[0] if len(models) == 1 else _BUILT_IN

    def _sources(self, scan: Scan) -> Iterator[Iterable[ModelFile]]:
        """The models of each source. While a change of a mapping file is invalid, its models are those before it."""
        mappings = [self._mapping] if self._mapping else [f / name for f in self._folders for name in MAPPING_FILES]
        for path in mappings:
            scan.stamps[path] = changed_at(path)
            if not (scan.stamps[path] or self._mapping):
                continue
            try:
                self._mapped[path] = read_mapping(path)
            except ModelFileError as error:
                if self._scanned is None:
                    raise
                scan.report(f"{error}; its models stay those before this change")
            yield self._mapped.get(path, [])
        for folder in self._folders:
            yield models_below(folder, scan)
        for source in SOURCES:
            for root in source.roots(self._environment):
                yield source.models(root, scan)


def _on_offer(wanted: str, model_names: Iterable[str]) -> str:
    names = {name.casefold(): name for name in model_names if name}
    near = difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)
    if near:
        return "did you mean " + " or ".join(repr(names[name]) for name in near) + "?"
    shown = ", ".join(repr(name) for name in list(names.values())[:MAX_SHOWN_NAMES])
    n_more = len(names) - MAX_SHOWN_NAMES
    return f"on offer: {shown}" + (f" and {n_more} more (see GET /v1/models)" if n_more > 0 else "")


def _names(model: ModelFile) -> Iterator[str]:
    return (_key(name) for name in (model.name, *model.aliases))


def _key(name: str) -> str:
    """The text by which names are compared: macOS decomposes letters with accents in the names of files."""
    return unicodedata.normalize("NFC", name).casefold()


def _has_tag(model: ModelFile, wanted: str) -> bool:
    """Whether "family:tag" is this model: a name has the tag at its end, such as family-q4_k_m; "latest" is any."""
    family, _, tag = wanted.partition(":")
    if tag == "latest":
        return family in _names(model)
    return tag != "" and not {f"{family}{mark}{tag}" for mark in "-._"}.isdisjoint(_names(model))


def _is_base(model: ModelFile, wanted: str) -> bool:
    """Whether the name lacks only the publisher, the tag or the quantisation of this model."""
    short = _key(model.name).rpartition("/")[2]
    names = (short, short.partition(":")[0], _key(model.name).partition(":")[0], QUANTISATION.sub("", short))
    return wanted != "" and wanted in names
