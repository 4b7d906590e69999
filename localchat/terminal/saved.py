"""Files of the terminal program: the last conversation, and the history of the chat. Readable by their owner alone."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any


def state_folder() -> Path:
    """Where files of this user live between runs: $XDG_STATE_HOME/localchat, by default in ~/.local/state."""
    if sys.platform == "win32":
        home = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    else:
        home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "localchat"


def last_file() -> Path:
    """The conversation that --continue continues."""
    return state_folder() / "last.json"


def save(messages: list[dict[str, Any]], path: Path) -> None:
    """Write a conversation. An interrupted write leaves an older file as it was.

    Raises:
        OSError: The file cannot be written.
    """
    path = Path(os.path.realpath(path))  # A link stays one.
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
            json.dump({"messages": messages}, file, indent=1)
        os.replace(partial, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()


def load(path: Path) -> list[dict[str, Any]]:
    """The messages of a saved conversation.

    Raises:
        ValueError: The file is no conversation.
        OSError: It cannot be read.
    """
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no saved conversation: {error}") from error
    messages = saved.get("messages") if isinstance(saved, dict) else saved
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise ValueError(f"{path} is no saved conversation: it has no list of messages")
    return messages


def save_last(messages: list[dict[str, Any]]) -> None:
    """Keep a conversation for --continue. Where no file can be written, such as in a container, nothing is kept."""
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: the user has no home.
        last_file().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        save(messages, last_file())


def load_last() -> list[dict[str, Any]]:
    """The conversation to continue.

    Raises:
        ValueError: There is none, or the file is damaged.
    """
    try:
        return load(last_file())
    except FileNotFoundError:
        raise ValueError(f"there is no last conversation to continue: no file {last_file()}") from None
