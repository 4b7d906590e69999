"""The files of the terminal program. Only their owner can read them."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from ..agent.conversation import read_messages, write_messages


def state_folder() -> Path:
    """The folder of the last conversation and the chat history: $XDG_STATE_HOME/localchat or ~/.local/state/localchat.

    On Windows it is in %LOCALAPPDATA%.
    """
    if sys.platform == "win32":
        home = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    else:
        home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "localchat"


def _last_file() -> Path:
    return state_folder() / "last.json"


def save_last(messages: list[dict[str, Any]]) -> None:
    """Save a conversation for --continue. If the file cannot be written, for example in a container, do nothing."""
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: the user has no home folder.
        path = _last_file()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_messages(path, messages, private=True)


def load_last() -> list[dict[str, Any]]:
    """Read the conversation for --continue.

    Raises:
        ValueError: The file does not exist or is not a saved conversation.
    """
    try:
        return read_messages(_last_file())
    except FileNotFoundError:
        raise ValueError(f"there is no last conversation to continue: no file {_last_file()}") from None
