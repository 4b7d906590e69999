"""Fetches a GGUF model by its name from Hugging Face's hub into the cache of that hub, where the catalog finds it.

Only `fetch` imports `huggingface_hub` and opens connections. That library knows the hub's API, tokens, mirrors and
cache. Its downloads begin again after a process has ended, so the resumption and the check of the digest are here.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib
import logging
import mmap
import os
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .memory import gigabytes
from .model_file import NO_MODEL, ModelFileError, name_of
from .sources import quantisation_of

log = logging.getLogger("localchat.server")
Memory = Callable[[], tuple[int, str]]  # Returns the bytes that are free for a model, and where they are.
REACH_S = 5  # The time limit of a try to reach the hub.
SHARE = 0.8  # Of the free memory, for the file of a model. The rest is for the context and for other programs.
_USUAL = re.compile(r"(UD-)?(IQ|Q|MXFP)[4-8]")  # Without a quantisation in the name, one of these is taken.


@dataclass(frozen=True)
class HubFile:
    name: str
    n_bytes: int
    sha256: str  # Its digest, under which the cache has it; "" for a small file, which the hub stores in another way.


def quantisations(files: Iterable[HubFile]) -> dict[str, list[HubFile]]:
    """The models of a repository, each with its parts, by quantisation; by file name if several have the same one."""
    by_name: dict[tuple[str, str], list[HubFile]] = {}
    for file in sorted(files, key=lambda file: file.name):
        if file.name.lower().endswith(".gguf") and not NO_MODEL.search(file.name):
            by_name.setdefault((name_of(Path(file.name)), quantisation_of(Path(file.name))), []).append(file)
    n_models = [tag for _, tag in by_name].count
    return {tag if tag and n_models(tag) == 1 else name: parts for (name, tag), parts in by_name.items()}


def projector(files: Iterable[HubFile]) -> list[HubFile]:
    """The projector of a repository, in F16 if there are several; an empty list if it has none."""
    found = [file for file in files if re.search(r"mmproj[^/]*\.gguf$", file.name.lower())]
    return sorted(found, key=lambda file: (not re.search(r"(?<!b)f16", file.name.lower()), file.n_bytes))[:1]


def _is_tag(wanted: str, tag: str, files: Sequence[HubFile]) -> bool:
    return wanted in (tag, name_of(Path(files[0].name)).casefold())


def _is_plain_tag(wanted: str, tag: str, files: Sequence[HubFile]) -> bool:
    """Whether this is the quantisation without the "UD-" before it."""
    return wanted == tag.removeprefix("ud-")


def chosen(models: Mapping[str, Sequence[HubFile]], wanted: str, memory: Memory) -> tuple[str, str]:
    """The quantisation to fetch, and why: the one in the name of the model, else the largest that fits."""
    sizes = {tag: sum(file.n_bytes for file in files) for tag, files in models.items()}
    by_size = sorted(sizes, key=lambda tag: -sizes[tag])
    offered = ", ".join(f"{tag} ({gigabytes(sizes[tag])})" for tag in by_size)
    if wanted:
        for is_same in (_is_tag, _is_plain_tag):
            for tag, files in models.items():
                if is_same(wanted.casefold(), tag.casefold(), files):
                    return tag, "as named"
        raise ModelFileError(f"there is no {wanted}: choose one of {offered}")
    if len(sizes) == 1:
        return by_size[0], "the only one"
    n_free, where = memory()
    limit = f"from Q4 to Q8 within {SHARE:.0%} of the {gigabytes(n_free)} that are free {where}"
    for tag in by_size:
        if _USUAL.match(tag) and sizes[tag] <= n_free * SHARE:
            return tag, f"the largest {limit}"
    raise ModelFileError(f"there is none {limit}: name one with :QUANTISATION, of {offered}")


def fetch(name: str, memory: Memory, *, with_projector: bool = True) -> str:
    """Fetch "publisher/repository:quantisation" with its projector; `memory` may choose. Returns the whole name."""
    repository, _, wanted = re.sub(r"^(https?://)?(huggingface\.co|hf\.co)/", "", name.strip()).partition(":")
    # The library reads these when it is imported. Its telemetry would ask the hub for a list first.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("HF_HUB_DOWNLOAD_TIMEOUT", str(REACH_S))
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # It logs each retry.
    try:
        hub = _Repository(repository)
    except ImportError:
        command = f"{sys.executable} -m pip install huggingface_hub"
        raise ModelFileError(f"--get needs huggingface_hub, which is not installed: {command}") from None
    if re.fullmatch(r"[\w.-]+/[\w.-]+", repository) is None:
        raise ModelFileError(f"expected PUBLISHER/REPOSITORY[:QUANTISATION], got {name!r}{hub.nearest()}")
    try:
        files = hub.files()
        models = quantisations(files)
        if not models:
            raise ModelFileError(f"no GGUF files{hub.nearest()}")
        tag, reason = chosen(models, wanted, memory)
        # The first part comes last, so that the catalog has no model of which parts are missing.
        projectors = projector(files) if with_projector else []
        hub.download([*projectors, *reversed(models[tag])], f"{tag}, {reason}")
    except (ValueError, OSError, hub.http.HTTPError) as error:
        raise ModelFileError(f"{repository}: {hub.problem(error)}") from error
    return f"{repository}:{tag}"


class _Repository:
    """A repository on the hub, and its folder in the cache."""

    def __init__(self, name: str) -> None:
        self._hub = importlib.import_module("huggingface_hub")
        # Its HTTP library is httpx or httpx2, by version.
        self.http = importlib.import_module(type(self._hub.get_session()).__module__.partition(".")[0])
        self._name, self._endpoint = name, self._hub.constants.ENDPOINT
        self._folder = Path(self._hub.constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"

    def files(self) -> list[HubFile]:
        info = _within(self._hub.HfApi().model_info, self._name, files_metadata=True)
        return [HubFile(file.rfilename, file.size or 0, file.lfs.sha256 if file.lfs else "") for file in info.siblings]

    def nearest(self) -> str:
        """The GGUF repository with the nearest name, for the end of a message; "" if there is none."""
        publisher, _, short = self._name.rpartition("/")
        names: dict[str, str] = {}
        with contextlib.suppress(self.http.HTTPError, OSError, ValueError):  # The first failure ends the search.
            for query in ({"author": publisher}, {"search": short}, {"search": re.split(r"[-_.]", short)[0]}):
                names.update({name.casefold(): name for name in _within(self._names, **query)})
        near = difflib.get_close_matches(self._name.casefold(), names, n=1)
        return f"; did you mean {names[near[0]]}?" if near else ""

    def _names(self, **query: str) -> list[str]:
        return [model.id for model in self._hub.HfApi().list_models(filter="gguf", limit=100, **query)]

    def download(self, files: Sequence[HubFile], title: str) -> None:
        existing = next(folder for folder in (self._folder, *self._folder.parents) if folder.exists())
        n_missing, n_free = sum(file.n_bytes - self._n_here(file) for file in files), shutil.disk_usage(existing).free
        if n_missing > n_free:
            sizes = f"{existing} has {gigabytes(n_free)} of the {gigabytes(n_missing)}"
            raise ModelFileError(f"{sizes}: free some space, or set HF_HUB_CACHE to a folder on another disk")
        log.info("fetching %s: %s, %s into %s", self._name, title, gigabytes(n_missing), self._folder)
        for file in files:
            path = self._folder / "blobs" / file.sha256
            if file.sha256 and not path.exists():
                self._transfer(file, path)
            # It finds the file, and gives it its name.
            self._hub.hf_hub_download(self._name, file.name, etag_timeout=REACH_S)

    def _transfer(self, file: HubFile, path: Path) -> None:
        """Fetch a file under its digest, from where an earlier transfer ended."""
        part = path.with_name(f"{path.name}.incomplete")
        path.parent.mkdir(parents=True, exist_ok=True)
        url, headers = self._hub.hf_hub_url(self._name, file.name), self._hub.utils.build_hf_headers()
        get = importlib.import_module("huggingface_hub.file_download").http_get  # It shows the progress.
        with open(part, "ab") as out:
            n_here = out.truncate(min(out.tell(), file.n_bytes))  # Two processes may have written to it.
            get(url, out, resume_size=n_here, headers=headers, expected_size=file.n_bytes, displayed_filename=file.name)
        with open(part, "rb") as data, mmap.mmap(data.fileno(), 0, access=mmap.ACCESS_READ) as content:
            digest = hashlib.sha256(content).hexdigest()
        if digest != file.sha256:
            part.unlink()
            raise ModelFileError(f"{file.name} arrived damaged and was removed: run the same command again")
        part.replace(path)

    def _n_here(self, file: HubFile) -> int:
        """The bytes of a file that are in the cache."""
        paths = (self._folder / "blobs" / (file.sha256 + suffix) for suffix in ("", ".incomplete"))
        return max((path.stat().st_size for path in paths if path.is_file()), default=0)

    def problem(self, error: Exception) -> str:
        """What prevents a download, and what to do, in one line."""
        hub, errors, reason = self._endpoint, self._hub.errors, str(error).partition("\n")[0] or type(error).__name__
        if isinstance(error, ModelFileError):
            return reason
        if isinstance(error, errors.GatedRepoError):
            return f"gated: accept the terms at {hub}/{self._name}, and set HF_TOKEN to your token"
        if isinstance(error, errors.RepositoryNotFoundError):
            return f"{hub} has no such repository, or it is private{self.nearest()}"
        if isinstance(error, errors.HfHubHTTPError):
            status, later = error.response.status_code, "run the same command again later"
            known = {401: "set HF_TOKEN to a valid token, or unset it", 429: f"{later}, or set HF_TOKEN to your token"}
            return f"{hub} returns status {status}: {known.get(status, later)}"
        if isinstance(error, (self.http.HTTPError, TimeoutError, ConnectionError, errors.LocalEntryNotFoundError)):
            advice = "check the network, or set HF_ENDPOINT to a mirror; the same command goes on where it ended"
            return f"no connection to {hub}, or no response within {REACH_S} s ({reason}): {advice}"
        return f"{reason}: check the address {hub} (HF_ENDPOINT) and the space in {self._folder} (HF_HUB_CACHE)"


def _within(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """The result of a call. Raises TimeoutError after `REACH_S`: the search for an address has no limit of its own."""
    result: Future[Any] = Future()

    def run() -> None:
        try:
            result.set_result(call(*arguments, **options))
        except Exception as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    if not wait([result], REACH_S).done:
        raise TimeoutError
    return result.result()
