"""Saves the results of checks in the cache folder of localchat, so that later starts need not repeat the checks."""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

log = logging.getLogger("localchat.engine")


def cache_folder() -> Path:
    """The cache folder of localchat for this user, by the conventions of the platform.

    Raises:
        OSError: The user has no home folder, as in some containers.
    """
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    # Path.expanduser of Python 3.9 raises KeyError for a user without an entry in the password database.
    base = os.path.expanduser(base)
    if base.startswith("~"):
        raise FileNotFoundError("the user has no home folder")
    return Path(base, "localchat")


def read_results(name: str) -> dict[str, bool]:
    """The results in a file of the cache folder; none if it is missing or broken."""
    try:
        results: Any = json.loads((cache_folder() / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(results, dict):
        return {}
    return {key: value for key, value in results.items() if isinstance(value, bool)}


def write_results(name: str, results: dict[str, bool], n_max: int) -> None:
    """Write the newest `n_max` results. An error is only logged: the next start repeats the test."""
    newest = dict(list(results.items())[-n_max:])
    try:
        path = cache_folder() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # Another server may read the file: it is replaced as a whole.
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
            json.dump(newest, file, indent=1)
        os.replace(file.name, path)
    except OSError as error:
        log.info("%s cannot be written, the next start repeats the test: %s", name, error)
